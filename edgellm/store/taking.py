"""Runs: the bytes behind a snapshot's header, taken in order, each summed right after it was read.

What was just read is still in the processor's cache, so its sum costs next to nothing; long runs are
read and summed in pieces, for that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import xxhash

from edgellm.errors import SnapshotCorrupt
from edgellm.store import layout
from edgellm.store.runs import aligned

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from edgellm.store.files import OpenFile
    from edgellm.store.header import Extent

PIECE_BYTES: Final = 1 << 20
"""Of a run that are read before they are summed; half of this processor cache is common, and a
smaller piece costs more calls than it saves."""


class Runs:
    """Takes the runs of one file in order, from the first behind its header to the footer."""

    def __init__(self, file: OpenFile, at: int = 0, n_taken: int = 0) -> None:
        self._file = file
        self._at = at  # from the end of the header, as extents count
        self._n_taken = n_taken

    def take(self, extent: Extent, into: memoryview) -> None:
        """Read a run and check its sum, and the padding after it.

        Args:
            extent: of the next run.
            into: its length, contiguous.
        """
        found = xxhash.xxh3_128()
        for at in range(0, into.nbytes, PIECE_BYTES):
            piece = into[at : at + PIECE_BYTES]
            self._file.fill(piece)
            found.update(piece)
        self._check(extent, found.hexdigest())
        if n_padding := aligned(extent.n_bytes) - extent.n_bytes:
            padding = bytearray(n_padding)
            self._file.fill(padding)
            if any(padding):
                raise SnapshotCorrupt(f"section {self._n_taken}: the padding after it is not zero")
        self._done(extent)

    def take_even(self, extents: list[Extent], into: NDArray[np.uint8]) -> None:
        """Read some runs of one length with the padding after each; see `take`.

        Args:
            extents: of the next runs.
            into: shape (runs, length with padding), C-contiguous.
        """
        self._file.fill(into.reshape(-1).data)
        n_bytes = extents[0].n_bytes
        has_padding = n_bytes < into.shape[1]
        for extent, run in zip(extents, into, strict=True):
            self._check(extent, xxhash.xxh3_128_hexdigest(run[:n_bytes].data))
            if has_padding and run[n_bytes:].any():
                raise SnapshotCorrupt(f"section {self._n_taken}: the padding after it is not zero")
            self._done(extent)

    def take_all(self, extents: list[Extent], into: list[memoryview]) -> None:
        """Read some runs that need no padding, and check their sums; see `take`."""
        self._file.fill_all(into)
        for extent, content in zip(extents, into, strict=True):
            self._check(extent, xxhash.xxh3_128_hexdigest(content))
            self._done(extent)

    def _done(self, extent: Extent) -> None:
        self._at = extent.offset + aligned(extent.n_bytes)
        self._n_taken += 1

    def _check(self, extent: Extent, found: str) -> None:
        if found != extent.xxh3:
            what = f"section {self._n_taken} at {extent.offset}"
            raise SnapshotCorrupt(f"{what}: the checksum is wrong")

    def go_to(self, offset: int, n_taken: int) -> None:
        """Leave out what lies before an offset, which is that of a run or of the footer.

        Args:
            offset: from the end of the header, not before what was taken last.
            n_taken: how many runs lie before it.
        """
        if offset > self._at:
            self._file.skip(offset - self._at)
        self._at, self._n_taken = offset, n_taken

    def footer(self, expected: bytes) -> None:
        """Read what is left of the file."""
        footer = bytearray(layout.FOOTER.size)
        self._file.fill(footer)
        if footer != expected:
            raise SnapshotCorrupt("the footer is wrong")

    def twin(self) -> Runs | None:
        """Return what takes the runs from here on at the same time; see `OpenFile.twin`."""
        file = self._file.twin()
        return Runs(file, self._at, self._n_taken) if file is not None else None
