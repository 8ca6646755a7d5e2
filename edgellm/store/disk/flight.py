"""Single flight: of several processes that miss the same snapshot, one reads the prompt.

One lock file for each name, `ROOT/locks/NAME.lock`, locked with flock: the kernel frees the lock of
an owner that died. The file holds the owner's process id, so that nobody waits for one that is
suspended; one that is stuck otherwise costs the others no more than they are ready to wait. A lock
only ever saves work: whatever fails about it, the caller goes on without.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import threading
import time
from typing import TYPE_CHECKING, Final

from edgellm.fileio import PRIVATE_FILE_MODE, lock_file, private_dir, process_stopped
from edgellm.threads import Started

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LOCKS_DIR: Final = "locks"
SUFFIX: Final = ".lock"
POLL_S: Final = 0.02
ANSWER_S: Final = 2.0
"""How long a lock that is not waited for may take to answer; some network mounts never do."""
_AGAIN_S: Final = 0.002
_TRIES: Final = 3
_NO_LOCKS: Final = "locks do not work"
_MAX_PID_DIGITS: Final = 10


def _poll_s(n_tries: int) -> float:
    """Return how long to wait before the next try: little at first, and never in step."""
    return min(POLL_S, _AGAIN_S * n_tries) * random.uniform(0.5, 1)  # noqa: S311  # no secret


def never() -> bool:
    """Return False: nobody stops the waiting."""
    return False


class Lease:
    """The right to do what a lock file stands for; of use as a context manager too.

    Args:
        path: the lock file, or None where no lock stands behind the right.
        fd: its open and locked descriptor, which is closed at the end.
        trouble: why there is no lock, or "".
    """

    def __init__(self, path: Path | None = None, fd: int = -1, *, trouble: str = "") -> None:
        self.trouble = trouble
        self._path = path
        self._fd = fd
        self._pid = os.getpid()
        self._releasing = threading.Lock()

    @property
    def is_locked(self) -> bool:
        """Whether a lock keeps the others away; False where locks do not work, and at the end."""
        return self._fd >= 0

    def release(self) -> None:
        """Let the next one in and remove the lock file. A second call does nothing."""
        with self._releasing:
            fd, self._fd = self._fd, -1
        if fd < 0 or self._path is None:
            return
        with contextlib.suppress(OSError):
            # A child made by fork has a copy of this object, but the right is its parent's.
            if os.getpid() == self._pid and _same_file(fd, self._path):
                self._path.unlink()  # before the lock goes, or it may be the next owner's
        os.close(fd)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, TypeError):  # an interpreter that is ending
            self.release()


class Locks:
    """The lock files of one store.

    Args:
        root: the store's folder. Nothing is made before the first lock is taken.
        answer_s: how long the system may take to say whether a lock is free.
    """

    def __init__(self, root: Path, *, answer_s: float = ANSWER_S) -> None:
        self.folder = root / LOCKS_DIR
        self._answer_s = answer_s
        self._fails = False

    def take(
        self, name: str, wait_s: float = 0.0, stopped: Callable[[], bool] = never
    ) -> Lease | None:
        """Take the lock of a name.

        Args:
            name: letters, digits and dashes.
            wait_s: how long to wait for whoever has it.
            stopped: asked while waiting; True ends it.

        Returns:
            A lease, which is not locked where locks fail here; None where another has the lock.
        """
        deadline = time.monotonic() + wait_s
        n_tries = 0
        while not self._fails:
            n_tries += 1
            lease = self._try(self._path(name))
            if lease is not None:
                return lease
            left_s = deadline - time.monotonic()
            if stopped() or (left_s <= 0 and n_tries >= _TRIES):
                return None
            # Whoever only looks whether an owner is dead holds the lock for a moment as well.
            time.sleep(min(_poll_s(n_tries), left_s) if left_s > 0 else _AGAIN_S)
        return Lease(trouble=_NO_LOCKS)

    def wait(self, name: str, timeout_s: float, stopped: Callable[[], bool] = never) -> bool:
        """Wait until nobody has the lock of a name, and do not take it.

        Returns:
            True when it is free, False at the timeout, when stopped, or when its owner is suspended.
        """
        deadline = time.monotonic() + timeout_s
        while not stopped():
            if not self.is_taken(name):
                return True
            left_s = deadline - time.monotonic()
            if left_s <= 0 or _is_suspended(self._path(name)):
                return False
            time.sleep(min(POLL_S, left_s))
        return False

    def is_taken(self, name: str) -> bool:
        """Return whether somebody alive has the lock; the file of one who is dead is removed."""
        return not self._fails and self._collect(self._path(name)) is False

    def collect(self) -> int:
        """Remove the lock files that dead owners left behind, and return how many there were."""
        if self._fails or self.folder.is_symlink():
            return 0
        n_removed = 0
        with contextlib.suppress(OSError):  # no such folder, or one that cannot be listed
            for path in self.folder.iterdir():
                if path.suffix == SUFFIX:
                    n_removed += self._collect(path) is True
        return n_removed

    def _path(self, name: str) -> Path:
        return self.folder / (name + SUFFIX)

    def _try(self, path: Path) -> Lease | None:
        """Take the lock if it is free; a lease that is not locked where that cannot be known."""
        for _ in range(_TRIES):
            try:
                private_dir(self.folder)
                fd = _open(path, os.O_CREAT)
            except OSError as err:
                return Lease(trouble=err.strerror or str(err))
            locked = self._lock(fd)
            if locked is None:
                return Lease(trouble=_NO_LOCKS)
            if not locked:
                os.close(fd)
                return None
            if _same_file(fd, path):
                _sign(fd)
                return Lease(path, fd)
            os.close(fd)  # its owner removed the file after it was opened here
        return None

    def _collect(self, path: Path) -> bool | None:
        """Remove a lock file without an owner: True, or False where it has one, or None."""
        try:
            fd = _open(path, 0)
        except OSError:
            return None
        locked = self._lock(fd)
        if locked is None:
            return None
        if locked:
            with contextlib.suppress(OSError):
                if _same_file(fd, path):
                    path.unlink()
        os.close(fd)
        return locked

    def _lock(self, fd: int) -> bool | None:
        """Lock an open file: True, False where another has it, None where locks fail (it is closed).

        The question is asked in a thread of its own: on some network mounts it is never answered.
        """
        attempt = _Attempt(fd)
        try:
            Started(attempt.ask, "edgellm-lock")
        except RuntimeError:  # "can't start new thread"
            os.close(fd)
            return None
        locked = attempt.answer(self._answer_s)
        self._fails = self._fails or attempt.given_up
        return locked


class _Attempt:
    """One question for a lock, whose descriptor is closed here when nobody waits any more."""

    def __init__(self, fd: int) -> None:
        self.given_up = False
        self._fd = fd
        self._locked: bool | None = None
        self._answered = threading.Event()
        self._deciding = threading.Lock()

    def ask(self) -> None:
        """Ask, in a thread of its own."""
        try:
            locked: bool | None = lock_file(self._fd, wait=False)
        except OSError:
            locked = None
        with self._deciding:
            self._locked = locked
            if locked is None or self.given_up:
                os.close(self._fd)
            self._answered.set()

    def answer(self, timeout_s: float) -> bool | None:
        """Wait for the answer; None where there is none, or where locks fail."""
        self._answered.wait(timeout_s)
        with self._deciding:
            self.given_up = not self._answered.is_set()
            return self._locked


def _open(path: Path, flags: int) -> int:
    if path.parent.is_symlink():
        raise NotADirectoryError(errno.ENOTDIR, "the folder of locks is a link", str(path.parent))
    flags |= os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    return os.open(path, flags, PRIVATE_FILE_MODE)


def _sign(fd: int) -> None:
    """Write into a lock file who has it; on a full disk it stays empty."""
    with contextlib.suppress(OSError):
        os.ftruncate(fd, 0)
        os.write(fd, b"%d" % os.getpid())


def _is_suspended(path: Path) -> bool:
    """Return whether the owner that a lock file names is suspended.

    In another container the number is of another process: then nobody waits, or all do, as before.
    """
    try:
        fd = _open(path, 0)
    except OSError:
        return False
    try:
        digits = os.read(fd, _MAX_PID_DIGITS)
    except OSError:
        return False
    finally:
        os.close(fd)
    return digits.isdigit() and process_stopped(int(digits))


def _same_file(fd: int, path: Path) -> bool:
    """Return whether a name still leads to the file that is open."""
    try:
        there = path.lstat()
    except OSError:
        return False
    here = os.fstat(fd)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)
