"""Unpacking sections of one shape together: each of them is checked whole before a row is written.

What is checked is what the kernels do not ask: that the padding between the pieces of a run is zero, and that
every number is finite which its exact rows, or any code of its groups, could stand for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from edgellm.errors import SnapshotCorrupt
from edgellm.kernels import unpack_each
from edgellm.store.runs import run_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from edgellm.core import Tier
    from edgellm.kernels import Axis, Packed
    from edgellm.store.header import SectionRow
    from edgellm.store.state import PackedSection

    Marks = NDArray[np.bool_]
    Rows = NDArray[np.unsignedinteger[Any]]

_EXPONENT: Final = np.uint16(0x7C00)
_WITHOUT_SIGN: Final = np.uint16(0x7FFF)
_MAX_F16: Final = 65504.0


def unpack_sections(
    sections: Sequence[SectionRow | PackedSection],
    first: int,
    tier: Tier,
    found: NDArray[np.uint8],
    outs: Sequence[Rows],
) -> None:
    """Write the rows of packed sections.

    Args:
        sections: of one role and one shape, which is not believed.
        first: the position of their first row.
        tier: of the file.
        found: shape (sections, bytes of a run): their runs, which are not believed; bytes of a run
            side by side.
        outs: for each, the section's shape, dtype uint16; rows or columns with elements side by side.

    Raises:
        SnapshotCorrupt: a row or a code could mean a number that is not finite, or padding is not
            zero; names the section.
    """
    role, shape = sections[0].role, sections[0].shape
    run = run_of(tier, role, shape, first)
    if run is None or run.n_bytes != found.shape[1]:
        raise _corrupt(sections[0], f"{found.shape[1]} bytes cannot be a packed section")
    for padding in run.paddings(found):
        if padding.size and padding.any():
            raise _corrupt(_first(sections, padding != 0), "the padding in it is not zero")
    packed, how = run.packed(found), run.coding
    fine = finite_groups(packed, how.bits)
    if not fine.all():
        problem = "a scale stands for numbers that are not finite"
        raise _corrupt(_first(sections, ~fine), problem)
    exact, n_exact = run.exact.halves(found), run.exact.shape[0]
    if not is_finite(exact):
        raise _corrupt(_first(sections, ~finite(exact)), "a number in it is not finite")
    if n_exact:
        for rows, out in zip(exact, outs, strict=True):
            out[:n_exact] = rows
        outs = [out[n_exact:] for out in outs]
    axis: Axis = "channels" if role == "K" else "tokens"
    unpack_each(packed, shape[1], axis=axis, bits=how.bits, group=how.group, outs=outs)


def finite(rows: NDArray[np.uint16]) -> Marks:
    """Return which f16 bits are of a finite number."""
    marks: Marks = (rows & _EXPONENT) != _EXPONENT
    return marks


def is_finite(rows: NDArray[np.uint16]) -> bool:
    """Return whether all are; see `finite`."""
    return bool(finite(rows).all())


def finite_groups(packed: Packed, bits: int) -> Marks:
    """Return of which groups every code means a finite f16, in the shape of the scales.

    Codes run along a line, so its two ends bound what a group can hold, whatever its codes are.
    """
    if packed.minimum is None:  # symmetric: f16 without its sign orders as its bits do
        limit = np.float16(_MAX_F16 / (1 << (bits - 1))).view(np.uint16)
        marks: Marks = (packed.scale & _WITHOUT_SIGN) <= limit
        return marks
    with np.errstate(invalid="ignore"):
        scale = packed.scale.view("<f2").astype(np.float32)
        low = packed.minimum.view("<f2").astype(np.float32)
        high = low + scale * ((1 << bits) - 1)
        marks = np.abs(low) <= _MAX_F16
        marks &= np.abs(high) <= _MAX_F16
    return marks


def _first(
    sections: Sequence[SectionRow | PackedSection], bad: Marks
) -> SectionRow | PackedSection:
    """Return the first section that has something bad."""
    return sections[int(bad.reshape(len(sections), -1).any(axis=1).argmax())]


def _corrupt(section: SectionRow | PackedSection, problem: str) -> SnapshotCorrupt:
    return SnapshotCorrupt(f"layer {section.layer} {section.role}: {problem}")
