"""Filling the rows of a state from one open file: in place where they lie as in the file.

Large files are read by two threads, each from a place of its own, but not those with packed sections: there
so many short steps are done for each section that the threads wait for the interpreter instead.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from edgellm.kernels import transpose_f16
from edgellm.store import layout, planes
from edgellm.store.beside import Beside
from edgellm.store.codec import unpack_section
from edgellm.store.opening import blamed
from edgellm.store.runs import ALIGN_BYTES
from edgellm.store.state import PackedSection
from edgellm.store.taking import Runs

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    from edgellm.core import Tier
    from edgellm.store.chain import Link
    from edgellm.store.header import Extent, PartRow, SectionRow, SnapshotHeader
    from edgellm.store.state import KVState

    Rows = NDArray[np.unsignedinteger[Any]]

PLAIN: Final = (None, "exact")
"""How the runs are stored that are rows as they are."""

MAX_AT_ONCE_BYTES: Final = 512 << 10
"""Of sections that are read together before they are summed, while they are in a cache."""

MIN_TWO_THREADS_BYTES: Final = 4 << 20
"""Of a file that two threads read: starting one takes about as long as reading half of this."""


@dataclass(frozen=True, slots=True)
class _Job:
    """One section and its rows; None for a section that is left out."""

    part: PartRow
    row: SectionRow
    rows: Rows | None


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
    footer = layout.FOOTER.pack(layout.END_MAGIC, link.file.n_bytes, link.digest)
    with blamed(link.path):
        ids = bytearray(header.tokens.n_bytes)
        runs.take(header.tokens, memoryview(ids))
        half = _half(jobs)
        other = runs.twin([job.row.extent for job in jobs[:half]]) if half else None
        if other is None:
            _read_jobs(runs, header.tier, jobs, footer)
        else:
            with Beside(_read_jobs, other, header.tier, jobs[half:], footer):
                _read_jobs(runs, header.tier, jobs[:half])
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


def _half(jobs: list[_Job]) -> int:
    """Return how many jobs one of two threads does, or 0 where one thread does them all."""
    if any(job.row.stored == "packed" for job in jobs):
        return 0
    sizes = [job.row.extent.n_bytes for job in jobs]
    if sum(sizes) < MIN_TWO_THREADS_BYTES:
        return 0
    sums = list(itertools.accumulate(sizes))
    return next(i for i, done in enumerate(sums) if 2 * done >= sums[-1])


def _read_jobs(runs: Runs, tier: Tier, jobs: list[_Job], footer: bytes | None = None) -> None:
    extents: list[Extent] = []
    views: list[memoryview] = []
    n_bytes = 0
    for job in jobs:
        view = _view(job)
        if views and (view is None or n_bytes + view.nbytes > MAX_AT_ONCE_BYTES):
            runs.take_all(extents, views)
            extents, views, n_bytes = [], [], 0
        if view is not None:
            extents.append(job.row.extent)
            views.append(view)
            n_bytes += view.nbytes
        elif job.rows is not None:
            _read_rows(runs, tier, job, job.rows)
        else:
            runs.skip(job.row.extent)
    runs.take_all(extents, views)
    if footer is not None:
        runs.footer(footer)


def _view(job: _Job) -> memoryview | None:
    """Return the bytes of rows that lie in memory as they do in the file, None for all others."""
    rows, extent = job.rows, job.row.extent
    if rows is None or job.row.stored not in PLAIN or extent.n_bytes % ALIGN_BYTES:
        return None
    return rows.reshape(-1).view(np.uint8).data if rows.flags.c_contiguous else None


def _read_rows(runs: Runs, tier: Tier, job: _Job, out: Rows) -> None:
    """Read one section into its rows, whose strides are free."""
    row = job.row
    is_in_order = out.flags.c_contiguous
    if row.stored in PLAIN and is_in_order:
        runs.take(row.extent, out.reshape(-1).view(np.uint8).data)
        return
    run = np.empty(row.extent.n_bytes, np.uint8)
    runs.take(row.extent, run.data)
    if row.stored == "packed":
        section = PackedSection(row.layer, row.role, row.type, row.shape, run)
        unpack_section(section, job.part.first, tier, out)
    elif row.stored == "planes":
        planes.join(run, out, f"layer {row.layer} {row.role}")
    elif out.itemsize == 2 and out.strides[0] < out.strides[1]:
        transpose_f16(run.view(np.uint16).reshape(row.shape), out=out.T)
    else:
        out[...] = run.view(out.dtype).reshape(row.shape)
