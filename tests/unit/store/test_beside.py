"""Two threads read one file: the same bits, the same misses, and no thread left behind."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from edgellm.core import Tier
from edgellm.errors import SnapshotCorrupt
from edgellm.store import filling, taking
from edgellm.store.beside import Beside
from edgellm.store.codec import unpack_state
from edgellm.store.snapshots import Hit, Miss, Saved, SnapshotStore
from edgellm.store.state import PackedState

if TYPE_CHECKING:
    from edgellm.store.state import Fingerprint

TOKENS = list(range(12))


@pytest.fixture(autouse=True)
def small_files_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let two threads read the small files of these tests, in small pieces."""
    monkeypatch.setattr(filling, "MIN_TWO_THREADS_BYTES", 1)
    monkeypatch.setattr(filling, "MIN_PACKED_BYTES", 1)
    monkeypatch.setattr(filling, "MAX_AT_ONCE_BYTES", 200)
    monkeypatch.setattr(taking, "PIECE_BYTES", 24)


def readers() -> list[str]:
    """Name the threads that read beside another one now."""
    return [t.name for t in threading.enumerate() if t.name == "edgellm-snapshot-reader"]


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
    assert not readers()


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
    assert not readers()


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
    damaged = SnapshotCorrupt("section 1 at 64: the checksum is wrong")

    def fail(*share: object) -> None:
        read.append(share)
        raise damaged

    monkeypatch.setattr(filling, "_read", fail)
    found = store.lookup(fingerprint, TOKENS)
    assert isinstance(found, Miss)
    assert found.reason == f"corrupt: {damaged.message}"
    assert len(read) <= 2
    assert not readers()


@pytest.mark.parametrize("how", ["state", "packed"])
def test_one_thread_is_enough_where_the_other_is_slow(
    store: SnapshotStore,
    fingerprint: Fingerprint,
    snapshot_files: Any,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
):
    """A thread that gets no processor leaves all shares to the other."""
    state = snapshot_files.packed(Tier.Q4) if how == "packed" else snapshot_files.state()
    saved = store.save(fingerprint, TOKENS, state)
    assert isinstance(saved, Saved)
    done, do = threading.Event(), filling._do
    workers: list[str] = []

    def wait_your_turn(work: Any) -> None:
        if threading.current_thread() is not threading.main_thread():
            done.wait(5)
        workers.extend(threading.current_thread().name for _ in work.left)
        do(work)
        done.set()

    monkeypatch.setattr(filling, "_do", wait_your_turn)
    found = store.lookup(fingerprint, TOKENS, Tier.Q4)
    assert isinstance(found, Hit), found
    expected = unpack_state(state) if isinstance(state, PackedState) else state
    assert snapshot_files.same(expected, found.state)
    assert len(workers) > 1
    assert set(workers) == {threading.main_thread().name}


def test_a_file_that_shrinks_meanwhile_is_a_miss(
    store: SnapshotStore, fingerprint: Fingerprint, snapshot_files: Any
):
    """The second reader finds the end where it should not be."""
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

    def none_left(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none_left)
        found = store.lookup(fingerprint, TOKENS)
    assert isinstance(found, Hit)
    assert snapshot_files.same(state, found.state)


def test_the_block_goes_before_the_call():
    """Its own error is the one that is raised, and the call is waited for."""
    done = threading.Event()

    def fail() -> None:
        done.wait(5)
        raise ValueError("beside")

    def block() -> None:
        with Beside(fail):
            done.set()
            raise KeyError("block")

    with pytest.raises(KeyError, match="block"):
        block()
    with pytest.raises(ValueError, match="beside"), Beside(fail):
        pass
