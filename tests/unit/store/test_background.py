"""SnapshotWriter: batches in order, two at most, never waited for longer than asked."""

from __future__ import annotations

import errno
import os
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from edgellm.store.background import SnapshotWriter, Unsaved
from edgellm.store.snapshots import Hit, Saved, Skipped, SnapshotStore

if TYPE_CHECKING:
    from pathlib import Path

TOKENS = list(range(12))


def unsaved(snapshot_files: Any, tokens: list[int], state: Any, **how: Any) -> Unsaved:
    """Say of which tokens a state is."""
    return Unsaved(snapshot_files.FINGERPRINT, tuple(tokens), state, **how)


class Gate:
    """A fault hook that stops the writer at its first step until it is opened."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()

    def __call__(self, step: str, path: str) -> None:
        self.reached.set()
        assert self.opened.wait(30)


def test_a_state_is_saved_while_the_caller_goes_on(tmp_path: Path, snapshot_files: Any):
    """Submitting returns before the write; closing waits for it."""
    gate = Gate()
    store = SnapshotStore(tmp_path, fault=gate)
    writer = SnapshotWriter(store)
    state = snapshot_files.state()
    assert writer.submit([unsaved(snapshot_files, TOKENS, state)])
    assert gate.reached.wait(30)
    assert writer.outcomes == ()
    gate.opened.set()
    assert writer.close(30)
    (outcome,) = writer.outcomes
    assert isinstance(outcome, Saved)
    found = store.lookup(snapshot_files.FINGERPRINT, TOKENS)
    assert isinstance(found, Hit)
    assert snapshot_files.same(state, found.state)


def test_a_second_state_is_dropped_while_one_is_in_hand(tmp_path: Path, snapshot_files: Any):
    """Two large states are never held at once; the reason is kept."""
    gate = Gate()
    writer = SnapshotWriter(SnapshotStore(tmp_path, fault=gate))
    assert writer.submit([unsaved(snapshot_files, TOKENS, snapshot_files.state())])
    assert gate.reached.wait(30)
    assert not writer.submit([unsaved(snapshot_files, TOKENS[:5], snapshot_files.state(5))])
    gate.opened.set()
    assert writer.close(30)
    dropped, saved = writer.outcomes
    assert dropped == Skipped("the writer is busy with the snapshot before")
    assert isinstance(saved, Saved)


def test_states_one_after_the_other_are_all_saved(tmp_path: Path, snapshot_files: Any):
    """The thread is ready again when it has reported."""
    writer = SnapshotWriter(SnapshotStore(tmp_path))
    for n in range(1, 6):
        assert writer.submit([unsaved(snapshot_files, TOKENS[:n], snapshot_files.state(n))])
        deadline = time.monotonic() + 30
        while len(writer.outcomes) < n and time.monotonic() < deadline:
            time.sleep(0.001)
    assert writer.close(30)
    assert all(isinstance(outcome, Saved) for outcome in writer.outcomes)


def test_closing_does_not_wait_for_ever(tmp_path: Path, snapshot_files: Any):
    """A stuck disk costs the limit, not more; the state was not saved."""
    gate = Gate()
    writer = SnapshotWriter(SnapshotStore(tmp_path, fault=gate))
    writer.submit([unsaved(snapshot_files, TOKENS, snapshot_files.state())])
    assert gate.reached.wait(30)
    start = time.monotonic()
    assert not writer.close(0.05)
    assert time.monotonic() - start < 2
    gate.opened.set()
    assert writer.close(30)


def test_a_closed_writer_takes_nothing_and_an_unused_one_closes(
    tmp_path: Path, snapshot_files: Any
):
    """No thread is started for nothing."""
    before = threading.active_count()
    writer = SnapshotWriter(SnapshotStore(tmp_path))
    assert threading.active_count() == before
    assert writer.close()
    assert writer.close()
    assert not writer.submit([unsaved(snapshot_files, TOKENS, snapshot_files.state())])
    assert writer.outcomes == (Skipped("the writer is closed"),)


def test_a_failure_is_kept_and_can_be_waited_for(tmp_path: Path, snapshot_files: Any):
    """The first thing that went wrong; a state that was only dropped is none."""
    gate = Gate()

    def fault(step: str, path: str) -> None:
        gate(step, path)
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    writer = SnapshotWriter(SnapshotStore(tmp_path, fault=fault))
    assert writer.settle(0)
    for n in (12, 5):
        writer.submit([unsaved(snapshot_files, TOKENS[:n], snapshot_files.state(n))])
        assert gate.reached.wait(30)
    assert (writer.settle(0.01), writer.failure) == (False, "")
    gate.opened.set()
    assert writer.settle(30)
    assert writer.failure.startswith("cannot write: ")
    assert writer.failure.endswith(f" in {tmp_path}")


def test_a_wrong_token_is_told_to_the_caller(tmp_path: Path, snapshot_files: Any):
    """The thread never meets it."""
    writer = SnapshotWriter(SnapshotStore(tmp_path))
    with pytest.raises(ValueError, match="token"):
        writer.submit([unsaved(snapshot_files, [-1], snapshot_files.state(1))])
    assert writer.close()


def test_without_a_thread_nothing_is_written_and_nothing_breaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot_files: Any
):
    """A system without threads to give costs the snapshot, not the answer."""

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("edgellm.threads._thread.start_new_thread", refuse)
    writer = SnapshotWriter(SnapshotStore(tmp_path))
    assert not writer.submit([unsaved(snapshot_files, TOKENS, snapshot_files.state())])
    assert writer.outcomes == (Skipped("no thread could be started", failed=True),)
    assert writer.close()


def test_a_batch_is_written_in_order_each_on_the_one_before(tmp_path: Path, snapshot_files: Any):
    """A state finds what it leans on under the name it gives, also when that was only noted."""
    seen: list[tuple[int, Any]] = []

    class Watching(SnapshotStore):
        def save(self, fingerprint, tokens, state, *, base=None, **how):  # noqa: ANN003, ANN202
            seen.append((len(tokens), base))
            return super().save(fingerprint, tokens, state, base=base, **how)

    store = Watching(tmp_path)
    told: list[tuple[int, float]] = []
    writer = SnapshotWriter(store, lambda n_bytes, seconds: told.append((n_bytes, seconds)))
    keys = [store.key(snapshot_files.FINGERPRINT, TOKENS[:n]) for n in (4, 8)]
    batch = [
        unsaved(snapshot_files, TOKENS[:4], snapshot_files.state(4), base_key="gone"),
        unsaved(snapshot_files, TOKENS[:8], snapshot_files.state(8), base_key=keys[0]),
    ]
    assert writer.submit(batch)
    assert writer.close(30)
    first, second = writer.outcomes
    assert isinstance(first, Saved)
    assert isinstance(second, Saved)
    assert seen == [(4, None), (8, first.anchor)]
    assert [n_bytes for n_bytes, _ in told] == [first.n_bytes, second.n_bytes]
    assert all(seconds > 0 for _, seconds in told)

    other = SnapshotWriter(store)
    other.note(second.anchor)
    other.submit([unsaved(snapshot_files, TOKENS, snapshot_files.state(), base_key=keys[1])])
    assert other.close(30)
    assert seen[-1] == (12, second.anchor)


def test_a_batch_that_may_wait_stands_behind_one_in_hand(tmp_path: Path, snapshot_files: Any):
    """One more and no further; whoever is told of the end is told in every case, once."""
    gate = Gate()
    writer = SnapshotWriter(SnapshotStore(tmp_path, fault=gate))
    done: list[int] = []
    taken = []
    for n in (3, 4, 5):
        batch = [unsaved(snapshot_files, TOKENS[:n], snapshot_files.state(n))]
        taken.append(writer.submit(batch, done=lambda n=n: done.append(n), may_wait=True))
        assert gate.reached.wait(30)
    assert (taken, done) == ([True, True, False], [5])
    gate.opened.set()
    assert writer.close(30)
    assert done == [5, 3, 4]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("place", ["save", "on_saved", "done"])
def test_a_fault_of_ours_costs_its_batches_and_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot_files: Any, place: str
):
    """Whoever waits hears of it, what was taken is given back, and later states are saved."""
    ended: list[int] = []
    broken = [True]
    gate = Gate()

    def break_once() -> None:
        if broken:
            broken.clear()
            raise LookupError("a fault of ours")

    class Broken(SnapshotStore):
        def save(self, *given, **how):  # noqa: ANN002, ANN003, ANN202
            if place == "save":
                gate("save", "")
                break_once()
            return super().save(*given, **how)

    def on_saved(*_: float) -> None:
        if place == "on_saved":
            break_once()

    def done(n: int) -> None:
        ended.append(n)
        if place == "done" and n == 1:
            break_once()

    writer = SnapshotWriter(Broken(tmp_path, fault=gate), on_saved)
    states = [unsaved(snapshot_files, TOKENS[:n], snapshot_files.state(n)) for n in (4, 8, 10)]
    assert writer.submit(states[:2], done=lambda: done(1))
    assert gate.reached.wait(30)
    assert writer.submit(states[2:], done=lambda: done(2), may_wait=True)
    gate.opened.set()
    assert writer.settle(30)
    assert [1, 2] == ended
    assert 3 == len(writer.outcomes)
    assert writer.failed_last
    assert "the writer broke off" == writer.failure
    assert writer.submit([unsaved(snapshot_files, TOKENS, snapshot_files.state())])
    assert writer.close(30)
    assert isinstance(writer.outcomes[-1], Saved)
