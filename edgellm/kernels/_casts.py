"""Casts between float32, float16 and bfloat16, whose bits do not depend on who computes them.

They round to nearest, ties to even, and keep float16's denormals. A
NaN stays a NaN with its sign and its first payload bits, made quiet (what x86 and ARM do in
hardware); `bf16_to_f32` moves bits and keeps a signalling NaN as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from edgellm.kernels import _choice

if TYPE_CHECKING:
    from numpy.typing import NDArray

_Out = TypeVar("_Out", bound=np.generic)


def f32_to_f16(x: NDArray[np.float32], out: NDArray[np.uint16] | None = None) -> NDArray[np.uint16]:
    """Round float32 to float16; 65520 and more become infinite.

    Args:
        x: any shape and strides, may be read-only.
        out: C-contiguous, the shape of `x`, sharing no memory with it; made when None.

    Returns:
        `out`: float16 as uint16.

    Raises:
        TypeError: `x` or `out` has another dtype.
        ValueError: `out` does not fit.
    """
    out = _checked(x, np.float32, out, np.uint16)
    if (native := _choice.native()) is not None:
        native.cast("f32_f16", x, out)
        return out
    with np.errstate(all="ignore"):
        np.copyto(out, x.astype(np.float16).view(np.uint16))
    bits = np.ascontiguousarray(x).view(np.uint32).reshape(x.shape)
    quiet = (bits >> 16 & 0x8000) | 0x7E00 | (bits >> 13 & 0x3FF)
    np.copyto(out, quiet.astype(np.uint16), where=np.isnan(x))
    return out


def f16_to_f32(
    x: NDArray[np.uint16], out: NDArray[np.float32] | None = None
) -> NDArray[np.float32]:
    """Widen float16 (as uint16) to float32, exactly. Arguments and errors as in `f32_to_f16`."""
    out = _checked(x, np.uint16, out, np.float32)
    if (native := _choice.native()) is not None:
        native.cast("f16_f32", x, out)
        return out
    halves = np.ascontiguousarray(x).view(np.float16).reshape(x.shape)
    np.copyto(out, halves)
    bits = x.astype(np.uint32)
    quiet = (bits & 0x8000) << 16 | 0x7FC00000 | (bits & 0x3FF) << 13
    np.copyto(out.view(np.uint32), quiet, where=np.isnan(halves))
    return out


def f32_to_bf16(
    x: NDArray[np.float32], out: NDArray[np.uint16] | None = None
) -> NDArray[np.uint16]:
    """Round float32 to bfloat16 (as uint16). Arguments and errors as in `f32_to_f16`."""
    out = _checked(x, np.float32, out, np.uint16)
    if (native := _choice.native()) is not None:
        native.cast("f32_bf16", x, out)
        return out
    bits = np.ascontiguousarray(x).view(np.uint32).reshape(x.shape)
    rounded = bits + (0x7FFF + (bits >> 16 & 1)) >> 16
    np.copyto(out, np.where(np.isnan(x), bits >> 16 | 0x40, rounded).astype(np.uint16))
    return out


def bf16_to_f32(
    x: NDArray[np.uint16], out: NDArray[np.float32] | None = None
) -> NDArray[np.float32]:
    """Widen bfloat16 (as uint16) to float32, bit by bit. Arguments and errors as in `f32_to_f16`."""
    out = _checked(x, np.uint16, out, np.float32)
    if (native := _choice.native()) is not None:
        native.cast("bf16_f32", x, out)
        return out
    np.left_shift(x, 16, out=out.view(np.uint32), dtype=np.uint32)
    return out


def bf16_to_f16(x: NDArray[np.uint16], out: NDArray[np.uint16] | None = None) -> NDArray[np.uint16]:
    """Round bfloat16 to float16, both as uint16. Arguments and errors as in `f32_to_f16`."""
    out = _checked(x, np.uint16, out, np.uint16)
    if (native := _choice.native()) is not None:
        native.cast("bf16_f16", x, out)
        return out
    return f32_to_f16(bf16_to_f32(x), out)


def _checked(
    x: NDArray[Any], dtype: type[np.generic], out: NDArray[_Out] | None, out_dtype: type[_Out]
) -> NDArray[_Out]:
    """Check both arrays of a cast, and make `out` if None."""
    _check_dtype("x", x, dtype)
    if out is None:
        return np.empty(x.shape, out_dtype)
    _check_dtype("out", out, out_dtype)
    if out.shape != x.shape or not out.flags.c_contiguous or not out.flags.writeable:
        raise ValueError(f"out must be writeable, C-contiguous, of shape {x.shape}")
    if np.may_share_memory(x, out):
        raise ValueError("x and out share memory")
    return out


def _check_dtype(name: str, array: NDArray[Any], dtype: type[np.generic]) -> None:
    if not isinstance(array, np.ndarray) or array.dtype != dtype:
        kind = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        raise TypeError(f"{name} must be an array of {np.dtype(dtype).name}, not {kind}")
