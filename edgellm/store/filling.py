"""Filling the rows of a state from one open file: in place where they lie as in the file.

Two threads share the work on a large file. Each takes the next share as soon as it is done with one, so neither
waits for the other where a processor is busy with something else. Of plain rows each share has a reader at its
own place, and both read at the same time. Where there is something to unpack, the two take turns at reading, which
keeps the file in order for the system that reads ahead, and unpack at the same time.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from edgellm.kernels import transpose_f16
from edgellm.store import layout, planes
from edgellm.store.beside import Beside
from edgellm.store.codec import unpack_section
from edgellm.store.opening import blamed
from edgellm.store.runs import aligned
from edgellm.store.state import PackedSection
from edgellm.store.taking import PIECE_BYTES, Runs

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from typing import Any

    from numpy.typing import NDArray

    from edgellm.core import Tier
    from edgellm.store.chain import Link
    from edgellm.store.header import PartRow, SectionRow, SnapshotHeader
    from edgellm.store.state import KVState

    Rows = NDArray[np.unsignedinteger[Any]]
    Run = NDArray[np.uint8]

PLAIN: Final = (None, "exact")
"""How the runs are stored that are rows as they are."""

MAX_AT_ONCE_BYTES: Final = PIECE_BYTES
"""Of sections that are read together before they are summed, while they are in a cache."""

MIN_PACKED_BYTES: Final = 512 << 10
"""Of packed sections that two threads unpack: so many short steps are done for each that threads would
wait for the interpreter with smaller ones."""

MIN_TWO_THREADS_BYTES: Final = 4 << 20
"""Of a file that two threads read: starting one takes about as long as reading half of this."""


@dataclass(frozen=True, slots=True)
class _Job:
    """One section and its rows; None for a section that is left out."""

    part: PartRow
    row: SectionRow
    rows: Rows | None


@dataclass(frozen=True, slots=True)
class _Share:
    """What is read at once: sections that lie as in the file, or one of any kind.

    Attributes:
        jobs: in the order of the file.
        n_bytes_before, n_before: of the sections before them.
    """

    jobs: list[_Job]
    n_bytes_before: int
    n_before: int


@dataclass(frozen=True, slots=True)
class _Work:
    """What one or two threads take their shares from.

    Attributes:
        tier: of the file.
        left: shares that nobody has taken.
        runs: the reader, before the first of them.
        turn: held while a share is taken and read; None where each share has a reader of its own,
            made by the thread that takes it.
        room_bytes: of the longest run that is not read to where its rows belong.
    """

    tier: Tier
    left: deque[_Share]
    runs: Runs
    turn: AbstractContextManager[object] | None
    room_bytes: int


def fill_rows(link: Link, state: KVState, *, is_last: bool) -> bytes:
    """Fill the rows of a state that one file holds, and return the file's token ids.

    Args:
        link: the open file, behind its header.
        state: its rows are written to.
        is_last: whether the file is the one asked for, whose windows count; of those that it leans
            on, only the dense rows do.
    """
    header, runs = link.header, Runs(link.file)
    jobs = _jobs(header, state, is_last=is_last)
    with blamed(link.path):
        ids = bytearray(header.tokens.n_bytes)
        runs.take(header.tokens, memoryview(ids))
        after, has_two = runs, _is_large(jobs)
        turn: AbstractContextManager[object] | None = threading.Lock()
        if has_two and all(job.row.stored in PLAIN for job in jobs):
            twin = runs.twin(sum(_n_bytes(job) for job in jobs), len(jobs))
            after, turn, has_two = (twin, None, True) if twin else (runs, turn, False)
        room_bytes = max((_n_bytes(job) for job in jobs if not _is_in_place(job)), default=0)
        work = _Work(header.tier, _shares(jobs), runs, turn, room_bytes)
        with Beside(_do, work) if has_two else nullcontext():
            _do(work)
        after.footer(layout.FOOTER.pack(layout.END_MAGIC, link.file.n_bytes, link.digest))
    return bytes(ids)


def _jobs(header: SnapshotHeader, state: KVState, *, is_last: bool) -> list[_Job]:
    jobs = []
    for part, into in zip(header.parts, state.parts, strict=True):
        is_cut = layout.is_cut(part)
        for i, row in enumerate(part.sections):
            rows: Rows | None = into.sections[i].rows if is_cut or is_last else None
            if rows is not None and is_cut:
                rows = rows[part.first : header.n_tokens]
            jobs.append(_Job(part, row, rows))
    return jobs


def _is_large(jobs: list[_Job]) -> bool:
    """Return whether two threads are done sooner than one."""
    packed = [job.row.extent.n_bytes for job in jobs if job.row.stored == "packed"]
    if packed and min(packed) < MIN_PACKED_BYTES:
        return False
    return sum(job.row.extent.n_bytes for job in jobs) >= MIN_TWO_THREADS_BYTES


def _shares(jobs: list[_Job]) -> deque[_Share]:
    shares: deque[_Share] = deque()
    at_bytes = left_bytes = 0
    for i, job in enumerate(jobs):
        n_bytes = _n_bytes(job)
        can_join = n_bytes == job.row.extent.n_bytes and _is_in_place(job)
        if not can_join or n_bytes > left_bytes:
            shares.append(_Share([], at_bytes, i))
            left_bytes = MAX_AT_ONCE_BYTES if can_join else 0
        shares[-1].jobs.append(job)
        left_bytes -= n_bytes
        at_bytes += n_bytes
    return shares


def _n_bytes(job: _Job) -> int:
    """Return what a section takes in the file, padding included."""
    return aligned(job.row.extent.n_bytes)


def _is_in_place(job: _Job) -> bool:
    """Return whether rows lie in memory as they do in the file."""
    rows = job.rows
    return rows is not None and job.row.stored in PLAIN and rows.flags.c_contiguous


def _do(work: _Work) -> None:
    """Do shares as long as there are any; what one thread raises stops the other."""
    room = np.empty(work.room_bytes, np.uint8)
    try:
        while True:
            with work.turn or nullcontext():
                try:
                    share = work.left.popleft()
                except IndexError:
                    return
                runs = work.runs
                if work.turn is None:
                    runs = runs.twin(share.n_bytes_before, share.n_before) or runs
                run = _read(runs, share.jobs, room)
            if run is not None:
                _unpack(share.jobs[0], work.tier, run)
    finally:
        work.left.clear()


def _read(runs: Runs, jobs: list[_Job], room: Run) -> Run | None:
    """Read a share; return the run of one whose rows have to be made of it."""
    extents = [job.row.extent for job in jobs]
    if _is_in_place(jobs[0]):
        views = [job.rows.reshape(-1).view(np.uint8).data for job in jobs if job.rows is not None]
        if len(views) > 1:
            runs.take_all(extents, views)
        else:
            runs.take(extents[0], views[0])
        return None
    if jobs[0].rows is None:
        runs.skip(extents[0])
        return None
    run = room[: extents[0].n_bytes]
    runs.take(extents[0], run.data)
    return run


def _unpack(job: _Job, tier: Tier, run: Run) -> None:
    """Write the rows of a section, of any strides, from its run."""
    row, out = job.row, job.rows
    if out is None:
        return
    if row.stored == "packed":
        section = PackedSection(row.layer, row.role, row.type, row.shape, run)
        unpack_section(section, job.part.first, tier, out)
    elif row.stored == "planes":
        planes.join(run, out, f"layer {row.layer} {row.role}")
    elif out.itemsize == 2 and out.strides[0] < out.strides[1]:
        transpose_f16(run.view(np.uint16).reshape(row.shape), out=out.T)
    else:
        out[...] = run.view(out.dtype).reshape(row.shape)
