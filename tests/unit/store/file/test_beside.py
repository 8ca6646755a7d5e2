"""Two threads read one file: the same bits, the same misses, and neither waits for the other."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

import pytest

from edgellm.core import Tier
from edgellm.errors import SnapshotCorrupt
from edgellm.store.file import beside, filling, taking
from edgellm.store.file.beside import Beside
from edgellm.store.format.codec import unpack_state
from edgellm.store.snapshots import Hit, Miss, Saved, SnapshotStore
from edgellm.store.state import PackedState

if TYPE_CHECKING:
    from edgellm.store.state import Fingerprint

TOKENS = list(range(12))


@pytest.fixture(autouse=True, params=["at once", "by turns"])
def small_files_count(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let two threads read the small files of these tests; with the kernels, and in small pieces."""
    monkeypatch.setattr(filling, "MIN_TWO_THREADS_BYTES", 1)
    monkeypatch.setattr(taking, "PIECE_BYTES", 24)
    if request.param == "by turns":
        monkeypatch.setattr(filling, "filling", lambda _: None)


@pytest.mark.parametrize("how", ["state", "hybrid", "smooth", "packed"])
def test_two_threads_read_the_same_bits(
    store: SnapshotStore, fingerprint: Fingerprint, snapshot_files: Any, how: str
):
    """Plain, packed and compressed sections, padding and footer."""
    make = getattr(snapshot_files, how)
    state = make(Tier.Q4) if how == "packed" else make()
    saved = store.save(fingerprint, TOKENS, state, lossless=True)
    assert isinstance(saved, Saved)
    found = store.lookup(fingerprint, TOKENS, Tier.Q4)
    assert isinstance(found, Hit), found
    expected = unpack_state(state) if isinstance(state, PackedState) else state
    assert snapshot_files.same(expected, found.state)


def test_damage_in_either_half_is_a_miss(
    store: SnapshotStore, fingerprint: Fingerprint, snapshot_files: Any
):
    """What one of the threads finds is the reason."""
    saved = store.save(fingerprint, TOKENS, snapshot_files.state())
    assert isinstance(saved, Saved)
    content = saved.path.read_bytes()
    reasons = set()
    for at in range(len(content) % 61, len(content), 61):
        damaged = bytearray(content)
        damaged[at] ^= 1
        saved.path.write_bytes(damaged)
        found = store.lookup(fingerprint, TOKENS)
        assert isinstance(found, Miss)
        reasons.add(found.reason)
    for number in range(1, 8):
        assert any(f"section {number} at " in reason for reason in reasons), reasons


def test_the_first_error_stops_both(
    store: SnapshotStore,
    fingerprint: Fingerprint,
    snapshot_files: Any,
    monkeypatch: pytest.MonkeyPatch,
):
    """After a section that is damaged, at most the one that the other thread is reading is read."""
    saved = store.save(fingerprint, TOKENS, snapshot_files.state())
    assert isinstance(saved, Saved)
    read: list[object] = []
    failed: list[bool] = []
    damaged = SnapshotCorrupt("section 1 at 64: the checksum is wrong")
    both_read, stopped = threading.Event(), threading.Event()

    def read_one(_: object, job: Any, room: Any) -> Any:
        read.append(job)
        if len(read) > 1:
            both_read.set()
            stopped.wait(0.2)
        return room

    def fail_once(*_: object) -> None:
        if not failed:
            failed.append(True)
            both_read.wait(0.2)
            raise damaged

    class Left(deque[Any]):
        def clear(self) -> None:
            super().clear()
            stopped.set()

    monkeypatch.setattr(filling, "deque", Left)
    monkeypatch.setattr(filling, "filling", lambda _: None)
    monkeypatch.setattr(filling, "_is_in_place", lambda _: False)
    monkeypatch.setattr(filling._ByTurns, "_read", read_one)
    monkeypatch.setattr(filling, "_unpack", fail_once)
    found = store.lookup(fingerprint, TOKENS)
    assert isinstance(found, Miss)
    assert found.reason == f"corrupt: {damaged.message}"
    assert len(read) <= 2


@pytest.mark.parametrize("how", ["state", "packed"])
def test_nobody_waits_for_a_thread_that_has_not_begun(
    store: SnapshotStore,
    fingerprint: Fingerprint,
    snapshot_files: Any,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
):
    """Where the other thread gets no processor, one does it all, and the other nothing later."""
    state = snapshot_files.packed(Tier.Q4) if how == "packed" else snapshot_files.state()
    saved = store.save(fingerprint, TOKENS, state)
    assert isinstance(saved, Saved)
    late: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(beside._thread, "start_new_thread", lambda call, _: late.append(call))
        found = store.lookup(fingerprint, TOKENS, Tier.Q4)
    assert isinstance(found, Hit), found
    expected = unpack_state(state) if isinstance(state, PackedState) else state
    assert snapshot_files.same(expected, found.state)
    assert late
    for call in late:
        call()
    assert snapshot_files.same(expected, found.state)


def test_a_file_that_shrinks_meanwhile_is_a_miss(
    store: SnapshotStore, fingerprint: Fingerprint, snapshot_files: Any
):
    """Whoever reads finds the end where it should not be."""
    saved = store.save(fingerprint, TOKENS, snapshot_files.state())
    assert isinstance(saved, Saved)

    def landing(_: object) -> None:
        with saved.path.open("r+b") as file:
            file.truncate(saved.n_bytes - 200)

    found = store.lookup(fingerprint, TOKENS, landing=landing)
    assert isinstance(found, Miss)
    assert found.reason.startswith("corrupt: the file ends early, ")


def test_without_threads_one_does_it_all(
    store: SnapshotStore,
    fingerprint: Fingerprint,
    snapshot_files: Any,
    monkeypatch: pytest.MonkeyPatch,
):
    """A system that gives no more threads still gives the snapshot."""
    state = snapshot_files.state()
    saved = store.save(fingerprint, TOKENS, state)
    assert isinstance(saved, Saved)

    def none_left(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(beside._thread, "start_new_thread", none_left)
        found = store.lookup(fingerprint, TOKENS)
    assert isinstance(found, Hit)
    assert snapshot_files.same(state, found.state)


def test_the_block_goes_before_the_call():
    """Its own error is the one that is raised, and a call that has begun is waited for."""
    begun, failed = threading.Event(), threading.Event()
    ended: list[bool] = []

    def fail() -> None:
        begun.set()
        failed.wait(5)
        ended.append(True)
        raise ValueError("beside")

    def block() -> None:
        with Beside(fail):
            begun.wait(5)
            failed.set()
            raise KeyError("block")

    with pytest.raises(KeyError, match="block"):
        block()
    assert ended
    with pytest.raises(ValueError, match="beside"), Beside(fail):
        begun.wait(5)


def test_a_call_that_has_not_begun_is_made_once(monkeypatch: pytest.MonkeyPatch):
    """By the block's own thread at its end, but not where the block has failed."""
    made: list[str] = []
    late: list[Any] = []
    monkeypatch.setattr(beside._thread, "start_new_thread", lambda call, _: late.append(call))
    with Beside(made.append, "good"):
        assert not made
    with pytest.raises(KeyError), Beside(made.append, "never"):
        raise KeyError("block")
    for call in late:
        call()
    assert made == ["good"]
