"""Filling the rows of a state from one open file: in place where they lie as in the file.

Two threads share the work on a large file. Each takes the next share as soon as it is done with one, so neither
waits for the other where a processor is busy with something else. Of plain rows each thread has a reader at its
own place, and both read at the same time. Where there is something to unpack, the two take turns at reading, which
keeps the file in order for the system that reads ahead, and unpack at the same time.
"""

from __future__ import annotations

import threading
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from edgellm.kernels import transpose_f16
from edgellm.store import layout, planes
from edgellm.store.beside import Beside
from edgellm.store.opening import blamed
from edgellm.store.portions import jobs_of, shares_of
from edgellm.store.runs import aligned
from edgellm.store.taking import Runs
from edgellm.store.unpacking import unpack_sections

if TYPE_CHECKING:
    from collections import deque
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from edgellm.core import Tier
    from edgellm.store.chain import Link
    from edgellm.store.portions import Job, Share
    from edgellm.store.state import KVState

    Run = NDArray[np.uint8]

MIN_TWO_THREADS_BYTES: Final = 4 << 20
"""Of a file that two threads read: starting one takes about as long as reading half of this."""


@dataclass(frozen=True, slots=True)
class _Work:
    """What one or two threads take their shares from.

    Attributes:
        tier: of the file.
        left: shares that nobody has taken.
        runs: the reader, before the first of them.
        turn: held while a share is taken and read; None where each thread has a reader of its own.
        room_bytes: of the longest share that is not read to where its rows belong.
    """

    tier: Tier
    left: deque[Share]
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
    jobs = jobs_of(header, state, is_last=is_last)
    with blamed(link.path):
        ids = bytearray(header.tokens.n_bytes)
        runs.take(header.tokens, memoryview(ids))
        shares = shares_of(jobs)
        is_plain = all(job.is_plain for job in jobs)
        both_read = is_plain and runs.twin() is not None
        has_two = sum(job.n_bytes for job in jobs) >= MIN_TWO_THREADS_BYTES
        room_bytes = max((s.n_bytes for s in shares if not s.jobs[0].is_in_place), default=0)
        turn = None if both_read else threading.Lock()
        work = _Work(header.tier, shares, runs, turn, room_bytes)
        with Beside(_do, work) if has_two and (both_read or not is_plain) else nullcontext():
            _do(work)
        runs.go_to(layout.data_bytes(header), len(jobs) + 1)  # the token ids are a run, too
        runs.footer(layout.FOOTER.pack(layout.END_MAGIC, link.file.n_bytes, link.digest))
    return bytes(ids)


def _do(work: _Work) -> None:
    """Do shares as long as there are any; what one thread raises stops the other."""
    room = np.empty(work.room_bytes, np.uint8)
    runs = (work.runs.twin() if work.turn is None else None) or work.runs
    try:
        while True:
            with work.turn or nullcontext():
                try:
                    share = work.left.popleft()
                except IndexError:
                    return
                runs.go_to(share.jobs[0].row.extent.offset, share.n_before + 1)
                run = _read(runs, share.jobs, room)
            if run is not None:
                _unpack(share.jobs, work.tier, run)
    finally:
        work.left.clear()


def _read(runs: Runs, jobs: list[Job], room: Run) -> Run | None:
    """Read a share; return the runs, one a row, where their sections' rows have to be made of them."""
    if jobs[0].rows is None:  # the next share's place is behind it
        return None
    extents = [job.row.extent for job in jobs]
    if jobs[0].is_in_place:
        views = [job.rows.reshape(-1).view(np.uint8).data for job in jobs if job.rows is not None]
        if len(views) > 1:
            runs.take_all(extents, views)
        else:
            runs.take(extents[0], views[0])
        return None
    n_bytes = extents[0].n_bytes
    if len(jobs) == 1:
        runs.take(extents[0], room[:n_bytes].data)
        return room[:n_bytes].reshape(1, n_bytes)
    found = room[: len(jobs) * aligned(n_bytes)].reshape(len(jobs), -1)
    runs.take_even(extents, found)
    return found[:, :n_bytes]


def _unpack(jobs: list[Job], tier: Tier, found: Run) -> None:
    """Write the rows of a share's sections, of any strides, from their runs."""
    row, rows = jobs[0].row, [job.rows for job in jobs if job.rows is not None]
    if row.stored == "packed":
        unpack_sections([job.row for job in jobs], jobs[0].part.first, tier, found, rows)
        return
    run, out = found[0], rows[0]
    if row.stored == "planes":
        planes.join(run, out, f"layer {row.layer} {row.role}")
    elif out.itemsize == 2 and out.strides[0] < out.strides[1]:
        transpose_f16(run.view(np.uint16).reshape(row.shape), out=out.T)
    else:
        out[...] = run.view(out.dtype).reshape(row.shape)
