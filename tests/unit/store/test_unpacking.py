"""Packed sections that are checked and unpacked together: the same rows, and the right one is blamed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from edgellm.core import Tier
from edgellm.errors import SnapshotCorrupt
from edgellm.store.codec import pack_state, unpack_state
from edgellm.store.runs import aligned, run_of
from edgellm.store.state import KVState, PackedSection, PackedState, Part, Section
from edgellm.store.unpacking import unpack_sections

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

N_LAYERS, SHAPE = 4, (150, 100)


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


def together(packed: PackedState, role: str) -> tuple[list[PackedSection], NDArray[np.uint8]]:
    """Return the sections of a role and their runs as a file has them, one behind the other."""
    found = [s for s in packed.parts[0].sections if isinstance(s, PackedSection) and s.role == role]
    n_bytes = found[0].run.size
    runs = np.zeros((len(found), aligned(n_bytes)), np.uint8)
    runs[:, :n_bytes] = [section.run for section in found]
    return found, runs[:, :n_bytes]


@pytest.mark.parametrize("role", ["K", "V"])
@pytest.mark.parametrize("tier", [Tier.Q8, Tier.Q6, Tier.Q5, Tier.Q4])
def test_together_they_are_what_each_is_alone(tier: Tier, role: str):
    """Rows and columns, every tier."""
    packed = packed_state(tier)
    alone = [s.rows for s in unpack_state(packed).parts[0].sections if s.role == role]
    sections, runs = together(packed, role)
    for outs in (
        [np.empty(SHAPE, np.uint16) for _ in sections],
        [np.empty(SHAPE[::-1], np.uint16).T for _ in sections],
    ):
        unpack_sections(sections, 0, tier, runs, outs)
        for expected, out in zip(alone, outs, strict=True):
            np.testing.assert_array_equal(expected, out)


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
@pytest.mark.parametrize("layer", range(N_LAYERS))
@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (spoil_padding, "the padding in it is not zero"),
        (spoil_scale, "a scale stands for numbers that are not finite"),
        (spoil_exact, "a number in it is not finite"),
    ],
)
def test_the_damaged_one_is_named_and_no_row_is_written(
    spoil: Callable[[NDArray[np.uint8], str], None], problem: str, layer: int, role: str
):
    """Whichever of them it is; a later one that is damaged, too, is not blamed."""
    sections, runs = together(packed_state(Tier.Q4), role)
    outs = [np.full(SHAPE, 7, np.uint16) for _ in sections]
    for damaged in {layer, N_LAYERS - 1}:
        spoil(runs[damaged], role)
    with pytest.raises(SnapshotCorrupt, match=f"layer {layer} {role}: {problem}"):
        unpack_sections(sections, 0, Tier.Q4, runs, outs)
    assert all((out == 7).all() for out in outs)
