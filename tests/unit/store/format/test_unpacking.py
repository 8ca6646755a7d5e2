"""Packed sections: the same rows however they lie, and what is wrong with one is said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edgellm.core import Tier
from edgellm.errors import SnapshotCorrupt
from edgellm.store.format.codec import pack_state, unpack_state
from edgellm.store.format.runs import run_of
from edgellm.store.format.unpacking import unpack_section
from edgellm.store.state import KVState, PackedSection, PackedState, Part, Section

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

N_LAYERS, SHAPE = 2, (150, 100)


def packed_state(tier: Tier) -> PackedState:
    """Return a dense part of some layers, whose runs have padding inside and after them."""
    rng = np.random.default_rng(3)
    sections = tuple(
        Section(layer, role, "f16", rng.standard_normal(SHAPE).astype(np.float16).view(np.uint16))
        for role in ("K", "V")
        for layer in range(N_LAYERS)
    )
    packed = pack_state(KVState(SHAPE[0], (Part("dense", 0, SHAPE[0], sections),)), tier)
    assert isinstance(packed, PackedState)
    return packed


def sections_of(state: Any, role: str) -> list[Any]:
    """Return the sections of a role."""
    return [section for section in state.parts[0].sections if section.role == role]


@pytest.mark.parametrize("role", ["K", "V"])
@pytest.mark.parametrize("tier", [Tier.Q8, Tier.Q6, Tier.Q5, Tier.Q4])
def test_rows_and_columns_are_the_same_numbers(tier: Tier, role: str):
    """Every tier, and near those that were packed."""
    packed = packed_state(tier)
    for section, wanted in zip(
        sections_of(packed, role), sections_of(unpack_state(packed), role), strict=True
    ):
        assert isinstance(section, PackedSection)
        for out in (np.empty(SHAPE, np.uint16), np.empty(SHAPE[::-1], np.uint16).T):
            unpack_section(section, 0, tier, section.run, out)
            np.testing.assert_array_equal(wanted.rows, out)


def test_another_length_is_refused():
    """Whatever the section says of itself."""
    packed = packed_state(Tier.Q4)
    section = sections_of(packed, "K")[0]
    with pytest.raises(SnapshotCorrupt, match="layer 0 K: 63 bytes cannot be a packed section"):
        unpack_section(section, 0, Tier.Q4, section.run[:63], np.empty(SHAPE, np.uint16))


def spoil_padding(run: NDArray[np.uint8], role: str) -> None:
    """Write into a gap between two pieces."""
    pieces = run_of(Tier.Q4, role, SHAPE, 0)  # type: ignore[arg-type]
    assert pieces is not None
    next(gap for gap in pieces.paddings(run) if gap.size)[-1] = 1


def spoil_scale(run: NDArray[np.uint8], role: str) -> None:
    """Write an infinite scale."""
    pieces = run_of(Tier.Q4, role, SHAPE, 0)  # type: ignore[arg-type]
    assert pieces is not None
    pieces.scale.halves(run)[-1, -1] = 0x7C00


def spoil_exact(run: NDArray[np.uint8], role: str) -> None:
    """Write a NaN among the first rows."""
    pieces = run_of(Tier.Q4, role, SHAPE, 0)  # type: ignore[arg-type]
    assert pieces is not None
    pieces.exact.halves(run)[0, 0] = 0x7E00


@pytest.mark.parametrize("role", ["K", "V"])
@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (spoil_padding, "the padding in it is not zero"),
        (spoil_scale, "a scale stands for numbers that are not finite"),
        (spoil_exact, "a number in it is not finite"),
    ],
)
def test_what_is_damaged_is_named_and_no_row_is_written(
    spoil: Callable[[NDArray[np.uint8], str], None], problem: str, role: str
):
    """The first thing that is wrong."""
    section = sections_of(packed_state(Tier.Q4), role)[1]
    out = np.full(SHAPE, 7, np.uint16)
    spoil(section.run, role)
    with pytest.raises(SnapshotCorrupt, match=f"layer 1 {role}: {problem}"):
        unpack_section(section, 0, Tier.Q4, section.run, out)
    assert (out == 7).all()
