"""ggml's simple types in numpy: the same bytes as ggml's reference code.

Every step is done in float32 and rounded once, as C without fused multiply-add does; roundings are
ggml's, not numpy's.

Source: `quantize_row_*_ref` and `dequantize_row_*`, ggml-quants.c; `ggml_compute_fp32_to_*`,
ggml-impl.h.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from edgellm.kernels._casts import bf16_to_f32, f16_to_f32, f32_to_bf16

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

BLOCK: Final = 32
# Temporaries of a slab stay in the second-level cache, and memory stays bounded.
_SLAB_ELEMENTS: Final = 1 << 16


def quantize_rows(name: str, x: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Store rows in the type `name` of `QUANTIZE`.

    Args:
        name: the type's ggml name.
        x: shape (n_rows, n_per_row), C-contiguous, not empty; rows fill blocks.

    Returns:
        Shape (n_rows, bytes of a row).
    """
    flat, convert = x.reshape(-1), QUANTIZE[name]
    starts = range(0, flat.size, _SLAB_ELEMENTS)
    # 1 / scale may overflow and 0 * inf follow: both have an answer, in C as here.
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        parts = [convert(flat[i : i + _SLAB_ELEMENTS]) for i in starts]
    return np.concatenate(parts).reshape(x.shape[0], -1)


def dequantize_rows(name: str, blocks: NDArray[np.uint8], n: int) -> NDArray[np.float32]:
    """Expand rows of the type `name` of `DEQUANTIZE`.

    Args:
        name: the type's ggml name.
        blocks: shape (..., bytes of a row).
        n: elements of a row.

    Returns:
        Shape (..., n).
    """
    flat = np.ascontiguousarray(blocks).reshape(-1)
    with np.errstate(invalid="ignore"):  # an infinite scale times 0
        return DEQUANTIZE[name](flat).reshape(*blocks.shape[:-1], n)


def _quantize_f32(x: NDArray[np.float32]) -> NDArray[np.uint8]:
    return x.astype("<f4").view(np.uint8)


def _quantize_f16(x: NDArray[np.float32]) -> NDArray[np.uint8]:
    return _to_f16(x).view(np.uint8)


def _quantize_bf16(x: NDArray[np.float32]) -> NDArray[np.uint8]:
    return f32_to_bf16(x).astype("<u2", copy=False).view(np.uint8)


def _quantize_q8_0(x: NDArray[np.float32]) -> NDArray[np.uint8]:
    groups = x.reshape(-1, BLOCK)
    scale = np.abs(groups).max(axis=1, keepdims=True) / np.float32(127)
    scaled = groups * _inverse(scale)
    # roundf goes away from zero at .5, numpy to even; trunc(x + .5) would be wrong below .5.
    whole = np.trunc(scaled)
    away = np.abs(scaled - whole) >= np.float32(0.5)
    codes = whole + np.where(away, np.copysign(np.float32(1), scaled), np.float32(0))
    out = np.empty((groups.shape[0], 34), np.uint8)
    out[:, :2] = _to_f16(scale).view(np.uint8)
    out[:, 2:] = _to_int8(codes).view(np.uint8)
    return out.reshape(-1)


def _quantize_q4_0(x: NDArray[np.float32]) -> NDArray[np.uint8]:
    groups = x.reshape(-1, BLOCK)
    size = np.abs(groups)
    at = size.argmax(axis=1)[:, None]  # the first of equals decides the sign, as in ggml
    extreme = np.take_along_axis(groups, at, axis=1)
    # A block of zeros has extreme +0 whatever the zeros' signs, hence scale -0.
    extreme = np.where(np.take_along_axis(size, at, axis=1) > 0, extreme, np.float32(0))
    scale = extreme / np.float32(-8)
    shifted = groups * _inverse(scale) + np.float32(8.5)
    codes = np.minimum(_to_int8(np.trunc(shifted)).view(np.uint8), 15)
    out = np.empty((groups.shape[0], 18), np.uint8)
    out[:, :2] = _to_f16(scale).view(np.uint8)
    out[:, 2:] = codes[:, : BLOCK // 2] | (codes[:, BLOCK // 2 :] << 4)
    return out.reshape(-1)


def _dequantize_f32(flat: NDArray[np.uint8]) -> NDArray[np.float32]:
    return flat.view("<f4").astype(np.float32, copy=False)


def _dequantize_f16(flat: NDArray[np.uint8]) -> NDArray[np.float32]:
    return f16_to_f32(flat.view("<u2").astype(np.uint16, copy=False))


def _dequantize_bf16(flat: NDArray[np.uint8]) -> NDArray[np.float32]:
    return bf16_to_f32(flat.view("<u2").astype(np.uint16, copy=False))


def _inverse(scale: NDArray[np.float32]) -> NDArray[np.float32]:
    """Give 1 / scale, and 0 for 0; infinite below 2^-128, as in C."""
    one = np.float32(1)
    return np.where(scale != 0, one / np.where(scale != 0, scale, one), np.float32(0))


def _to_f16(x: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round to the nearest half, ties to even; every NaN becomes 0x7E00 with its sign.

    `f32_to_f16` is no help: it keeps a NaN's first bits, as hardware does, and ggml's code does not.
    """
    halves = x.astype("<f2").view("<u2")
    is_nan = np.isnan(x)
    if is_nan.any():
        halves[is_nan] = np.where(np.signbit(x[is_nan]), 0xFE00, 0x7E00)
    return halves


def _to_int8(whole: NDArray[np.float32]) -> NDArray[np.int8]:
    """Narrow whole numbers; infinities and NaN, undefined in C, become 0 as x86 has it."""
    finite = np.where(np.isfinite(whole), whole, np.float32(0))
    return finite.astype(np.int32).astype(np.int8)


QUANTIZE: Final[Mapping[str, Callable[[NDArray[np.float32]], NDArray[np.uint8]]]] = {
    "F32": _quantize_f32,
    "F16": _quantize_f16,
    "BF16": _quantize_bf16,
    "Q8_0": _quantize_q8_0,
    "Q4_0": _quantize_q4_0,
}
DEQUANTIZE: Final[Mapping[str, Callable[[NDArray[np.uint8]], NDArray[np.float32]]]] = {
    "F32": _dequantize_f32,
    "F16": _dequantize_f16,
    "BF16": _dequantize_bf16,
}
