"""Shares of a file: what is read and unpacked together, and what never is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgellm.store.header import Extent, PartRow, SectionRow
from edgellm.store.portions import (
    MAX_AT_ONCE,
    MAX_AT_ONCE_BYTES,
    MAX_PACKED_AT_ONCE_BYTES,
    Job,
    job_of,
    shares_of,
)

if TYPE_CHECKING:
    from edgellm.store.header import Stored
    from edgellm.store.state import Role

PART = PartRow("dense", 0, 8, ())
OTHER = PartRow("window", 0, 8, ())


def job(
    stored: Stored = "packed",
    role: Role = "K",
    part: PartRow = PART,
    n_bytes: int = 64,
    shape: tuple[int, int] = (8, 16),
    *,
    is_left_out: bool = False,
) -> Job:
    """Return a section; where it lies does not matter here."""
    rows = None if is_left_out else np.zeros(shape, np.uint16)
    return job_of(part, SectionRow(0, role, "f16", shape, Extent(0, n_bytes, ""), stored), rows)


def sizes(jobs: list[Job]) -> list[int]:
    """Return how many sections each share has, and see that none is lost or moved."""
    shares = shares_of(jobs)
    assert [one for share in shares for one in share.jobs] == jobs
    assert [share.n_before for share in shares] == [
        sum(len(other.jobs) for other in list(shares)[:i]) for i in range(len(shares))
    ]
    return [len(share.jobs) for share in shares]


def test_neighbours_of_one_shape_are_unpacked_together():
    """Not those of another role, shape or part, and none that is left out or stored otherwise."""
    a = job()
    assert sizes([a, job(), job()]) == [3]
    others = (job(role="V"), job(shape=(8, 17)), job(part=OTHER), job(is_left_out=True))
    for other in (*others, job("planes"), job("exact")):
        assert sizes([a, other, job()]) == [1, 1, 1], other


def test_plain_rows_of_any_shape_are_read_together():
    """As long as they need no padding and lie in memory as in the file."""
    plain = job("exact")
    assert sizes([plain, job("exact", "V", OTHER, 128, (8, 8))]) == [2]
    assert sizes([plain, job("exact", n_bytes=63), plain]) == [1, 1, 1]
    turned = job_of(PART, plain.row, np.zeros((16, 8), np.uint16).T)
    assert sizes([plain, turned, plain]) == [1, 1, 1]


def test_a_share_is_no_longer_than_a_cache_holds():
    """A section that is longer stays alone."""
    for stored, limit in (("packed", MAX_PACKED_AT_ONCE_BYTES), ("exact", MAX_AT_ONCE_BYTES)):
        half, whole = job(stored, n_bytes=limit // 2), job(stored, n_bytes=limit + 64)  # type: ignore[arg-type]
        assert sizes([half, half, half]) == [2, 1]
        assert sizes([whole, whole]) == [1, 1]


def test_no_more_places_than_one_call_reads_into():
    """However small they are."""
    assert sizes([job("exact")] * (MAX_AT_ONCE + 1)) == [MAX_AT_ONCE, 1]
