"""Small LoRA adapters with random weights for a GGUF model, and the model with them merged in."""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from gguf_edits import F32, STRING, Gguf, Tensor, parse

from edgellm.formats.gguf import read_header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from numpy.typing import NDArray

ALPHA = "adapter.lora.alpha"


def adapter(
    model: Path,
    *,
    endings: tuple[str, ...] = ("attn_q.weight", "attn_v.weight", "ffn_down.weight"),
    rank: int = 4,
    alpha: float = 8.0,
    kind: str = "f32",
    size: float = 0.1,
    seed: int = 0,
) -> Gguf:
    """Return an adapter to the tensors of `model` whose names end so.

    `kind` is `f32` or `f16`; `size` is the standard deviation of A and of B.
    """
    header = read_header(model)
    tensors: list[Tensor] = []
    for tensor in header.tensors:
        if tensor.name.endswith(endings):
            n_in, n_out, *experts = tensor.shape
            for end, shape in (("a", (n_in, rank)), ("b", (rank, n_out))):
                name = f"{tensor.name}.lora_{end}"
                tensors.append(_random(name, (*shape, *experts), kind, size, seed))
    architecture = str(header.metadata["general.architecture"])
    pairs: dict[str, tuple[int, Any]] = {
        "general.type": (STRING, b"adapter"),
        "general.architecture": (STRING, architecture.encode()),
        "adapter.type": (STRING, b"lora"),
        ALPHA: (F32, alpha),
    }
    return Gguf(pairs, tuple(tensors))


def _random(name: str, shape: tuple[int, ...], kind: str, size: float, seed: int) -> Tensor:
    random = np.random.default_rng((seed, zlib.crc32(name.encode())))
    values = random.normal(0, size, shape[::-1]).astype({"f32": "<f4", "f16": "<f2"}[kind])
    return Tensor(name, shape, kind, values.tobytes())


def values(tensor: Tensor) -> NDArray[np.float32]:
    """Return an f32 or f16 tensor as an array, numpy's order of dimensions."""
    flat = np.frombuffer(tensor.data, {"f32": "<f4", "f16": "<f2"}[tensor.kind])
    return flat.reshape(tensor.shape[::-1]).astype(np.float32)


def merged(model: Path, adapters: Iterable[tuple[Gguf, float]]) -> Gguf:
    """Return an F32 model with W + scale * alpha / rank * B A in the place of each W, as PEFT merges."""
    whole = parse(model)
    for made, scale in adapters:
        there = {tensor.name: tensor for tensor in made.tensors}
        for name in sorted({name.rpartition(".lora_")[0] for name in there}):
            a, b = (values(there[f"{name}.lora_{end}"]) for end in "ab")
            rank = b.shape[-1]
            factor = scale * made.pairs[ALPHA][1] / rank
            whole = whole.with_tensor(name, _adding(factor * (b @ a)))
    return whole


def _adding(delta: NDArray[np.float32]) -> Callable[[Tensor], Tensor]:
    def change(tensor: Tensor) -> Tensor:
        made = (values(tensor) + delta).astype("<f4")
        return replace(tensor, data=made.tobytes())

    return change
