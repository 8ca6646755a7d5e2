"""The KV codec: 16-bit floats packed to 8, 6, 5 or 4 bits in groups, and unpacked again.

K is packed by channel and V by token, as in KIVI (Liu et al. 2024, arXiv:2402.02750): channels of K
keep their size from token to token, those of V do not. `README.md` beside this file is the format.
Nothing reaches an implementation unchecked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from edgellm.kernels import _choice, _codec_numpy
from edgellm.kernels._numpy import check_matrix, rows_follow

if TYPE_CHECKING:
    from numpy.typing import NDArray

Axis = Literal["channels", "tokens"]
KNOWN_BITS: Final = (8, 6, 5, 4)
_GROUPED: Final = {"channels": 0, "tokens": 1}


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A packed matrix of T tokens and C channels. The arrays may be read-only views into a file.

    Attributes:
        codes: shape (T, ceil(C / 64) * 8 * bits), uint8.
        scale: float16 as uint16; shape (ceil(T / group), C) by channel, (T, ceil(C / group)) by
            token.
        minimum: like `scale`; None at 8 bits, which are signed and need none.
    """

    codes: NDArray[np.uint8]
    scale: NDArray[np.uint16]
    minimum: NDArray[np.uint16] | None


@dataclass(frozen=True, slots=True)
class PackedShapes:
    """Shapes of a `Packed`'s arrays; `minimum` is None where there is none."""

    codes: tuple[int, int]
    scale: tuple[int, int]
    minimum: tuple[int, int] | None


