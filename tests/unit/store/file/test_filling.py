"""Reading with the kernels and run by run: the same states, the same misses, for the same reasons."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from edgellm.core import Tier
from edgellm.store.file import filling
from edgellm.store.format.codec import unpack_state
from edgellm.store.snapshots import Hit, Miss, Saved, SnapshotStore
from edgellm.store.state import PackedState

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgellm.store.file.jobs import Job
    from edgellm.store.state import Fingerprint

TOKENS = list(range(100, 300))
N = len(TOKENS)
HOWS = ("exact", "q8", "q6", "q5", "q4", "hybrid", "lossless")


def _state(snapshot_files: Any, how: str) -> Any:
    if how.startswith("q"):
        return snapshot_files.packed(Tier(how), N)
    makers = {"exact": "state", "hybrid": "hybrid", "lossless": "smooth"}
    return getattr(snapshot_files, makers[how])(N)


@pytest.fixture(params=HOWS)
def kept(
    request: pytest.FixtureRequest,
    store: SnapshotStore,
    fingerprint: Fingerprint,
    snapshot_files: Any,
) -> tuple[Saved, Any, Callable[[], Hit | Miss]]:
    """Return a saved snapshot, the state that it stands for, and what looks it up."""
    state = _state(snapshot_files, request.param)
    saved = store.save(fingerprint, TOKENS, state, lossless=request.param == "lossless")
    assert isinstance(saved, Saved)
    tier = state.tier if isinstance(state, PackedState) else Tier.EXACT
    expected = unpack_state(state) if isinstance(state, PackedState) else state
    return saved, expected, lambda: store.lookup(fingerprint, TOKENS, tier)


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[list[Job]]:
    """Return the jobs that each reading leaves to be done run by run."""
    found: list[list[Job]] = []

    class Watched(filling._ByTurns):
        def __init__(self, tier: Tier, runs: Any, jobs: list[Job]) -> None:
            found.append(jobs)
            super().__init__(tier, runs, jobs)

    monkeypatch.setattr(filling, "_ByTurns", Watched)
    return found


def test_both_read_the_same(
    kept: Any, left: list[list[Job]], snapshot_files: Any, monkeypatch: pytest.MonkeyPatch
):
    """The kernels do all but planes, short runs, and rows of other types than halves in columns."""
    _, expected, look = kept
    at_once = look()
    monkeypatch.setattr(filling, "filling", lambda _: None)
    by_turns = look()
    for found in (at_once, by_turns):
        assert isinstance(found, Hit), found
        assert snapshot_files.same(expected, found.state)
    hard = [j for j in left[1] if j.row.stored == "planes" or j.row.extent.n_bytes < 241]
    assert [job.number for job in left[0]] == [job.number for job in hard]
    assert len(left[1]) == sum(len(part.sections) for part in expected.parts)


def test_damage_is_the_same_miss(kept: Any, monkeypatch: pytest.MonkeyPatch):
    """Wherever it is: the kernels say no, and who reads again says why."""
    saved, _, look = kept
    content, rng = saved.path.read_bytes(), random.Random(11)
    for at in rng.sample(range(len(content)), 60):
        damaged = bytearray(content)
        damaged[at] ^= 1 << rng.randrange(8)
        saved.path.write_bytes(damaged)
        with_kernels = look()
        saved.path.write_bytes(damaged)
        with monkeypatch.context() as patch:
            patch.setattr(filling, "filling", lambda _: None)
            without = look()
        assert isinstance(with_kernels, Miss)
        assert with_kernels == without


def test_what_was_wrong_for_a_moment_is_read_again(
    kept: Any, left: list[list[Job]], snapshot_files: Any, monkeypatch: pytest.MonkeyPatch
):
    """A no of the kernels alone is no miss: every run is then read and checked anew."""
    _, expected, look = kept
    real = filling.filling

    def doubtful(fd: int) -> Any:
        work = real(fd)
        assert work is not None
        work.is_whole = False
        return work

    monkeypatch.setattr(filling, "filling", doubtful)
    found = look()
    assert isinstance(found, Hit)
    assert snapshot_files.same(expected, found.state)
    assert len(left[0]) == sum(len(part.sections) for part in expected.parts)
