"""The definition of the KV codec, in numpy: what every native row must give, bit for bit.

Arithmetic is float32, one rounding an operation, to nearest even; `README.md` beside this file has
the rules and the layout byte by byte. Every input of every shape has a result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

BLOCK: Final = 64
_LARGEST_F16: Final = np.float32(65504)


def pack(
    x: NDArray[np.uint16], axis: int, bits: int, group: int
) -> tuple[NDArray[np.uint8], NDArray[np.uint16], NDArray[np.uint16] | None]:
    """Give codes, scale and minimum of `x`; groups lie along `axis` (0 tokens, 1 channels)."""
    values = _finite(x)
    shape = list(x.shape)
    shape[axis] = -(-shape[axis] // group)
    scale = np.zeros(shape, np.uint16)
    minimum = None if bits == 8 else np.zeros(shape, np.uint16)
    codes = np.zeros(x.shape, np.uint8)
    for index in range(shape[axis]):
        at: list[int | slice] = [slice(None), slice(None)]
        span = list(at)
        at[axis], span[axis] = index, slice(index * group, (index + 1) * group)
        one, many = tuple(at), tuple(span)
        codes[many], scale[one], low = _quantise(values[many], axis, bits)
        if minimum is not None:
            minimum[one] = low
    return _to_planes(codes, bits), scale, minimum


def unpack(
    codes: NDArray[np.uint8],
    scale: NDArray[np.uint16],
    minimum: NDArray[np.uint16] | None,
    axis: int,
    bits: int,
    group: int,
    out: NDArray[np.uint16],
) -> None:
    """Write `float16(scale * code + minimum)`; the product is exact, the sum rounds to float32.

    `out` is infinite where the result leaves float16's range, which what `pack` gave never does.
    """
    n = out.shape[axis]
    values = _from_planes(codes, bits, out.shape[1]).astype(np.float32)
    with np.errstate(all="ignore"):
        values *= np.repeat(_finite(scale), group, axis)[_first(n, axis)]
        if minimum is not None:
            values += np.repeat(_finite(minimum), group, axis)[_first(n, axis)]
        np.copyto(out, _f16(values))


def _quantise(
    values: NDArray[np.float32], axis: int, bits: int
) -> tuple[NDArray[np.uint8], NDArray[np.uint16], NDArray[np.uint16]]:
    """Quantise one slab of groups, which all lie along `axis` from end to end."""
    zero = np.float32(0)
    if bits == 8:
        n_steps = np.float32(127)
        reach = np.abs(values).max(axis)
        low = np.zeros_like(reach)
    else:
        n_steps = np.float32((1 << bits) - 1)
        low = values.min(axis) + zero  # -0 becomes 0
        reach = (values.max(axis) - low) + zero
    scale = _scale(reach, low, n_steps)
    step = _f32(scale)
    inverse = np.divide(np.float32(1), step, out=np.zeros_like(step), where=step > 0)
    above = values - np.expand_dims(low, axis)
    codes = np.rint(above * np.expand_dims(inverse, axis))
    return codes.astype(np.int8).view(np.uint8), scale, _f16(low)


def _scale(
    reach: NDArray[np.float32], low: NDArray[np.float32], n_steps: np.float32
) -> NDArray[np.uint16]:
    """Give the smallest float16 that spans `reach` in `n_steps`.

    One below it where the last code would leave float16's range: the largest value stays finite.
    """
    ideal = reach / n_steps
    scale = _f16(ideal)
    scale += _f32(scale) < ideal
    scale -= n_steps * _f32(scale) + low > _LARGEST_F16
    return scale


def _to_planes(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Lay codes (T, C) out in blocks of 64 columns: low nibbles, then the bits above them."""
    n_tokens, n_channels = codes.shape
    n_blocks = -(-n_channels // BLOCK)
    padded = np.zeros((n_tokens, n_blocks * BLOCK), np.uint8)
    padded[:, :n_channels] = codes
    blocks = padded.reshape(n_tokens, n_blocks, BLOCK)
    if bits == 8:
        return padded
    planes = [blocks[:, :, :32] & 15 | blocks[:, :, 32:] << 4]
    if bits > 4:
        width, n_bits = _high_plane(bits)
        fields = (blocks >> 4).reshape(n_tokens, n_blocks, BLOCK // width, width)
        shifts = np.arange(0, 8, n_bits, dtype=np.uint8)[:, None]
        planes.append(np.bitwise_or.reduce(fields << shifts, axis=2))
    return np.concatenate(planes, axis=2).reshape(n_tokens, n_blocks * 8 * bits)


def _from_planes(planes: NDArray[np.uint8], bits: int, n_channels: int) -> NDArray[np.int8]:
    n_tokens, n_blocks = planes.shape[0], -(-n_channels // BLOCK)
    blocks = planes.reshape(n_tokens, n_blocks, 8 * bits)
    if bits == 8:
        return planes[:, :n_channels].view(np.int8)
    low = blocks[:, :, :32]
    codes = np.concatenate([low & 15, low >> 4], axis=2)
    if bits > 4:
        n_bits = _high_plane(bits)[1]
        shifts = np.arange(0, 8, n_bits, dtype=np.uint8)[:, None]
        fields = blocks[:, :, None, 32:] >> shifts & ((1 << n_bits) - 1)
        codes |= fields.reshape(n_tokens, n_blocks, BLOCK) << 4
    return codes.reshape(n_tokens, n_blocks * BLOCK)[:, :n_channels].view(np.int8)


def _high_plane(bits: int) -> tuple[int, int]:
    """Give bytes of the plane above the nibbles, and how many bits of an element it holds."""
    return (8, 1) if bits == 5 else (16, 2)


def _first(n: int, axis: int) -> tuple[slice, ...]:
    return (slice(n),) if axis == 0 else (slice(None), slice(n))


def _finite(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Widen float16, with zero for infinities and NaNs: no NaN is ever computed with."""
    return _f32(np.where((bits & 0x7C00) != 0x7C00, bits, np.uint16(0)))


def _f32(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    return bits.view(np.float16).astype(np.float32)


def _f16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    return values.astype(np.float16).view(np.uint16)
