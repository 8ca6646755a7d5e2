"""Casts between float32, float16 and bfloat16: every implementation, every half, all roundings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgellm import kernels
from edgellm.kernels import _choice

HALVES = np.arange(1 << 16, dtype=np.uint16)
CASTS: dict[str, Any] = {
    "f32_to_f16": np.float32,
    "f16_to_f32": np.uint16,
    "f32_to_bf16": np.float32,
    "bf16_to_f32": np.uint16,
    "bf16_to_f16": np.uint16,
}


def _floats() -> np.ndarray:
    """Give each float's first 16 bits with what lies around the points where rounding turns."""
    low = np.array([0, 1, 0xFFF, 0x1000, 0x1001, 0x2FFF, 0x3000, 0x7FFF, 0x8000, 0x8001], np.uint32)
    return (HALVES.astype(np.uint32)[:, None] << 16 | low).ravel().view(np.float32)


def _cast(name: str, x: np.ndarray, **options: Any) -> Any:
    return getattr(kernels, name)(x, **options)


@pytest.mark.parametrize("name", CASTS)
def test_every_implementation_gives_numpys_bits(
    native_isa: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All halves, and floats around every rounding point, NaNs with their payloads."""
    x = HALVES if CASTS[name] is np.uint16 else _floats()
    actual = _cast(name, x)
    monkeypatch.setattr(_choice, "native", lambda: None)
    assert _cast(name, x).tobytes() == actual.tobytes()


def test_halves_come_back_as_they_went(native_isa: str) -> None:
    """Widening is exact: back again gives every half, NaNs made quiet."""
    is_nan = (HALVES & 0x7FFF) > 0x7C00
    np.testing.assert_array_equal(
        np.where(is_nan, HALVES | 0x200, HALVES), kernels.f32_to_f16(kernels.f16_to_f32(HALVES))
    )
    is_nan = (HALVES & 0x7FFF) > 0x7F80
    np.testing.assert_array_equal(
        np.where(is_nan, HALVES | 0x40, HALVES), kernels.f32_to_bf16(kernels.bf16_to_f32(HALVES))
    )


@pytest.mark.parametrize(
    ("value", "f16", "bf16"),
    [
        (1 + 2**-11, 0x3C00, 0x3F80),  # a tie goes to the even neighbour
        (1 + 3 * 2**-11, 0x3C02, 0x3F80),
        (1 + 2**-8, 0x3C04, 0x3F80),
        (1 + 3 * 2**-8, 0x3C0C, 0x3F82),
        (65519.996, 0x7BFF, 0x4780),
        (65520.0, 0x7C00, 0x4780),
        (-65520.0, 0xFC00, 0xC780),
        (2**-25, 0x0000, 0x3300),
        (1.5 * 2**-24, 0x0002, 0x33C0),
        (-(2**-14) + 2**-25, 0x8400, 0xB880),
        (-0.0, 0x8000, 0x8000),
        (np.inf, 0x7C00, 0x7F80),
    ],
)
def test_rounding_is_to_the_nearest_even(
    native_isa: str, value: float, f16: int, bf16: int
) -> None:
    """Values worked out by hand, in a place where a vector and in one where a remainder does it."""
    x = np.full(37, value, np.float32)
    assert set(kernels.f32_to_f16(x).tolist()) == {f16}
    assert set(kernels.f32_to_bf16(x).tolist()) == {bf16}


@pytest.mark.parametrize("name", CASTS)
def test_any_shape_and_strides(native_isa: str, name: str) -> None:
    """Scalars' arrays, empty ones, views and odd addresses; a given `out` is filled and given back."""
    dtype = CASTS[name]
    for shape in ((), (0,), (3, 0), (5,), (2, 3, 70)):
        x = np.ones(shape, dtype)
        assert _cast(name, x).shape == shape
    x = np.arange(40 * 9, dtype=dtype).reshape(40, 9)
    for view in (x.T, x[::-1, ::2], x[1:1]):
        np.testing.assert_array_equal(_cast(name, np.ascontiguousarray(view)), _cast(name, view))
    odd = np.frombuffer(b"?" + x.tobytes(), dtype, x.size, 1)
    expected = _cast(name, x.ravel())
    out = np.zeros(expected.nbytes + 1, np.uint8)[1:].view(expected.dtype)
    assert _cast(name, odd, out=out) is out
    np.testing.assert_array_equal(expected, out)


@pytest.mark.parametrize("name", CASTS)
def test_what_does_not_fit_is_refused(name: str) -> None:
    """Another dtype, no array, an `out` of another shape, with gaps, read-only, or the source."""
    x = np.zeros((4, 4), CASTS[name])
    out = _cast(name, x)
    with pytest.raises(TypeError, match="x must be an array of"):
        _cast(name, x.astype(np.float64))
    with pytest.raises(TypeError, match="not list"):
        _cast(name, [1.0])
    with pytest.raises(TypeError, match="out must be an array of"):
        _cast(name, x, out=out.astype(np.float64))
    for wrong in (out[:3], np.zeros((4, 8), out.dtype)[:, ::2], np.broadcast_to(out[:1], (4, 4))):
        with pytest.raises(ValueError, match=r"of shape \(4, 4\)"):
            _cast(name, x, out=wrong)
    if x.dtype.itemsize == out.dtype.itemsize:
        with pytest.raises(ValueError, match="share memory"):
            _cast(name, x, out=x.view(out.dtype))
