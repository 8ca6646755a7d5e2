"""Random models of middling size, one of each kind of memory that the estimate is held against.

They are made by the writer of the tiny test models, with larger numbers, a filled-up vocabulary and
quantised matrices of random codes: what they compute means nothing, what they take is what counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
from _shape_1b import tiny_models

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_SEED = 20261130
_BLOCK = 32
_BLOCK_BYTES = {"Q8_0": 34, "Q4_0": 18}
_MATRIX_VALUES = 1 << 14  # smaller tensors stay as the tiny models have them
_KEPT = ("conv1d", "ssm_a", "ssm_d", "norm", "gate_inp")  # no type but f32 computes there
_SCALE = np.float16(0.01)


class _Writer:
    """The writer of the tiny models with `n_vocab` tokens and matrices of one type."""

    def __init__(self, n_vocab: int, kind: str) -> None:
        self.module = tiny_models()
        tokens, types, self.merges = self.module.tokenizer()
        fill = [f"<unused{i}>" for i in range(n_vocab - len(tokens))]
        self.tokens = tokens[:-3] + fill + tokens[-3:]
        self.types = types[:-3] + [gguf.TokenType.UNUSED] * len(fill) + types[-3:]
        self.module.N_VOCAB = n_vocab
        self.kind = kind
        self.random = np.random.default_rng(_SEED)

    def model(self, *arguments: Any, **keys: Any) -> Any:
        """Return a model as the tiny ones are made, whose large tensors are only shapes yet."""
        writer = self

        class Model(self.module.Model):  # type: ignore[misc, name-defined]
            def t(self, name: str, *ne: int, **spread: Any) -> None:
                if writer.is_matrix(name, ne):
                    self.tensors.append((name, ne))
                else:
                    super().t(name, *ne, **spread)

        return Model(*arguments, **keys)

    def is_matrix(self, name: str, shape: tuple[int, ...]) -> bool:
        large = int(np.prod(shape)) >= _MATRIX_VALUES and len(shape) > 1
        return large and not shape[0] % _BLOCK and not any(part in name for part in _KEPT)

    def write(self, model: Any, path: Path) -> Path:
        """Write the model, tensor by tensor."""
        out = gguf.GGUFWriter(path, model.arch)
        out.add_name(model.name)
        for key, value in model.kvs:
            self._add(out, key, value)
        out.add_tokenizer_model("gpt2")
        out.add_tokenizer_pre("gpt-2")
        out.add_token_list(self.tokens)
        out.add_token_types(self.types)
        out.add_token_merges(self.merges)
        out.add_eos_token_id(len(self.tokens) - 1)
        out.add_add_bos_token(False)
        for name, data in model.tensors:
            if isinstance(data, np.ndarray):
                out.add_tensor(name, np.ascontiguousarray(data))
            else:
                raw_type = gguf.GGMLQuantizationType[self.kind]
                out.add_tensor(name, self._codes(data), raw_dtype=raw_type)
        out.write_header_to_file()
        out.write_kv_data_to_file()
        out.write_tensors_to_file()
        out.close()
        return path

    def _add(self, out: gguf.GGUFWriter, key: str, value: Any) -> None:
        if isinstance(value, bool):
            out.add_bool(key, value)
        elif isinstance(value, int):
            out.add_uint32(key, value)
        elif isinstance(value, float):
            out.add_float32(key, value)
        else:
            out.add_array(key, value)

    def _codes(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return random blocks, C order: the bytes of a row are the last dimension."""
        block_bytes = _BLOCK_BYTES[self.kind]
        n_blocks = int(np.prod(shape)) // _BLOCK
        blocks = np.frombuffer(self.random.bytes(n_blocks * block_bytes), np.uint8)
        blocks = blocks.reshape(n_blocks, block_bytes).copy()
        blocks[:, :2] = np.frombuffer(_SCALE.tobytes(), np.uint8)
        return blocks.reshape(*reversed(shape[1:]), shape[0] // _BLOCK * block_bytes)


def _plain(
    name: str,
    arch: str,
    sizes: tuple[int, ...],
    *,
    n_vocab: int,
    kind: str,
    tied: bool,
    **keys: Any,
) -> tuple[_Writer, Any]:
    """Attention over all heads' rows and a feed-forward block in each layer, or experts."""
    n_layers, embd, feed, heads, kv_heads, head = sizes
    writer = _Writer(n_vocab, kind)
    model = writer.model(
        name, arch, n_layers, embd, feed, **keys, **writer.module.heads(heads, kv_heads, head)
    )
    for i in range(n_layers):
        model.norm(f"blk.{i}.attn_norm.weight", embd)
        model.attn(i, heads, kv_heads, head, qk_norm=arch != "llama")
        model.norm(f"blk.{i}.ffn_norm.weight", embd)
        if "expert_count" in keys:
            model.moe(i, keys["expert_count"], keys["expert_feed_forward_length"])
        else:
            model.ffn(i)
        if arch == "gemma3":
            model.norm(f"blk.{i}.post_attention_norm.weight", embd)
            model.norm(f"blk.{i}.post_ffw_norm.weight", embd)
    model.head(tied=tied)
    return writer, model


def _dense() -> tuple[_Writer, Any]:
    sizes = (12, 768, 2048, 12, 12, 64)
    return _plain("dense", "llama", sizes, n_vocab=32000, kind="Q8_0", tied=True)


def _grouped() -> tuple[_Writer, Any]:
    sizes = (12, 1024, 2816, 16, 4, 64)
    return _plain("grouped", "llama", sizes, n_vocab=32000, kind="Q4_0", tied=False)


def _window() -> tuple[_Writer, Any]:
    sizes = (12, 640, 2048, 4, 1, 256)
    keys = {"attention__sliding_window": 512, "rope__freq_base_swa": 10000.0}
    return _plain("window", "gemma3", sizes, n_vocab=64000, kind="Q8_0", tied=True, **keys)


def _experts() -> tuple[_Writer, Any]:
    sizes = (8, 768, 2048, 12, 4, 64)
    keys = {"expert_count": 16, "expert_used_count": 4, "expert_feed_forward_length": 512}
    return _plain("experts", "qwen3moe", sizes, n_vocab=32000, kind="Q4_0", tied=False, **keys)


def _hybrid() -> tuple[_Writer, Any]:
    """Gated attention in every fourth layer, a delta net in the others."""
    n_layers, embd, heads, kv_heads, head, state, n_key, n_value = 8, 768, 8, 2, 128, 64, 8, 16
    writer = _Writer(32000, "Q8_0")
    keys = writer.module.ssm(4, state * n_value, state, n_value, n_key)
    model = writer.model(
        "hybrid",
        "qwen35",
        n_layers,
        embd,
        2048,
        full_attention_interval=4,
        rope__dimension_sections=[8, 8, 8, 0],
        **keys,
        **writer.module.heads(heads, kv_heads, head, rope=48),
    )
    for i in range(n_layers):
        model.norm(f"blk.{i}.attn_norm.weight", embd)
        model.norm(f"blk.{i}.post_attention_norm.weight", embd)
        if i % 4 == 3:
            model.attn(i, heads, kv_heads, head, qk_norm=True, q_mult=2)
        else:
            model.deltanet(i, state, n_key, n_value, 4, fused_ba=False)
        model.ffn(i)
    model.head()
    return writer, model


MODELS: dict[str, Callable[[], tuple[_Writer, Any]]] = {
    "dense": _dense,
    "grouped": _grouped,
    "window": _window,
    "hybrid": _hybrid,
    "experts": _experts,
}


def make(name: str, folder: Path) -> Path:
    """Write one of `MODELS` into a folder, unless it is there; return its path."""
    path = folder / f"random-{name}.gguf"
    if path.exists():
        return path
    writer, model = MODELS[name]()
    return writer.write(model, path.with_suffix(".partial")).rename(path)
