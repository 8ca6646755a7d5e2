"""What is read of a file at once: its sections, cut into shares that one thread does as a whole.

Every short step that threads do between two calls out of the interpreter makes the other one wait, so
small sections go together: those that lie as in the file are read with one call, and packed ones of one
shape are checked and unpacked with one call. A share stays so small that a processor's cache holds it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from edgellm.store import layout
from edgellm.store.runs import aligned
from edgellm.store.taking import PIECE_BYTES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from edgellm.store.header import PartRow, SectionRow, SnapshotHeader
    from edgellm.store.state import KVState

    Rows = NDArray[np.unsignedinteger[Any]]

PLAIN: Final = (None, "exact")
"""How the runs are stored that are rows as they are."""

MAX_AT_ONCE_BYTES: Final = PIECE_BYTES
"""Of sections that are read together before they are summed, while they are in a cache."""

MAX_PACKED_AT_ONCE_BYTES: Final = 2 << 20
"""Of packed sections that are unpacked together: what comes out is twice as much or more."""

MAX_AT_ONCE: Final = 256
"""Sections: systems read into 1,024 places with one call at most."""


@dataclass(frozen=True, slots=True)
class Job:
    """One section and its rows.

    Attributes:
        part, row: what the header says of it.
        rows: where they are wanted; None for a section that is left out.
        n_bytes: what it takes in the file, padding included.
        is_plain: whether the file has its rows as they are.
        is_in_place: whether its rows lie in memory as they do in the file.
        max_share_bytes: of a share that it may belong to; 0 for one that stays alone.
    """

    part: PartRow
    row: SectionRow
    rows: Rows | None
    n_bytes: int
    is_plain: bool
    is_in_place: bool
    max_share_bytes: int

    def goes_with(self, before: Job) -> bool:
        """Return whether it may be in one share with the section before it."""
        if not self.max_share_bytes or self.row.stored != before.row.stored:
            return False
        if self.is_plain:
            return before.max_share_bytes > 0
        same = (self.row.role, self.row.shape) == (before.row.role, before.row.shape)
        return same and self.part is before.part and before.rows is not None


def job_of(part: PartRow, row: SectionRow, rows: Rows | None) -> Job:
    """Return a section with what follows from how it lies in the file and in memory."""
    n_bytes = aligned(row.extent.n_bytes)
    is_plain = row.stored in PLAIN
    is_in_place = is_plain and rows is not None and rows.flags.c_contiguous
    most = 0
    if is_in_place and n_bytes == row.extent.n_bytes:
        most = MAX_AT_ONCE_BYTES
    elif row.stored == "packed" and rows is not None:
        most = MAX_PACKED_AT_ONCE_BYTES
    return Job(part, row, rows, n_bytes, is_plain, is_in_place, most)


@dataclass(frozen=True, slots=True)
class Share:
    """Sections that follow each other in the file.

    Attributes:
        jobs: some whose rows lie as in the file; some packed ones of one shape; or one of any kind.
        n_before: sections of the file before them.
    """

    jobs: list[Job]
    n_before: int

    @property
    def n_bytes(self) -> int:
        """Return what it takes in the file, padding included."""
        return sum(job.n_bytes for job in self.jobs)


def jobs_of(header: SnapshotHeader, state: KVState, *, is_last: bool) -> list[Job]:
    """Return the sections of a file in their order, with the rows of a state; see `fill_rows`."""
    jobs = []
    for part, into in zip(header.parts, state.parts, strict=True):
        is_cut = layout.is_cut(part)
        for i, row in enumerate(part.sections):
            rows: Rows | None = into.sections[i].rows if is_cut or is_last else None
            if rows is not None and is_cut:
                rows = rows[part.first : header.n_tokens]
            jobs.append(job_of(part, row, rows))
    return jobs


def shares_of(jobs: list[Job]) -> deque[Share]:
    """Cut the sections of a file, all of them and in their order, into shares."""
    shares: deque[Share] = deque()
    left_bytes = 0
    for i, job in enumerate(jobs):
        can_join = job.n_bytes <= left_bytes and len(shares[-1].jobs) < MAX_AT_ONCE
        if not can_join or not job.goes_with(jobs[i - 1]):
            shares.append(Share([], i))
            left_bytes = job.max_share_bytes
        shares[-1].jobs.append(job)
        left_bytes -= job.n_bytes
    return shares
