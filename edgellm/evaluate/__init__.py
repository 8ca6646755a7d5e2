"""How far one source of logits is from another: divergence, agreement, perplexity."""
