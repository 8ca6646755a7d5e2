"""Reading one snapshot: nothing of it is given out before all of it has been checked.

The rows are read into memory of the engine's choice or our own, never mapped: a file that is cut
under a map kills the process. Memory is taken only after headers and files agree on the length to
the byte. Each run is summed right after it was read, while it is still in the processor's cache.
"""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import xxhash

from edgellm.errors import SnapshotCorrupt, SnapshotError
from edgellm.kernels import transpose_f16
from edgellm.store import layout, planes
from edgellm.store.beside import Beside
from edgellm.store.chain import open_chain
from edgellm.store.codec import unpack_section
from edgellm.store.files import open_plain
from edgellm.store.landing import state_for
from edgellm.store.opening import read_header
from edgellm.store.runs import ALIGN_BYTES, aligned
from edgellm.store.state import Anchor, PackedSection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import Any

    from numpy.typing import NDArray

    from edgellm.core import Tier
    from edgellm.store.chain import Link
    from edgellm.store.files import Opener, OpenFile
    from edgellm.store.header import Extent, PartRow, SectionRow, SnapshotHeader
    from edgellm.store.state import Fingerprint, KVState, Landing

    Rows = NDArray[np.unsignedinteger[Any]]

PLAIN: Final = (None, "exact")
"""How the runs are stored that are rows as they are."""

MAX_AT_ONCE_BYTES: Final = 512 << 10
"""Of sections that are read together before they are summed, while they are in a cache."""

MIN_TWO_THREADS_BYTES: Final = 4 << 20
"""Of a file that two threads read: starting one takes about as long as reading half of this."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot that passed every check.

    Attributes:
        header: what its file says of itself.
        n_bytes: length of the file, without those that it leans on.
        token_ids: the prefix as little-endian int32.
        state: the memory, in the landing's rows or in views of one buffer of this object.
        anchor: what a longer snapshot may lean on.
        fingerprints: of its file and those that it leans on; they differ at most in soft fields.
        paths: of these files, its own first.
    """

    header: SnapshotHeader
    n_bytes: int
    token_ids: bytes
    state: KVState
    anchor: Anchor
    fingerprints: tuple[Fingerprint, ...]
    paths: tuple[Path, ...]


def read_snapshot(
    path: Path,
    accept: Callable[[SnapshotHeader], None] = lambda _: None,
    *,
    open_file: Opener = open_plain,
    landing: Landing | None = None,
) -> Snapshot:
    """Read a whole snapshot, with the files that it leans on.

    Args:
        path: the file; links are not followed.
        accept: is given the header before the arrays are read, and raises to stop.
        open_file: opens a file of the store.
        landing: gives the memory to read into, or None for fresh arrays.

    Raises:
        SnapshotCorrupt: a file fails a check; `path` of the error is the file that did.
        BaseMissing: a file that it leans on is gone or was replaced.
        SnapshotIncompatible: it asks for something this version cannot do.
        OSError: a file cannot be opened or read.
    """
    with contextlib.ExitStack() as stack:
        links = open_chain(stack, path, open_file, accept)
        header = links[0].header
        state = state_for(header, landing)
        ids = _read_link(links[0], state, is_last=True)
        for link in links[1:]:
            if not ids.startswith(_read_link(link, state, is_last=False)):
                raise SnapshotCorrupt("it leans on other tokens than its own", path=path)
        n_bytes = links[0].file.disk_bytes
    anchor = Anchor(path.stem, header.n_tokens, links[0].digest.hex())
    fingerprints = tuple(link.header.fingerprint for link in links)
    paths = tuple(link.path for link in links)
    return Snapshot(header, n_bytes, ids, state, anchor, fingerprints, paths)


def read_info(path: Path, *, open_file: Opener = open_plain) -> tuple[SnapshotHeader, int]:
    """Read and check a snapshot's header and length, not its arrays.

    Returns:
        The header and the length of the file in bytes.

    Raises:
        SnapshotCorrupt, SnapshotIncompatible, OSError: as `read_snapshot`.
    """
    with _blamed(path), open_file(path) as file:
        return read_header(file)[0], file.disk_bytes


