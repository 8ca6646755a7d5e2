"""Runs: the bytes behind a snapshot's header, taken in order, each summed right after it was read.

What was just read is still in the processor's cache, so its sum costs next to nothing; long runs are
read and summed in pieces, for that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import xxhash

from edgellm.errors import SnapshotCorrupt
from edgellm.store.format import layout
from edgellm.store.format.runs import aligned

if TYPE_CHECKING:
    from edgellm.store.disk.files import OpenFile
    from edgellm.store.format.header import Extent

PIECE_BYTES: Final = 1 << 20
"""Of a run that are read before they are summed; half of this processor cache is common, and a
smaller piece costs more calls than it saves."""


class Runs:
    """Takes the runs of one file in order, from the first behind its header to the footer."""

    def __init__(self, file: OpenFile) -> None:
        self._file = file
        self._at = 0  # from the end of the header, as extents count
        self._n_taken = 0

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
        if found.hexdigest() != extent.xxh3:
            what = f"section {self._n_taken} at {extent.offset}"
            raise SnapshotCorrupt(f"{what}: the checksum is wrong")
        if n_padding := aligned(extent.n_bytes) - extent.n_bytes:
            padding = bytearray(n_padding)
            self._file.fill(padding)
            if any(padding):
                raise SnapshotCorrupt(f"section {self._n_taken}: the padding after it is not zero")
        self._at = extent.offset + aligned(extent.n_bytes)
        self._n_taken += 1

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
