"""What there is to do to read a file: its sections, each with the rows that it is to fill."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from edgellm.store.format import layout

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from edgellm.store.format.header import SectionRow, SnapshotHeader
    from edgellm.store.state import KVState

    Rows = NDArray[np.unsignedinteger[Any]]

_AS_THEY_ARE: Final = (None, "exact")


@dataclass(frozen=True, slots=True)
class Job:
    """One section and its rows.

    Attributes:
        number: of its run in the file; the token ids are run 0.
        first: the position of its first row in the file.
        row: what the header says of it.
        rows: where they are wanted, with the section's shape and any strides.
    """

    number: int
    first: int
    row: SectionRow
    rows: Rows

    @property
    def is_plain(self) -> bool:
        """Return whether the file has its rows as they are."""
        return self.row.stored in _AS_THEY_ARE


def jobs_of(header: SnapshotHeader, state: KVState, *, is_last: bool) -> list[Job]:
    """Return the sections of a file that are wanted, in its order; see `fill_rows`."""
    jobs, number = [], 0
    for part, into in zip(header.parts, state.parts, strict=True):
        is_cut = layout.is_cut(part)
        if not (is_cut or is_last):  # nobody has held its sections against the state's
            number += len(part.sections)
            continue
        for row, section in zip(part.sections, into.sections, strict=True):
            number += 1
            rows = section.rows[part.first : header.n_tokens] if is_cut else section.rows
            jobs.append(Job(number, part.first, row, rows))
    return jobs
