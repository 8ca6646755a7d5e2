"""A random model of the shape of Llama-3.2-1B, for figures that a small model cannot give.

16 layers, d 2048, ff 8192, 32 query heads over 8 KV heads of 64: keys and values take 64 KiB a token in
f16. Weights are Q4_0 of random codes with one scale; the vocabulary is the 512 tokens of the tiny test
models, so the embedding is small and all else is full size (973 M weights, 548 MB). It writes noise.
"""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from types import ModuleType

import gguf
import numpy as np

N_LAYERS, N_EMBD, N_FF, N_HEADS, N_KV_HEADS, HEAD = 16, 2048, 8192, 32, 8, 64
N_CTX_TRAIN = 8192
STATE_BYTES_PER_TOKEN = N_LAYERS * 2 * N_KV_HEADS * HEAD * 2
_BLOCK, _BLOCK_BYTES = 32, 18
_CODE_SPREAD = 4.61  # standard deviation of a number from -8 to 7, each as likely
_SEED = 20261130


def tiny_models() -> ModuleType:
    """Return the program that makes the tiny test models, as a module."""
    path = Path(__file__).parents[1] / "data" / "models" / "make_models.py"
    spec = importlib.util.spec_from_file_location("make_models", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def shapes() -> dict[str, tuple[int, int]]:
    """Return every matrix: name to (rows, columns)."""
    found = {"token_embd.weight": (512, N_EMBD)}
    for layer in range(N_LAYERS):
        of_layer = {
            "attn_q": (N_HEADS * HEAD, N_EMBD),
            "attn_k": (N_KV_HEADS * HEAD, N_EMBD),
            "attn_v": (N_KV_HEADS * HEAD, N_EMBD),
            "attn_output": (N_EMBD, N_HEADS * HEAD),
            "ffn_gate": (N_FF, N_EMBD),
            "ffn_up": (N_FF, N_EMBD),
            "ffn_down": (N_EMBD, N_FF),
        }
        found |= {f"blk.{layer}.{name}.weight": shape for name, shape in of_layer.items()}
    return found


def make(path: Path) -> Path:
    """Write the model, tensor by tensor, unless it is there; return its path."""
    if path.exists():
        return path
    partial = path.with_suffix(".partial")
    writer = gguf.GGUFWriter(partial, "llama")
    _describe(writer)
    norms = [f"blk.{n}.{kind}_norm.weight" for n in range(N_LAYERS) for kind in ("attn", "ffn")]
    norms.append("output_norm.weight")
    for name in norms:
        writer.add_tensor(name, np.ones(N_EMBD, np.float32))
    random = np.random.default_rng(_SEED)
    for name, (n_rows, n_columns) in shapes().items():
        writer.add_tensor(
            name, _blocks(random, n_rows, n_columns), raw_dtype=gguf.GGMLQuantizationType.Q4_0
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return partial.rename(path)


def _describe(writer: gguf.GGUFWriter) -> None:
    tokens, types, merges = tiny_models().tokenizer()
    writer.add_name("random-1b-shape")
    writer.add_context_length(N_CTX_TRAIN)
    writer.add_block_count(N_LAYERS)
    writer.add_embedding_length(N_EMBD)
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(N_HEADS)
    writer.add_head_count_kv(N_KV_HEADS)
    writer.add_rope_dimension_count(HEAD)
    writer.add_rope_freq_base(500_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(len(tokens) - 3)
    writer.add_eos_token_id(len(tokens) - 1)
    writer.add_add_bos_token(False)
    writer.add_chat_template(tiny_models().CHAT)


def _blocks(random: np.random.Generator, n_rows: int, n_columns: int) -> np.ndarray:
    """Return rows of Q4_0 blocks, shape (n_rows, bytes of a row): a scale in f16, then 32 codes."""
    n_blocks = n_rows * n_columns // _BLOCK
    blocks = np.empty((n_blocks, _BLOCK_BYTES), np.uint8)
    scale = np.float16(1 / math.sqrt(n_columns) / _CODE_SPREAD)
    blocks[:, :2] = np.frombuffer(scale.tobytes(), np.uint8)
    blocks[:, 2:] = np.frombuffer(random.bytes(n_blocks * 16), np.uint8).reshape(-1, 16)
    return blocks.reshape(n_rows, -1)
