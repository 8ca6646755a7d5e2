"""One of several that miss reads the prompt, and no lock is worse than a little waiting."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from edgellm.fileio import process_stopped
from edgellm.store.disk.flight import Lease, Locks

if TYPE_CHECKING:
    from collections.abc import Iterator

HOLDER = """
import sys, time
from pathlib import Path
from edgellm.store.disk.flight import Locks
lease = Locks(Path(sys.argv[1])).take("key")
print("ready" if lease is not None and lease.is_locked else "refused", flush=True)
sys.stdin.readline()
lease.release()
print("released", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def locks(tmp_path: Path) -> Locks:
    return Locks(tmp_path / "store")


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a process that holds the lock until it is told to release it."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, tmp_path / "store"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        yield child
        child.kill()


def _files(locks: Locks) -> list[str]:
    return sorted(path.name for path in locks.folder.iterdir())


def test_nothing_is_made_before_the_first_lock(locks: Locks):
    """To ask about locks in a store that is not there touches nothing."""
    assert not locks.is_taken("key")
    assert locks.wait("key", 0)
    assert locks.collect() == 0
    assert not locks.folder.parent.exists()


def test_one_gets_the_lease_and_leaves_no_file(locks: Locks):
    """While one has it another gets None, also in the same process; then the file is gone."""
    with locks.take("key") or Lease() as lease:
        assert lease.is_locked
        assert locks.take("key") is None
        assert locks.take("other") is not None
        path = locks.folder / "key.lock"
        assert path.read_text() == str(os.getpid())
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(locks.folder.stat().st_mode) == 0o700
    assert not lease.is_locked
    assert _files(locks) == []
    lease.release()


def test_a_lease_that_is_dropped_is_released(locks: Locks):
    """An error on the way keeps nobody else waiting."""
    assert locks.take("key") is not None  # and is garbage at once
    assert not locks.is_taken("key")


def test_an_early_release_does_not_touch_the_next_owner(locks: Locks):
    """A second release is no release of the lock that another has by now."""
    first = locks.take("key")
    assert first is not None
    first.release()
    second = locks.take("key")
    first.release()
    assert second is not None
    assert locks.is_taken("key")
    second.release()


def test_another_process_is_waited_for(locks: Locks, holder: subprocess.Popen[str]):
    """Waiting ends when the owner releases, and the next lease can be had."""
    assert locks.take("key") is None
    assert holder.stdin is not None
    timer = threading.Timer(0.1, lambda: print(file=holder.stdin, flush=True))
    timer.start()
    assert locks.wait("key", 20)
    lease = locks.take("key")
    assert lease is not None
    assert lease.is_locked
    lease.release()
    timer.join()


def test_a_dead_owner_blocks_nobody(locks: Locks, holder: subprocess.Popen[str]):
    """After kill -9 the lock is free, and the file it left is removed by whoever looks."""
    holder.kill()
    holder.wait()
    assert _files(locks) == ["key.lock"]
    assert locks.wait("key", 0)
    assert _files(locks) == []


def test_orphans_are_collected_and_owners_are_not(locks: Locks, holder: subprocess.Popen[str]):
    """Collecting removes the files of dead owners only."""
    for name in ("a", "b"):
        (locks.folder / f"{name}.lock").touch()
    (locks.folder / "unknown").touch()
    assert locks.collect() == 2
    assert _files(locks) == ["key.lock", "unknown"]


def test_a_stuck_owner_costs_the_timeout_only(locks: Locks, holder: subprocess.Popen[str]):
    """Waiting ends at its limit, and at once when it is stopped."""
    started = time.monotonic()
    assert not locks.wait("key", 0.15)
    assert 0.15 <= time.monotonic() - started < 5
    assert not locks.wait("key", 1000, stopped=lambda: True)
    assert locks.take("key", 1000, stopped=lambda: True) is None
    assert locks.take("key", 0.05) is None


def test_a_lock_is_waited_for_when_asked(locks: Locks, holder: subprocess.Popen[str]):
    """`take` with a time to wait gets the lock when it becomes free."""
    assert holder.stdin is not None
    timer = threading.Timer(0.1, lambda: print(file=holder.stdin, flush=True))
    timer.start()
    lease = locks.take("key", 20)
    assert lease is not None
    assert lease.is_locked
    lease.release()
    timer.join()


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EBADF, errno.EOPNOTSUPP, errno.EIO])
def test_locks_that_fail_keep_nobody_away(locks: Locks, monkeypatch: pytest.MonkeyPatch, code: int):
    """Where flock gives an error every process gets a lease, and nobody waits."""

    def refuse(fd: int, operation: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    first, second = locks.take("key"), locks.take("key")
    assert first is not None
    assert second is not None
    assert locks.wait("key", 0)
    first.release()
    second.release()


def test_a_lock_that_never_answers_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A network mount whose flock blocks costs one short wait, then locks are left alone."""
    locks = Locks(tmp_path, answer_s=0.05)
    answer = threading.Event()
    n_asked = 0

    def hang(fd: int, operation: int) -> None:
        nonlocal n_asked
        n_asked += 1
        answer.wait(20)

    monkeypatch.setattr(fcntl, "flock", hang)
    lease = locks.take("key")
    assert lease is not None
    assert not lease.is_locked
    assert locks.take("key") is not None
    assert not locks.is_taken("key")
    assert n_asked == 1
    answer.set()


def test_a_lock_that_comes_too_late_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An answer after the wait closes the file, and so does not keep others away for ever."""
    real, answer, answered = fcntl.flock, threading.Event(), threading.Event()

    def slow(fd: int, operation: int) -> None:
        answer.wait(20)
        real(fd, operation)
        answered.set()

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", slow)
        lease = Locks(tmp_path, answer_s=0.01).take("key")
        answer.set()
        assert answered.wait(20)
    assert lease is not None
    assert Locks(tmp_path).wait("key", 20)


def test_a_folder_that_cannot_be_written_gives_a_lease(tmp_path: Path):
    """Without a place for the lock everybody reads the prompt."""
    (tmp_path / "store").write_text("in the way")
    lease = Locks(tmp_path / "store").take("key")
    assert lease is not None
    assert not lease.is_locked


def test_links_are_not_followed(tmp_path: Path, locks: Locks):
    """Neither a lock file nor the folder leads out of the store."""
    aim = tmp_path / "aim"
    aim.mkdir()
    locks.folder.parent.mkdir()
    locks.folder.symlink_to(aim)
    lease = locks.take("key")
    assert lease is not None
    assert not lease.is_locked
    assert list(aim.iterdir()) == []
    locks.folder.unlink()
    locks.folder.mkdir()
    (locks.folder / "key.lock").symlink_to(aim / "made")
    assert locks.take("key") is not None
    assert list(aim.iterdir()) == []


def test_the_lock_of_a_removed_file_is_not_the_lock(locks: Locks, monkeypatch: pytest.MonkeyPatch):
    """An owner that removes its file between opening and locking leaves the lock to be asked again."""
    real = fcntl.flock
    owner = locks.take("key")
    assert owner is not None
    path = locks.folder / "key.lock"

    def release_first(fd: int, operation: int) -> None:
        owner.release()
        real(fd, operation)

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", release_first)
        lease = locks.take("key")
    assert lease is not None
    assert lease.is_locked
    assert path.exists()
    assert Locks(locks.folder.parent).is_taken("key")
    lease.release()


def test_a_forked_child_does_not_give_the_parents_lease_away(locks: Locks):
    """The child's copy of the object closes its descriptor and leaves the file."""
    lease = locks.take("key")
    assert lease is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of other tests may run
        child = os.fork()
    if not child:
        lease.release()
        os._exit(0)
    os.waitpid(child, 0)
    assert locks.is_taken("key")
    lease.release()
    assert _files(locks) == []


def test_many_threads_never_hold_it_at_once(locks: Locks):
    """Locking and removing in turn lets in one at a time."""
    inside, most, n_entries = 0, 0, 0
    guard = threading.Lock()

    def enter() -> None:
        nonlocal inside, most, n_entries
        for _ in range(10):
            with locks.take("key", 30) or Lease() as lease:
                assert lease.is_locked
                with guard:
                    inside += 1
                    most = max(most, inside)
                    n_entries += 1
                with guard:
                    inside -= 1

    threads = [threading.Thread(target=enter) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, n_entries) == (1, 40)
    assert _files(locks) == []


@pytest.mark.skipif(os.name != "posix", reason="Windows suspends no process by a signal")
def test_nobody_waits_for_an_owner_that_is_suspended(locks: Locks, holder: subprocess.Popen[str]):
    """It may never go on; once it does, the lock is waited for as before."""
    assert locks.is_taken("key")
    holder.send_signal(signal.SIGSTOP)
    begun = time.monotonic()
    assert not locks.wait("key", 60)
    assert time.monotonic() - begun < 5
    holder.send_signal(signal.SIGCONT)
    while process_stopped(holder.pid):
        time.sleep(0.01)
    begun = time.monotonic()
    assert not locks.wait("key", 0.2)
    assert time.monotonic() - begun >= 0.2


@pytest.mark.parametrize("content", [b"", b"x", b"99999999999999", b"-1", b"0", b"2147483647"])
def test_a_lock_file_that_names_nobody_is_waited_for(locks: Locks, content: bytes):
    """What stands in the file can only shorten a wait."""
    with locks.take("key") or Lease():
        (locks.folder / "key.lock").write_bytes(content)
        begun = time.monotonic()
        assert not locks.wait("key", 0.05)
        assert time.monotonic() - begun >= 0.05
