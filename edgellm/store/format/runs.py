"""What the run of a packed section holds, and where: four pieces, each at a place given by a rule.

exact rows | scales | minimums | codes, each piece starting at the next multiple of 64 in the run.
Sizes and places follow from tier, role, shape and first position alone: a reader computes them and
believes no number in a file. What scales and codes mean is the kernels' to say.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from edgellm.kernels import Packed, packed_shapes
from edgellm.store.format.tiers import coding, n_exact_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from edgellm.core import Tier
    from edgellm.kernels import Axis
    from edgellm.store.format.tiers import Coding
    from edgellm.store.state import Role

ALIGN_BYTES: Final = 64
ELEMENT_BYTES: Final = 2
"""Bytes of an element that can be packed, and of a scale or a minimum: all are f16."""


def aligned(n_bytes: int) -> int:
    """Return the next multiple of 64."""
    return -(-n_bytes // ALIGN_BYTES) * ALIGN_BYTES


def axis_of(role: Role) -> Axis:
    """Return along which axis sections of a role are packed: keys by channel, values by token."""
    return "channels" if role == "K" else "tokens"


@dataclass(frozen=True, slots=True)
class Piece:
    """A matrix in a run.

    Attributes:
        start: its first byte, from the start of the run.
        shape: of the matrix; no rows where a tier has no such piece.
        item_bytes: 2 for f16 bits, 1 for codes.
    """

    start: int
    shape: tuple[int, int]
    item_bytes: int

    @property
    def end(self) -> int:
        """Return the offset of the first byte after it."""
        return self.start + self.shape[0] * self.shape[1] * self.item_bytes

    def codes(self, run: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return a matrix of bytes as a view of its run."""
        return run[self.start : self.end].reshape(self.shape)

    def halves(self, run: NDArray[np.uint8]) -> NDArray[np.uint16]:
        """Return a matrix of f16 bits as a view of its run."""
        return run[self.start : self.end].view("<u2").reshape(self.shape)


@dataclass(frozen=True, slots=True)
class Run:
    """The places in the run of one packed section.

    Attributes:
        coding: how its rows are rounded.
        exact: the rows of the first positions, as they were.
        scale: one f16 for each group.
        minimum: one f16 for each group; empty at 8 bits.
        codes: what the kernels packed.
    """

    coding: Coding
    exact: Piece
    scale: Piece
    minimum: Piece
    codes: Piece

    @property
    def n_bytes(self) -> int:
        """Return the length of the run."""
        return self.codes.end

    def packed(self, run: NDArray[np.uint8]) -> Packed:
        """Return what the kernels unpack, as views of the run."""
        minimum = self.minimum.halves(run) if self.minimum.shape[0] else None
        return Packed(self.codes.codes(run), self.scale.halves(run), minimum)

    def paddings(self, run: NDArray[np.uint8]) -> Iterator[NDArray[np.uint8]]:
        """Give the bytes between the pieces of a run, which are zero."""
        yield run[self.exact.end : self.scale.start]
        yield run[self.scale.end : self.minimum.start]
        yield run[self.minimum.end : self.codes.start]


@functools.lru_cache(maxsize=256)  # the layers of a model have few shapes
def run_of(tier: Tier, role: Role, shape: tuple[int, int], first: int) -> Run | None:
    """Return how a section is packed, or None where packing would not make it smaller.

    Args:
        tier: of the file.
        role: of the section.
        shape: (n_tokens, n_channels) of its rows; Python integers, of any size.
        first: the position of its first row.
    """
    how = coding(tier, role)
    n_tokens, n_channels = shape
    n_exact = n_exact_rows(first, n_tokens)
    if how is None or n_exact == n_tokens:
        return None
    sizes = packed_shapes(
        n_tokens - n_exact,
        n_channels,
        axis=axis_of(role),
        bits=how.bits,
        group=how.group,
    )
    exact = Piece(0, (n_exact, n_channels), ELEMENT_BYTES)
    scale = Piece(aligned(exact.end), sizes.scale, ELEMENT_BYTES)
    minimum = Piece(aligned(scale.end), sizes.minimum or (0, 0), ELEMENT_BYTES)
    run = Run(how, exact, scale, minimum, Piece(aligned(minimum.end), sizes.codes, 1))
    return run if run.n_bytes < n_tokens * n_channels * ELEMENT_BYTES else None
