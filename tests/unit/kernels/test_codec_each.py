"""Unpacking several matrices with one call: the bits of one call for each, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgellm import kernels
from edgellm.kernels import Packed

UNPACK: dict[str, Any] = {
    "channels": (kernels.pack_channels, kernels.unpack_channels),
    "tokens": (kernels.pack_tokens, kernels.unpack_tokens),
}
N, SHAPE = 3, (70, 130)


def _matrices() -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    return [rng.standard_normal(SHAPE).astype(np.float16).view(np.uint16) for _ in range(N)]


def _stacked(axis: str, bits: int, *, in_one_buffer: bool) -> tuple[Packed, list[np.ndarray]]:
    """Pack each matrix; give their arrays one behind the other, and what each unpacks to."""
    pack, unpack = UNPACK[axis]
    packed = [pack(x, bits=bits, group=32) for x in _matrices()]
    expected = [unpack(one, SHAPE[1], bits=bits, group=32) for one in packed]
    arrays = [
        None if first is None else np.stack([getattr(one, name) for one in packed])
        for name, first in (("codes", 1), ("scale", 1), ("minimum", packed[0].minimum))
    ]
    if in_one_buffer:
        arrays = _in_one_buffer(arrays)
    return Packed(*arrays), expected  # type: ignore[arg-type]


def _in_one_buffer(arrays: list[Any]) -> list[Any]:
    """Lay the arrays of each matrix beside each other, as the runs of a file have them."""
    flat = [
        None if a is None else np.ascontiguousarray(a).view(np.uint8).reshape(N, -1) for a in arrays
    ]
    run = np.concatenate([a for a in flat if a is not None], axis=1)
    found, at = [], 0
    for array, its in zip(arrays, flat, strict=True):
        if its is None:
            found.append(None)
            continue
        view = run[:, at : at + its.shape[1]].view(array.dtype)
        found.append(view.reshape(array.shape))
        at += its.shape[1]
    return found


def _outs(layout: str) -> list[np.ndarray]:
    rows = [np.full(SHAPE, 7, np.uint16) for _ in range(N)]
    columns = [np.full((SHAPE[1], SHAPE[0] + 5), 7, np.uint16)[:, :-5].T for _ in range(N)]
    odd = [np.zeros(2 * SHAPE[0] * SHAPE[1] + 1, np.uint8)[1:].view(np.uint16) for _ in range(N)]
    return {
        "rows": rows,
        "columns": columns,
        "mixed": [rows[0], columns[1], rows[2]],
        "odd": [out.reshape(SHAPE) for out in odd],
    }[layout]


@pytest.mark.parametrize("layout", ["rows", "columns", "mixed", "odd"])
@pytest.mark.parametrize("bits", [8, 6, 5, 4])
@pytest.mark.parametrize("in_one_buffer", [True, False])
@pytest.mark.parametrize("axis", sorted(UNPACK))
def test_one_call_gives_the_bits_of_many(
    native_isa: str, axis: str, bits: int, layout: str, in_one_buffer: bool
) -> None:
    """Wherever the arrays and the outputs lie, alike or not."""
    packed, expected = _stacked(axis, bits, in_one_buffer=in_one_buffer)
    outs = _outs(layout)
    kernels.unpack_each(packed, SHAPE[1], axis=axis, bits=bits, group=32, outs=outs)  # type: ignore[arg-type]
    for out, wanted in zip(outs, expected, strict=True):
        np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n": 0}, "nothing to unpack"),
        ({"n": 2}, "codes has shape"),
        ({"flat": "codes"}, "codes must have three dimensions"),
        ({"flat": "scale"}, "scale must have three dimensions"),
        ({"short": "scale"}, "scale has shape"),
        ({"short": "minimum"}, "minimum has shape"),
        ({"none": "minimum"}, "6 bits need a minimum"),
        ({"out": (SHAPE[0], SHAPE[1] - 1)}, "out has shape"),
    ],
)
def test_what_does_not_fit_is_refused_before_a_byte_is_written(
    change: dict[str, Any], message: str
) -> None:
    """Also where only the last output is wrong."""
    packed, _ = _stacked("tokens", 6, in_one_buffer=False)
    outs = _outs("rows")[: change.get("n", N)]
    if name := change.get("flat"):
        packed = replace(packed, **{name: getattr(packed, name)[0]})
    if name := change.get("short"):
        packed = replace(packed, **{name: getattr(packed, name)[:, :-1]})
    if name := change.get("none"):
        packed = replace(packed, **{name: None})
    if shape := change.get("out"):
        outs[-1] = np.full(shape, 7, np.uint16)
    with pytest.raises(ValueError, match=message):
        kernels.unpack_each(packed, SHAPE[1], axis="tokens", bits=6, group=32, outs=outs)
    assert all((out == 7).all() for out in outs)