def packed_shapes(
    n_tokens: int, n_channels: int, *, axis: Axis, bits: int, group: int
) -> PackedShapes:
    """Give the shapes that packing by `axis` makes, before there is data; in Python's integers.

    Raises:
        ValueError: a count is negative, `group` is below 1, `axis` or `bits` is unknown.
    """
    if axis not in _GROUPED:
        raise ValueError(f"axis is {axis!r}; use 'channels' (K) or 'tokens' (V)")
    if bits not in KNOWN_BITS:
        raise ValueError(f"bits is {bits}; use one of {', '.join(map(str, KNOWN_BITS))}")
    if group < 1 or n_tokens < 0 or n_channels < 0:
        raise ValueError(f"{n_tokens} tokens, {n_channels} channels in groups of {group}")
    n_groups = -(-(n_tokens if axis == "channels" else n_channels) // group)
    scale = (n_groups, n_channels) if axis == "channels" else (n_tokens, n_groups)
    codes = (n_tokens, -(-n_channels // _codec_numpy.BLOCK) * 8 * bits)
    return PackedShapes(codes, scale, None if bits == 8 else scale)


def pack_channels(x: NDArray[np.uint16], *, bits: int, group: int) -> Packed:
    """Pack with one scale for each channel and `group` tokens: K.

    Infinities and NaNs count as zero. No finite value comes back further off than half a scale,
    float32's rounding and one float16 rounding, or infinite.

    Args:
        x: float16 as uint16, shape (T, C), any strides, may be read-only.
        bits: 8 (signed, no minimum), 6, 5 or 4.
        group: tokens that share a scale; the last group may be shorter.

    Returns:
        New arrays; bit-equal on every implementation.

    Raises:
        TypeError: `x` is not a uint16 array.
        ValueError: `x` has not two dimensions, `bits` is unknown, `group` is below 1.
        UsageError: a variable of `edgellm.kernels` has a value that cannot be used.
    """
    return _pack(x, "channels", bits, group)


def pack_tokens(x: NDArray[np.uint16], *, bits: int, group: int) -> Packed:
    """Pack with one scale for each token and `group` channels: V. Otherwise as `pack_channels`."""
    return _pack(x, "tokens", bits, group)


def unpack_channels(
    packed: Packed,
    n_channels: int,
    *,
    bits: int,
    group: int,
    out: NDArray[np.uint16] | None = None,
) -> NDArray[np.uint16]:
    """Unpack what `pack_channels` packed: `float16(scale * code + minimum)`.

    Any bytes have a result: a scale or minimum that is not finite counts as zero, and a sum outside
    float16's range, which packing never makes, is infinite.

    Args:
        packed: the arrays, read-only or not; T is the number of rows of `codes`.
        n_channels: C, which `codes` alone do not tell.
        bits: as it was packed.
        group: as it was packed.
        out: where to write, shape (T, C), rows or columns with elements side by side, so that a
            transposed layout is `out=buffer.T`; made when None. Shares no memory with `packed`.

    Returns:
        `out`, float16 as uint16; C-contiguous when it was made here. Bit-equal on every
        implementation.

    Raises:
        TypeError: an array has another dtype.
        ValueError: a shape or a stride does not fit, `bits` is unknown, `group` is below 1.
        UsageError: a variable of `edgellm.kernels` has a value that cannot be used.
    """
    return _unpack(packed, "channels", n_channels, bits, group, out)


def unpack_tokens(
    packed: Packed,
    n_channels: int,
    *,
    bits: int,
    group: int,
    out: NDArray[np.uint16] | None = None,
) -> NDArray[np.uint16]:
    """Unpack what `pack_tokens` packed; otherwise as `unpack_channels`."""
    return _unpack(packed, "tokens", n_channels, bits, group, out)


def _pack(x: NDArray[np.uint16], axis: Axis, bits: int, group: int) -> Packed:
    check_matrix("x", x)
    shapes = packed_shapes(*x.shape, axis=axis, bits=bits, group=group)
    group = min(group, max(*x.shape, 1))
    native = _choice.native()
    if native is None:
        return Packed(*_codec_numpy.pack(x, _GROUPED[axis], bits, group))
    minimum = None if shapes.minimum is None else np.empty(shapes.minimum, np.uint16)
    packed = Packed(np.empty(shapes.codes, np.uint8), np.empty(shapes.scale, np.uint16), minimum)
    native.pack(x, _GROUPED[axis], bits, group, packed.codes, packed.scale, packed.minimum)
    return packed


def _unpack(
    packed: Packed,
    axis: Axis,
    n_channels: int,
    bits: int,
    group: int,
    out: NDArray[np.uint16] | None,
) -> NDArray[np.uint16]:
    codes, scale, minimum = packed.codes, packed.scale, packed.minimum
    check_matrix("codes", codes, np.uint8)
    shapes = packed_shapes(codes.shape[0], n_channels, axis=axis, bits=bits, group=group)
    _check_packed(packed, bits, shapes)
    if out is None:
        out = np.empty((codes.shape[0], n_channels), np.uint16)
    else:
        _check_out(out, (codes.shape[0], n_channels), packed)
    group = min(group, max(*out.shape, 1))
    native = _choice.native()
    unpack = _codec_numpy.unpack if native is None else native.unpack
    unpack(codes, scale, minimum, _GROUPED[axis], bits, group, out)
    return out


def _check_packed(packed: Packed, bits: int, shapes: PackedShapes) -> None:
    minimum = packed.minimum
    _check_shape("codes", packed.codes.shape, shapes.codes)
    check_matrix("scale", packed.scale)
    _check_shape("scale", packed.scale.shape, shapes.scale)
    if (minimum is None) != (shapes.minimum is None):
        raise ValueError(f"{bits} bits {'need a' if minimum is None else 'have no'} minimum")
    if minimum is not None:
        check_matrix("minimum", minimum)
        _check_shape("minimum", minimum.shape, shapes.scale)


def _check_shape(name: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if shape != expected:
        raise ValueError(f"{name} has shape {shape}; the counts given need {expected}")


def _check_out(out: NDArray[np.uint16], shape: tuple[int, int], packed: Packed) -> None:
    check_matrix("out", out)
    _check_shape("out", out.shape, shape)
    if not out.flags.writeable:
        raise ValueError("out is read-only")
    if out.size and not (rows_follow(out) or rows_follow(out.T)):
        raise ValueError(
            f"out has strides {out.strides}; its rows or its columns must hold elements side by "
            "side, one after another, gaps allowed"
        )
    arrays = (packed.codes, packed.scale, packed.minimum)
    if any(array is not None and np.may_share_memory(out, array) for array in arrays):
        raise ValueError("out shares memory with what is unpacked")