def read_tokens(path: Path, *, open_file: Opener = open_plain) -> tuple[SnapshotHeader, bytes]:
    """Read and check a snapshot's header, length and token ids, not its arrays.

    Returns:
        The header and the prefix as little-endian int32.

    Raises:
        SnapshotCorrupt, SnapshotIncompatible, OSError: as `read_snapshot`.
    """
    with _blamed(path), open_file(path) as file:
        header = read_header(file)[0]
        ids = bytearray(header.tokens.n_bytes)
        _Runs(file).take(header.tokens, memoryview(ids))
        return header, bytes(ids)


@contextlib.contextmanager
def _blamed(path: Path) -> Iterator[None]:
    """Name the file in what is wrong with it, a sudden end among that."""
    try:
        yield
    except SnapshotError as err:
        err.path = str(path)
        raise
    except EOFError as err:
        raise SnapshotCorrupt(f"the file ends early, {err}", path=path) from err


class _Runs:
    """Takes the runs of one file in order, from the first behind its header to the footer."""

    def __init__(self, file: OpenFile, n_taken: int = 0) -> None:
        self._file = file
        self._n_taken = n_taken

    def take(self, extent: Extent, into: memoryview) -> None:
        """Read a run and check its sum, and the padding after it.

        Args:
            extent: of the next run.
            into: its length, contiguous.
        """
        self._file.fill(into)
        self._check(extent, into)
        if n_padding := aligned(extent.n_bytes) - extent.n_bytes:
            padding = bytearray(n_padding)
            self._file.fill(padding)
            if any(padding):
                raise SnapshotCorrupt(f"section {self._n_taken}: the padding after it is not zero")
        self._n_taken += 1

    def take_all(self, extents: list[Extent], into: list[memoryview]) -> None:
        """Read some runs that need no padding, and check their sums; see `take`."""
        self._file.fill_all(into)
        for extent, content in zip(extents, into, strict=True):
            self._check(extent, content)
            self._n_taken += 1

    def _check(self, extent: Extent, content: memoryview) -> None:
        if xxhash.xxh3_128_hexdigest(content) != extent.xxh3:
            what = f"section {self._n_taken} at {extent.offset}"
            raise SnapshotCorrupt(f"{what}: the checksum is wrong")

    def skip(self, extent: Extent) -> None:
        """Leave out a run and its padding."""
        self._file.skip(aligned(extent.n_bytes))
        self._n_taken += 1

    def footer(self, expected: bytes) -> None:
        """Read what is left of the file."""
        footer = bytearray(layout.FOOTER.size)
        self._file.fill(footer)
        if footer != expected:
            raise SnapshotCorrupt("the footer is wrong")

    def twin(self, extents: list[Extent]) -> _Runs | None:
        """Return what takes the runs after these, at the same time; see `OpenFile.twin`."""
        file = self._file.twin(sum(aligned(extent.n_bytes) for extent in extents))
        return _Runs(file, self._n_taken + len(extents)) if file is not None else None


@dataclass(frozen=True, slots=True)
class _Job:
    """One section and its rows; None for a section that is left out."""

    part: PartRow
    row: SectionRow
    rows: Rows | None


def _read_link(link: Link, state: KVState, *, is_last: bool) -> bytes:
    """Fill the rows of a state that one file holds, and return the file's token ids.

    Args:
        link: the open file, behind its header.
        state: its rows are written to.
        is_last: whether the file is the one asked for, whose windows count; of those that it leans
            on, only the dense rows do.
    """
    header, runs = link.header, _Runs(link.file)
    jobs = _jobs(header, state, is_last=is_last)
    footer = layout.FOOTER.pack(layout.END_MAGIC, link.file.n_bytes, link.digest)
    with _blamed(link.path):
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
    sizes = [job.row.extent.n_bytes for job in jobs]
    if sum(sizes) < MIN_TWO_THREADS_BYTES:
        return 0
    sums = list(itertools.accumulate(sizes))
    return next(i for i, done in enumerate(sums) if 2 * done >= sums[-1])


def _read_jobs(runs: _Runs, tier: Tier, jobs: list[_Job], footer: bytes | None = None) -> None:
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


def _read_rows(runs: _Runs, tier: Tier, job: _Job, out: Rows) -> None:
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
