"""KV codec kernels: numpy is the definition, the native library's rows give the same bits faster.

Which one runs is decided once, at first use: the native library when it is there and fits, else
numpy. `EDGELLM_KERNELS=native` makes a missing library an error, `EDGELLM_KERNELS=numpy` leaves it
out, `EDGELLM_ISA` forces one row of it, `EDGELLM_NATIVE_LIB` names another build of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgellm.kernels import _choice, _numpy
from edgellm.kernels._casts import bf16_to_f16, bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16
from edgellm.kernels._codec import (
    Axis,
    Packed,
    PackedShapes,
    pack_channels,
    pack_tokens,
    packed_shapes,
    unpack_channels,
    unpack_tokens,
)
from edgellm.kernels._filling import Filling, PackedRun, filling

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "Axis",
    "Filling",
    "Packed",
    "PackedRun",
    "PackedShapes",
    "available_isas",
    "bf16_to_f16",
    "bf16_to_f32",
    "f16_to_f32",
    "f32_to_bf16",
    "f32_to_f16",
    "filling",
    "isa",
    "pack_channels",
    "pack_tokens",
    "packed_shapes",
    "transpose_f16",
    "unpack_channels",
    "unpack_tokens",
]


def isa() -> str:
    """Name what runs: `avx512`, `avx2`, `neon`, `scalar` (native rows), or `numpy`.

    Raises:
        UsageError: one of the variables above has a value that cannot be used.
    """
    native = _choice.native()
    return "numpy" if native is None else native.isa()


def available_isas() -> tuple[str, ...]:
    """Name every implementation that can run here, best first; the last one is always `numpy`.

    Raises:
        UsageError: one of the variables above has a value that cannot be used.
    """
    native = _choice.native()
    return ("numpy",) if native is None else (*native.isas(), "numpy")


def transpose_f16(
    x: NDArray[np.uint16], out: NDArray[np.uint16] | None = None
) -> NDArray[np.uint16]:
    """Turn [token][channel] into [channel][token], or back: 16-bit elements, moved and not read.

    Args:
        x: shape (n, m), any strides, may be read-only; float16 and bfloat16 come as
            `x.view(np.uint16)`.
        out: where to write, shape (m, n), with elements of a row side by side; made when None.
            Must not share memory with `x`.

    Returns:
        `out`; C-contiguous when it was made here. Bit-equal on every implementation.

    Raises:
        TypeError: `x` or `out` is not a uint16 array.
        ValueError: a shape or a stride of `out` does not fit, or the two share memory.
        UsageError: one of the variables above has a value that cannot be used.
    """
    out = _numpy.check_transpose(x, out)
    native = _choice.native()
    if native is None:
        _numpy.transpose_f16(x, out)
    else:
        native.transpose_f16(x, out)
    return out
