"""A model small enough to be written in place: one layer of random weights that says nothing sensible.

Its vocabulary is the 256 bytes, so any text is a prompt.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

N_CTX: Final = 2048
_N_EMBD, _N_HEADS, _N_FF = 64, 2, 128
_SPECIAL: Final = ("<|im_start|>", "<|im_end|>")
_TEMPLATE: Final = (
    "{% for m in messages %}<|im_start|>{{ m['role'] + '\n' + m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_tiny_model(path: Path) -> None:
    """Write a GGUF file of about 300 KB; the same bytes every time."""
    import gguf

    alphabet = _byte_letters()
    n_vocab = len(alphabet) + len(_SPECIAL)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("edgellm-prove")
    writer.add_context_length(N_CTX)
    writer.add_block_count(1)
    writer.add_embedding_length(_N_EMBD)
    writer.add_feed_forward_length(_N_FF)
    writer.add_head_count(_N_HEADS)
    writer.add_head_count_kv(_N_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(_N_EMBD // _N_HEADS)
    writer.add_vocab_size(n_vocab)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*alphabet, *_SPECIAL])
    normal, control = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL
    writer.add_token_types([normal] * len(alphabet) + [control] * len(_SPECIAL))
    writer.add_token_merges([f"{alphabet[0]} {alphabet[0]}"])  # of no token: none is ever made
    writer.add_bos_token_id(n_vocab - 2)
    writer.add_eos_token_id(n_vocab - 1)
    writer.add_add_bos_token(value=False)
    writer.add_chat_template(_TEMPLATE)
    for name, values in _weights(n_vocab).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _weights(n_vocab: int) -> dict[str, NDArray[np.float32]]:
    """Return the tensors of a Llama with one layer; shapes are (rows, columns), tied output."""
    import numpy as np

    random = np.random.default_rng(5)
    shapes = {
        "token_embd": (n_vocab, _N_EMBD),
        **{f"blk.0.attn_{name}": (_N_EMBD, _N_EMBD) for name in ("q", "k", "v", "output")},
        "blk.0.ffn_gate": (_N_FF, _N_EMBD),
        "blk.0.ffn_up": (_N_FF, _N_EMBD),
        "blk.0.ffn_down": (_N_EMBD, _N_FF),
    }
    made = {
        f"{name}.weight": (random.standard_normal(shape) / math.sqrt(shape[1])).astype(np.float32)
        for name, shape in shapes.items()
    }
    norms = ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm")
    return made | {f"{name}.weight": np.ones(_N_EMBD, np.float32) for name in norms}


def _byte_letters() -> list[str]:
    """Return a letter for each byte, as byte-level tokenizers write them (GPT-2's encoder.py)."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in shown else next(others)) for byte in range(256)]
