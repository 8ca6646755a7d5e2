"""Unpacking a section: it is checked whole before a row is written.

What is checked is what the kernels do not ask: that the padding between the pieces of a run is zero, and that
every number is finite which its exact rows, or any code of its groups, could stand for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from edgellm.errors import SnapshotCorrupt
from edgellm.kernels import unpack_channels, unpack_tokens
from edgellm.store.format.runs import axis_of, run_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edgellm.core import Tier
    from edgellm.kernels import Packed
    from edgellm.store.format.header import SectionRow
    from edgellm.store.state import PackedSection

    Rows = NDArray[np.unsignedinteger[Any]]

_EXPONENT: Final = np.uint16(0x7C00)
_WITHOUT_SIGN: Final = np.uint16(0x7FFF)
_MAX_F16: Final = 65504.0


def unpack_section(
    section: SectionRow | PackedSection,
    first: int,
    tier: Tier,
    found: NDArray[np.uint8],
    out: Rows,
) -> None:
    """Write the rows of a packed section.

    Args:
        section: whose shape is not believed.
        first: the position of its first row.
        tier: of the file.
        found: shape (n_bytes,), its run, which is not believed.
        out: the section's shape, dtype uint16; rows or columns with elements side by side.

    Raises:
        SnapshotCorrupt: a row or a code could mean a number that is not finite, or padding is not
            zero; then no row was written.
    """
    run = run_of(tier, section.role, section.shape, first)
    if run is None or run.n_bytes != found.size:
        raise _corrupt(section, f"{found.size} bytes cannot be a packed section")
    if any(padding.any() for padding in run.paddings(found)):
        raise _corrupt(section, "the padding in it is not zero")
    packed, how = run.packed(found), run.coding
    if not are_finite_groups(packed, how.bits):
        raise _corrupt(section, "a scale stands for numbers that are not finite")
    exact = run.exact.halves(found)
    if not are_finite(exact):
        raise _corrupt(section, "a number in it is not finite")
    n_exact = exact.shape[0]
    out[:n_exact] = exact
    unpack = unpack_channels if axis_of(section.role) == "channels" else unpack_tokens
    unpack(packed, section.shape[1], bits=how.bits, group=how.group, out=out[n_exact:])


def are_finite(rows: NDArray[np.uint16]) -> bool:
    """Return whether f16 bits are all of finite numbers."""
    return bool(((rows & _EXPONENT) != _EXPONENT).all())


def are_finite_groups(packed: Packed, bits: int) -> bool:
    """Return whether every code of every group means a finite f16.

    Codes run along a line, so its two ends bound what a group can hold, whatever its codes are.
    """
    if packed.minimum is None:  # symmetric: f16 without its sign orders as its bits do
        limit = np.float16(_MAX_F16 / (1 << (bits - 1))).view(np.uint16)
        return bool(((packed.scale & _WITHOUT_SIGN) <= limit).all())
    with np.errstate(invalid="ignore"):
        scale = packed.scale.view("<f2").astype(np.float32)
        low = packed.minimum.view("<f2").astype(np.float32)
        high = low + scale * ((1 << bits) - 1)
        return bool((np.abs(low) <= _MAX_F16).all() and (np.abs(high) <= _MAX_F16).all())


def _corrupt(section: SectionRow | PackedSection, problem: str) -> SnapshotCorrupt:
    return SnapshotCorrupt(f"layer {section.layer} {section.role}: {problem}")
