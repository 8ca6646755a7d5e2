"""Make the tiny checkpoints beside this file, and the logits torch computes from them.

    python tests/data/checkpoints/make_checkpoints.py

Needs torch and transformers (made with torch 2.13.0, transformers 5.24.0); tests need neither.
Weights are random and wide (`initializer_range` 0.3), so that logits spread and a wrong rotation
or a swapped head shows at once. Each folder is a checkpoint as somebody would download it;
`logits.npz` in it holds the tokens that were fed and float32 logits of the positions in `rows`.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing
from transformers import LlamaConfig, LlamaForCausalLM

HERE = Path(__file__).resolve().parent
N_TOKENS = 128
ROWS = range(64, N_TOKENS)  # rotary scaling shows only behind the original context
MAX_BYTES = 400_000
LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class Case:
    """One checkpoint: how it is built and how it is stored."""

    name: str
    seed: int
    dtype: torch.dtype
    splitter: str
    config: dict[str, Any]
    shard_bytes: int = 1 << 30
    v4_config: bool = False
    generation: dict[str, Any] = field(default_factory=dict)


CASES = (
    Case(
        name="llama3-untied-sharded-bf16",
        seed=1,
        dtype=torch.bfloat16,
        splitter="llama3",
        shard_bytes=80_000,
        config={
            "num_hidden_layers": 2,
            "tie_word_embeddings": False,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        },
        generation={"eos_token_id": [1, 3], "bos_token_id": 0},
    ),
    Case(
        name="tied-v4-f32",
        seed=2,
        dtype=torch.float32,
        splitter="smollm",
        v4_config=True,
        config={
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 50000.0},
        },
    ),
    Case(
        name="yarn-biased-f16",
        seed=3,
        dtype=torch.float16,
        splitter="qwen2",
        config={
            "num_hidden_layers": 2,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 32,
                "attention_factor": 1.3,
            },
        },
    ),
    Case(
        name="linear-bf16",
        seed=4,
        dtype=torch.bfloat16,
        splitter="gpt2",
        config={
            "num_hidden_layers": 1,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
        },
    ),
)


def make_tokenizer(splitter: str, text: Path) -> Tokenizer:
    """Train a small byte-level BPE tokenizer on our own prose."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    qwen2 = LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
    by_name = {
        "gpt2": gpt2,
        "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2]),
        "llama3": pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(LLAMA3_SPLIT), "isolated"), byte_level]
        ),
        "qwen2": pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(qwen2), "isolated"), byte_level]
        ),
    }
    tokenizer = Tokenizer(models.BPE(ignore_merges=splitter == "llama3"))
    tokenizer.pre_tokenizer = by_name[splitter]
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|begin|>", "<|stop|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=370,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train([str(text)], trainer)
    tokenizer.add_tokens([AddedToken("Marrow Island", normalized=False)])
    if splitter == "llama3":
        tokenizer.post_processor = TemplateProcessing(
            single="<|begin|> $A", special_tokens=[("<|begin|>", 0)]
        )
    return tokenizer


def make_model(case: Case) -> LlamaForCausalLM:
    """Build random weights; norms and biases too, which would otherwise be ones and zeros."""
    torch.manual_seed(case.seed)
    config = LlamaConfig(
        **{
            "vocab_size": 384,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "max_position_embeddings": 256,
            "rms_norm_eps": 1e-2,  # large enough that a wrong one shows
            "initializer_range": 0.3,
            "bos_token_id": 0,
            "eos_token_id": 1,
            **case.config,
        }
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.uniform_(0.5, 1.5)
            elif name.endswith("bias"):
                weight.normal_(0.0, 0.3)
    return model.to(case.dtype)


def save(case: Case, folder: Path) -> None:
    """Write one checkpoint with its tokenizer and logits."""
    model = make_model(case)
    if case.generation:
        for key, value in case.generation.items():
            setattr(model.generation_config, key, value)
    model.save_pretrained(folder, max_shard_size=case.shard_bytes)
    if case.v4_config:
        rewrite_as_v4(folder / "config.json")
    tokenizer = make_tokenizer(case.splitter, HERE.parent / "eval.txt")
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    names = {"bos_token": "<|begin|>", "eos_token": "<|stop|>"}
    text = json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **names}, indent=1)
    (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")

    rng = np.random.default_rng(case.seed)
    tokens = rng.integers(4, 360, N_TOKENS)
    exact = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = exact(torch.from_numpy(tokens)[None]).logits[0].numpy()
    if logits.std() <= 1:
        raise SystemExit(f"{case.name}: logits spread only {logits.std():.2f}")
    rows = np.array(ROWS, np.int32)
    np.savez_compressed(
        folder / "logits.npz", tokens=tokens.astype(np.int32), rows=rows, logits=logits[rows]
    )
    n_bytes = sum(path.stat().st_size for path in folder.iterdir())
    if n_bytes > MAX_BYTES:
        raise SystemExit(f"{case.name}: {n_bytes} bytes, at most {MAX_BYTES} belong in the tree")
    print(f"{case.name}: {n_bytes} bytes, logit std {logits.std():.2f}")


def rewrite_as_v4(path: Path) -> None:
    """Write a configuration in the dialect of transformers 4."""
    config = json.loads(path.read_text(encoding="utf-8"))
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope["rope_theta"]
    config["rope_scaling"] = None
    del config["head_dim"]  # follows from hidden_size and num_attention_heads here
    config["torch_dtype"] = config.pop("dtype")
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Make every case anew."""
    for case in CASES:
        folder = HERE / case.name
        shutil.rmtree(folder, ignore_errors=True)
        save(case, folder)


if __name__ == "__main__":
    main()
