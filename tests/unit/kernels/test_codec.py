"""The KV codec: every implementation against numpy, what it promises, and what the door refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgellm import kernels
from edgellm.kernels import Packed, _codec_numpy

BITS = (8, 6, 5, 4)
AXES: dict[str, Any] = {
    "channels": (0, kernels.pack_channels, kernels.unpack_channels),
    "tokens": (1, kernels.pack_tokens, kernels.unpack_tokens),
}
SHAPES = [
    (0, 0), (0, 64), (5, 0), (1, 1), (1, 64), (2, 63), (33, 80), (7, 130), (64, 64), (65, 192),
    (129, 256), (257, 192), (3, 1024), (1, 1500),
]  # fmt: skip
ENDS = [0x7BFF, 0xFBFF, 0x7BFE, 0x0000, 0x8000, 0x0001, 0x8001, 0x0400, 0x3C00]
NOT_FINITE = [0x7C00, 0xFC00, 0x7C01, 0x7E00, 0xFFFF]


@pytest.fixture(params=sorted(AXES))
def axis(request: pytest.FixtureRequest) -> str:
    """Give one axis after the other."""
    name: str = request.param
    return name


def _normal(*shape: int) -> np.ndarray:
    rng = np.random.default_rng(sum(shape))
    size = 2.0 ** rng.integers(-12, 8, shape[1])
    return (rng.standard_normal(shape) * size).astype(np.float16).view(np.uint16)


def _chosen(values: list[int], *shape: int) -> np.ndarray:
    return np.random.default_rng(len(values)).choice(np.array(values, np.uint16), shape)


def _assert_is_numpys(x: np.ndarray, axis: str, bits: int, group: int) -> Packed:
    """Pack and unpack in both layouts, and compare every array with the definition's."""
    number, pack, unpack = AXES[axis]
    codes, scale, minimum = _codec_numpy.pack(x, number, bits, group)
    packed = pack(x, bits=bits, group=group)
    np.testing.assert_array_equal(codes, packed.codes)
    np.testing.assert_array_equal(scale, packed.scale)
    assert (minimum is None) == (packed.minimum is None)
    if minimum is not None:
        np.testing.assert_array_equal(minimum, packed.minimum)
    expected = np.empty(x.shape, np.uint16)
    _codec_numpy.unpack(codes, scale, minimum, number, bits, group, expected)
    actual = unpack(packed, x.shape[1], bits=bits, group=group)
    assert actual.flags.c_contiguous
    np.testing.assert_array_equal(expected, actual)
    columns = np.full((x.shape[1], x.shape[0] + 3), 7, np.uint16)
    unpack(packed, x.shape[1], bits=bits, group=group, out=columns[:, :-3].T)
    np.testing.assert_array_equal(expected, columns[:, :-3].T)
    assert (columns[:, -3:] == 7).all()
    return packed


@pytest.mark.parametrize("group", [1, 32, 48, 64, 128, 2000])
@pytest.mark.parametrize("bits", BITS)
def test_every_implementation_gives_numpys_bits(
    native_isa: str, axis: str, bits: int, group: int
) -> None:
    """Any shape, group and width: the same codes, scales and values, in both layouts."""
    for shape in SHAPES:
        _assert_is_numpys(_normal(*shape), axis, bits, group)


def test_a_group_may_be_larger_than_any_machine_counts(native_isa: str, axis: str) -> None:
    """All that there is shares one scale, then; no count wraps."""
    x = _normal(70, 192)
    expected = AXES[axis][1](x, bits=6, group=192)
    actual = AXES[axis][1](x, bits=6, group=1 << 70)
    np.testing.assert_array_equal(expected.codes, actual.codes)
    np.testing.assert_array_equal(
        AXES[axis][2](expected, 192, bits=6, group=192),
        AXES[axis][2](actual, 192, bits=6, group=1 << 70),
    )


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("values", [ENDS, NOT_FINITE, [*ENDS, *NOT_FINITE], [0x8000], [0x7BFF]])
def test_special_values_give_the_same_bits(
    native_isa: str, axis: str, bits: int, values: list[int]
) -> None:
    """Zeros of both signs, denormals, the largest, infinities, NaNs: the same, and always finite."""
    x = _chosen(values, 67, 200)
    packed = _assert_is_numpys(x, axis, bits, 32)
    y = AXES[axis][2](packed, 200, bits=bits, group=32)
    assert ((y & 0x7C00) != 0x7C00).all()
    assert ((packed.scale & 0x7C00) != 0x7C00).all()


@pytest.mark.parametrize("bits", BITS)
def test_one_infinity_counts_as_zero(native_isa: str, axis: str, bits: int) -> None:
    """A value that is not finite spoils no other: its group is as if it were zero."""
    x = _normal(64, 128)
    x[3, 5] = 0x7C00
    without = x.copy()
    without[3, 5] = 0
    expected, actual = (AXES[axis][1](each, bits=bits, group=32) for each in (without, x))
    np.testing.assert_array_equal(expected.codes, actual.codes)
    np.testing.assert_array_equal(expected.scale, actual.scale)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("group", [32, 64])
