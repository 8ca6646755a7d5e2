"""Write what numpy makes of many inputs for `ladder --check FILE`; native/bench/golden.cpp reads it.

The golden files of tests/data/kernels stand first: they were made once and say what a packed file
means for ever. The others are made here by the definition, with the native library out of the way.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest

from edgellm import kernels
from edgellm.kernels import _choice

GOLDEN = Path(__file__).parents[2] / "data" / "kernels"
GROUP = 32  # of the golden files
BITS = (8, 6, 5, 4)
CODEC: dict[str, Any] = {
    "channels": (0, kernels.pack_channels, kernels.unpack_channels),
    "tokens": (1, kernels.pack_tokens, kernels.unpack_tokens),
}
_UNPACKED_ONLY, _TRANSPOSE, _FIRST_CAST = 2, 4, 5
_CASTS = ("f32_to_f16", "f16_to_f32", "f32_to_bf16", "bf16_to_f32", "bf16_to_f16")
_SHAPES = ((1, 1), (7, 63), (9, 208), (33, 80), (65, 72), (2, 1088))
_LOW = (0, 1, 0xFFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001)  # where rounding turns


def write_cases(path: Path) -> int:
    """Write all cases, and return how many they are."""
    with pytest.MonkeyPatch.context() as patch, path.open("wb") as file:
        patch.setattr(_choice, "native", lambda: None)
        return _golden(file) + _codec(file) + _others(file)


def _case(
    file: BinaryIO, kind: int, shape: tuple[int, ...], *arrays: Any, bits: int = 0, group: int = 1
) -> int:
    file.write(struct.pack("<6I", kind, *shape, bits, group, 0))
    for array in arrays:
        if array is not None:
            file.write(np.ascontiguousarray(array).tobytes())
    return 1


def _golden(file: BinaryIO) -> int:
    n = 0
    for axis, (kind, *_) in CODEC.items():
        for bits in BITS:
            with np.load(GOLDEN / f"{axis}-{bits}.npz") as arrays:
                found = dict(arrays)
            ordered = [found.get(name) for name in ("x", "codes", "scale", "minimum", "y")]
            n += _case(file, kind, found["x"].shape, *ordered, bits=bits, group=GROUP)
    return n


def _codec(file: BinaryIO) -> int:
    """Values of every kind, and codes and scales of any bits, as a broken file may hold them."""
    rng = np.random.default_rng(7)
    n = 0
    for shape in _SHAPES:
        ones = rng.standard_normal(shape).astype(np.float16).view(np.uint16)
        noise = rng.integers(0, 1 << 16, shape, dtype=np.uint16)
        for kind, pack, unpack in CODEC.values():
            for bits in BITS:
                for x, group in ((ones, 32), (ones, 64), (noise, 64), (noise, 48)):
                    packed = pack(x, bits=bits, group=group)
                    y = unpack(packed, shape[1], bits=bits, group=group)
                    parts = (packed.codes, packed.scale, packed.minimum)
                    n += _case(file, kind, shape, x, *parts, y, bits=bits, group=group)
                    broken = kernels.Packed(
                        *(None if a is None else _any_bits(rng, a) for a in parts)
                    )
                    y = unpack(broken, shape[1], bits=bits, group=group)
                    parts = (broken.codes, broken.scale, broken.minimum)
                    only = kind + _UNPACKED_ONLY
                    n += _case(file, only, shape, *parts, y, bits=bits, group=group)
    return n


def _any_bits(rng: np.random.Generator, like: np.ndarray) -> np.ndarray:
    return rng.integers(0, np.iinfo(like.dtype).max + 1, like.shape, dtype=like.dtype)


def _others(file: BinaryIO) -> int:
    halves = np.arange(1 << 16, dtype=np.uint16)
    floats = (halves.astype(np.uint32)[:, None] << 16 | np.array(_LOW, np.uint32)).view(np.float32)
    n = 0
    for shape in _SHAPES:
        x = halves[: shape[0] * shape[1]].reshape(shape)
        n += _case(file, _TRANSPOSE, shape, x, x.T)
    for i, name in enumerate(_CASTS):
        x = floats if name.startswith("f32") else halves[:, None]
        n += _case(file, _FIRST_CAST + i, x.shape, x, getattr(kernels, name)(x))
    return n
