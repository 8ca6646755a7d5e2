"""SnapshotWriter: one state at a time, never waited for longer than asked."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from edgellm.store.background import SnapshotWriter
from edgellm.store.snapshots import Hit, Saved, Skipped, SnapshotStore

if TYPE_CHECKING:
    from pathlib import Path

TOKENS = list(range(12))


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
    assert writer.submit(snapshot_files.FINGERPRINT, TOKENS, state)
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
    assert writer.submit(snapshot_files.FINGERPRINT, TOKENS, snapshot_files.state())
    assert gate.reached.wait(30)
    assert not writer.submit(snapshot_files.FINGERPRINT, TOKENS[:5], snapshot_files.state(5))
    gate.opened.set()
    assert writer.close(30)
    dropped, saved = writer.outcomes
    assert dropped == Skipped("the writer is busy with the snapshot before")
    assert isinstance(saved, Saved)


def test_states_one_after_the_other_are_all_saved(tmp_path: Path, snapshot_files: Any):
    """The thread is ready again when it has reported."""
    writer = SnapshotWriter(SnapshotStore(tmp_path))
    for n in range(1, 6):
        assert writer.submit(snapshot_files.FINGERPRINT, TOKENS[:n], snapshot_files.state(n))
        deadline = time.monotonic() + 30
        while len(writer.outcomes) < n and time.monotonic() < deadline:
            time.sleep(0.001)
    assert writer.close(30)
    assert all(isinstance(outcome, Saved) for outcome in writer.outcomes)


def test_closing_does_not_wait_for_ever(tmp_path: Path, snapshot_files: Any):
    """A stuck disk costs the limit, not more; the state was not saved."""
    gate = Gate()
    writer = SnapshotWriter(SnapshotStore(tmp_path, fault=gate))
    writer.submit(snapshot_files.FINGERPRINT, TOKENS, snapshot_files.state())
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
    assert not writer.submit(snapshot_files.FINGERPRINT, TOKENS, snapshot_files.state())
    assert writer.outcomes == (Skipped("the writer is closed"),)


def test_a_failure_is_kept_and_can_be_waited_for(tmp_path: Path, snapshot_files: Any):
    """The first thing that went wrong; a state that was only dropped is none."""
    (tmp_path / "store").write_text("in the way")
    gate = Gate()
    writer = SnapshotWriter(SnapshotStore(tmp_path / "store", fault=gate))
    assert writer.settle(0)
    for n in (12, 5):
        writer.submit(snapshot_files.FINGERPRINT, TOKENS[:n], snapshot_files.state(n))
        assert gate.reached.wait(30)
    assert (writer.settle(0.01), writer.failure) == (False, "")
    gate.opened.set()
    assert writer.settle(30)
    assert writer.failure.startswith("cannot write: ")
    assert writer.failure.endswith(f" in {tmp_path / 'store'}")


def test_a_wrong_token_is_told_to_the_caller(tmp_path: Path, snapshot_files: Any):
    """The thread never meets it."""
    writer = SnapshotWriter(SnapshotStore(tmp_path))
    with pytest.raises(ValueError, match="token"):
        writer.submit(snapshot_files.FINGERPRINT, [-1], snapshot_files.state(1))
    assert writer.close()


def test_without_a_thread_nothing_is_written_and_nothing_breaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot_files: Any
):
    """A system without threads to give costs the snapshot, not the answer."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    writer = SnapshotWriter(SnapshotStore(tmp_path))
    assert not writer.submit(snapshot_files.FINGERPRINT, TOKENS, snapshot_files.state())
    assert writer.outcomes == (Skipped("no thread could be started", failed=True),)
    assert writer.close()