def test_no_value_is_further_off_than_half_a_scale(axis: str, bits: int, group: int) -> None:
    """The error is half a scale and one rounding to float16, at every size of values."""
    number, pack, unpack = AXES[axis]
    for x in (_normal(96, 192), _chosen(ENDS, 96, 192), _chosen([1, 2, 5, 63, 90], 96, 192)):
        packed = pack(x, bits=bits, group=group)
        y = unpack(packed, 192, bits=bits, group=group)
        exact, got = (a.view(np.float16).astype(np.float64) for a in (x, y))
        step = packed.scale.view(np.float16).astype(np.float64).repeat(group, number)
        exponent = np.frexp(np.maximum(np.abs(exact), np.abs(got)))[1]
        ulp = 2.0 ** np.maximum(exponent - 11, -24)
        # Float32 rounds a code's distance to 2^-22 of the range, which is 127 scales at most.
        bound = step[:96, :192] * (0.5 + 2**-14) + ulp
        assert (np.abs(exact - got) <= bound).all()


@pytest.mark.parametrize("bits", BITS)
def test_what_a_broken_file_holds_is_unpacked_alike(native_isa: str, axis: str, bits: int) -> None:
    """Any codes, scales and minimums: the same bits everywhere, and no NaN."""
    rng = np.random.default_rng(bits)
    shapes = kernels.packed_shapes(70, 130, axis=axis, bits=bits, group=32)
    codes = rng.integers(0, 256, shapes.codes, dtype=np.uint8)
    scale, minimum = (rng.integers(0, 1 << 16, shapes.scale, dtype=np.uint16) for _ in range(2))
    packed = Packed(codes, scale, None if bits == 8 else minimum)
    expected = np.empty((70, 130), np.uint16)
    _codec_numpy.unpack(codes, scale, packed.minimum, AXES[axis][0], bits, 32, expected)
    actual = AXES[axis][2](packed, 130, bits=bits, group=32)
    np.testing.assert_array_equal(expected, actual)
    assert ((actual & 0x7FFF) <= 0x7C00).all()


@pytest.mark.parametrize(
    "view",
    [
        pytest.param(lambda a: a[:, :50], id="gap"),
        pytest.param(lambda a: a[::2, 3:70], id="every-second-row"),
        pytest.param(lambda a: a[:, ::2], id="every-second-column"),
        pytest.param(lambda a: a[::-1, ::-1], id="backwards"),
        pytest.param(lambda a: a.T, id="transposed"),
        pytest.param(lambda a: a.T[:, 5:], id="transposed-gap"),
        pytest.param(lambda a: a[:1], id="one-row"),
        pytest.param(lambda a: a[:, :1], id="one-column"),
        pytest.param(lambda a: np.broadcast_to(a[:1], a.shape), id="repeated-row"),
        pytest.param(lambda a: np.broadcast_to(a[:, :1], a.shape), id="repeated-column"),
    ],
)
def test_any_strides_may_come_in(native_isa: str, axis: str, view: Any) -> None:
    """A view with gaps, steps or negative strides is read as numpy reads it."""
    x = view(_normal(70, 140))
    _assert_is_numpys(x, axis, 6, 32)


def test_a_mapped_file_is_unpacked_where_it_lies(native_isa: str, axis: str) -> None:
    """Read-only arrays at odd addresses, as in a packed file, are handled like all others."""
    x = _normal(40, 96)
    packed = AXES[axis][1](x, bits=5, group=32)
    raw = b"".join(a.tobytes() for a in (packed.codes, packed.scale, packed.minimum))
    file, at = b"?" + raw, 1
    arrays = []
    for array in (packed.codes, packed.scale, packed.minimum):
        flat = np.frombuffer(file, array.dtype, array.size, at)
        arrays.append(flat.reshape(array.shape))
        at += array.nbytes
    expected = AXES[axis][2](packed, 96, bits=5, group=32)
    np.testing.assert_array_equal(expected, AXES[axis][2](Packed(*arrays), 96, bits=5, group=32))


@pytest.mark.parametrize("by_rows", [True, False])
def test_an_odd_address_is_written(native_isa: str, axis: str, by_rows: bool) -> None:
    """An output that begins at an odd byte gets the same values."""
    x = _normal(40, 96)
    packed = AXES[axis][1](x, bits=4, group=32)
    odd = np.zeros(2 * x.size + 1, np.uint8)[1:].view(np.uint16)
    out = odd.reshape(40, 96) if by_rows else odd.reshape(96, 40).T
    AXES[axis][2](packed, 96, bits=4, group=32, out=out)
    np.testing.assert_array_equal(AXES[axis][2](packed, 96, bits=4, group=32), out)
