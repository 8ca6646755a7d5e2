"""Filling the rows of a state from one open file: at once where the kernels can, else run by run.

Two threads share the work on a large file. Each takes the next section as soon as it is done with one, so
neither waits for the other where a processor is busy with something else. The kernels' threads read at two
places; ours take turns at reading, because a file in an envelope has one place, and unpack at the same time.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from edgellm.kernels import PackedRun, filling, transpose_f16
from edgellm.store.file.beside import Beside
from edgellm.store.file.jobs import jobs_of
from edgellm.store.file.opening import blamed
from edgellm.store.file.taking import Runs
from edgellm.store.format import layout, planes
from edgellm.store.format.runs import axis_of, run_of
from edgellm.store.format.unpacking import unpack_section

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from edgellm.core import Tier
    from edgellm.kernels import Filling
    from edgellm.store.disk.files import OpenFile
    from edgellm.store.file.chain import Link
    from edgellm.store.file.jobs import Job, Rows
    from edgellm.store.state import KVState, Role

MIN_TWO_THREADS_BYTES: Final = 2 << 20
"""Of runs that two threads read: starting one takes about as long as reading half of this."""


def fill_rows(link: Link, state: KVState, *, is_last: bool) -> bytes:
    """Fill the rows of a state that one file holds, and return the file's token ids.

    Args:
        link: the open file, behind its header.
        state: its rows are written to.
        is_last: whether the file is the one asked for, whose windows count; of those that it leans
            on, only the dense rows do.
    """
    header = link.header
    jobs = jobs_of(header, state, is_last=is_last)
    with blamed(link.path):
        left = _left_at_once(link.file, header.tier, jobs)
        runs = Runs(link.file)
        ids = bytearray(header.tokens.n_bytes)
        runs.take(header.tokens, memoryview(ids))
        _by_two(_ByTurns(header.tier, runs, left).do, left)
        runs.go_to(layout.data_bytes(header), len(header.extents()))
        runs.footer(layout.FOOTER.pack(layout.END_MAGIC, link.file.n_bytes, link.digest))
    return bytes(ids)


def _by_two(do: Callable[[], None], jobs: list[Job]) -> None:
    """Have jobs done by two threads where there is enough to do."""
    has_two = sum(job.row.extent.n_bytes for job in jobs) >= MIN_TWO_THREADS_BYTES
    with Beside(do) if has_two else nullcontext():
        do()


def _left_at_once(file: OpenFile, tier: Tier, jobs: list[Job]) -> list[Job]:
    """Have the kernels do what they can, and return the rest: all of it where something is wrong.

    What is wrong is found again, and said, by who reads run by run.
    """
    place = file.place
    work = filling(place.fd) if place is not None else None
    if place is None or work is None:
        return jobs
    done = [_is_added(work, place.at, tier, job) for job in jobs]
    if not any(done):
        return jobs
    _by_two(work.do, [job for job, is_done in zip(jobs, done, strict=True) if is_done])
    if not work.is_whole:
        return jobs
    return [job for job, is_done in zip(jobs, done, strict=True) if not is_done]


def _is_added(work: Filling, start: int, tier: Tier, job: Job) -> bool:
    """Return whether the kernels do a job."""
    row, extent = job.row, job.row.extent
    packed = None
    if not job.is_plain:
        packed = (
            _packed_run(tier, row.role, row.shape, job.first) if row.stored == "packed" else None
        )
        if packed is None:
            return False
    found = bytes.fromhex(extent.xxh3)
    return work.add(start + extent.offset, extent.n_bytes, found, job.rows, packed)


@functools.lru_cache(maxsize=256)
def _packed_run(tier: Tier, role: Role, shape: tuple[int, int], first: int) -> PackedRun | None:
    """Return how a section is packed, in the kernels' words."""
    run = run_of(tier, role, shape, first)
    if run is None:
        return None
    how, places = run.coding, (run.scale.start, run.minimum.start, run.codes.start)
    return PackedRun(axis_of(role), how.bits, how.group, run.exact.shape[0], *places)


class _ByTurns:
    """Jobs that one or two threads do, each of which calls `do`.

    Args:
        tier: of the file.
        runs: the reader, before the first of them.
        jobs: in the file's order.
    """

    def __init__(self, tier: Tier, runs: Runs, jobs: list[Job]) -> None:
        self._tier = tier
        self._runs = runs
        self._left = deque(jobs)
        self._turn = threading.Lock()  # held while a job is taken and read
        self._room_bytes = max(
            (j.row.extent.n_bytes for j in jobs if not _is_in_place(j)), default=0
        )

    def do(self) -> None:
        """Do jobs as long as there are any; what one thread raises stops the other."""
        room = np.empty(self._room_bytes, np.uint8)
        try:
            while True:
                with self._turn:
                    try:
                        job = self._left.popleft()
                    except IndexError:
                        return
                    run = self._read(job, room)
                if not _is_in_place(job):
                    _unpack(job, self._tier, run)
        finally:
            self._left.clear()

    def _read(self, job: Job, room: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Read a section's run to where its rows are wanted, if they lie there as in the file."""
        extent = job.row.extent
        run = job.rows.reshape(-1).view(np.uint8) if _is_in_place(job) else room[: extent.n_bytes]
        self._runs.go_to(extent.offset, job.number)
        self._runs.take(extent, run.data)
        return run


def _is_in_place(job: Job) -> bool:
    return job.is_plain and job.rows.flags.c_contiguous


def _has_lines(rows: Rows) -> bool:
    """Return whether rows or columns have their elements side by side, which kernels ask for."""
    return rows.itemsize in rows.strides and min(rows.strides) >= rows.itemsize


def _unpack(job: Job, tier: Tier, run: NDArray[np.uint8]) -> None:
    """Write a section's rows, of any strides, from its run."""
    row, out = job.row, job.rows
    if out.itemsize == 2 and not _has_lines(out):
        lined = np.empty(out.shape, out.dtype)
        _unpack(replace(job, rows=lined), tier, run)
        out[...] = lined
    elif row.stored == "packed":
        unpack_section(row, job.first, tier, run, out)
    elif row.stored == "planes":
        planes.join(run, out, f"layer {row.layer} {row.role}")
    elif out.itemsize == 2 and out.strides[0] < out.strides[1]:
        transpose_f16(run.view(np.uint16).reshape(row.shape), out=out.T)
    else:
        out[...] = run.view(out.dtype).reshape(row.shape)
