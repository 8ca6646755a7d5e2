"""The folder of the records: private files, one lock for each book, no silent repair.

The folder is for its owner alone and is no link; a file that is a link, too long or unreadable is
damage, and what cannot be understood is never taken for empty.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from edgellm.errors import DoesNotFit, EdgeLLMError, RecordsDamaged, RecordsUnavailable
from edgellm.fileio import (
    PRIVATE_DIR_MODE,
    PRIVATE_FILE_MODE,
    lock_file,
    open_regular,
    private_dir,
    write_atomic,
)
from edgellm.threads import Started

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FOLDER_NAME: Final = "records"
LOCK_WAIT_S: Final = 10.0
LOCK_ANSWER_S: Final = 2.0
_MAX_BYTES: Final = 4 << 20
_FIRST_WAIT_S: Final = 0.001
_LONGEST_WAIT_S: Final = 0.02
_OTHERS: Final = 0o077


class Records:
    """The folder of the records below `EDGELLM_HOME`; it is made when something is written.

    Args:
        home: `paths.home_dir()`.
        wait_s: how long another process may hold a book.
    """

    def __init__(self, home: Path, *, wait_s: float = LOCK_WAIT_S) -> None:
        self.path = home / FOLDER_NAME
        self._wait_s = wait_s

    def make(self) -> None:
        """Make the folder, or close it to others where they could look in.

        Raises:
            RecordsDamaged: its name leads elsewhere.
            RecordsUnavailable: it cannot be made.
        """
        with self.reaching():
            if self.path.is_symlink():
                raise RecordsDamaged("the folder of records is a link", path=self.path)
            private_dir(self.path)
            if os.name == "posix" and self.path.stat().st_mode & _OTHERS:
                self.path.chmod(PRIVATE_DIR_MODE)

    @contextlib.contextmanager
    def reaching(self) -> Iterator[None]:
        """Turn what the system says of a place that cannot be had into our word for it."""
        try:
            yield
        except DoesNotFit as err:  # of a disk: nothing that has to do with memory follows from it
            raise RecordsUnavailable(
                f"the records cannot be kept: {err.message}", path=self.path, hint=err.hint
            ) from err
        except OSError as err:
            raise RecordsUnavailable(
                f"the records cannot be kept: {err.strerror or err}",
                path=err.filename or self.path,
                hint="export EDGELLM_HOME=/some/folder that you may write to",
            ) from err

    @contextlib.contextmanager
    def locked(self, book: str) -> Iterator[None]:
        """Hold a book for this thread alone, among all threads and processes.

        Raises:
            EdgeLLMError: somebody else holds it for too long.
            RecordsUnavailable: the folder cannot be written to.
        """
        self.make()
        path = self.path / f"{book}.lock"
        end_s, pause_s = time.monotonic() + self._wait_s, _FIRST_WAIT_S
        while True:
            fd = self._opened(path)
            try:
                if self._locks(fd) and _leads_to(path, fd):
                    yield
                    return
            finally:
                os.close(fd)  # which gives the lock back
            if time.monotonic() > end_s:
                raise EdgeLLMError(
                    f"another process has held the {book} for {self._wait_s:g} s",
                    path=self.path,
                    hint="look for a suspended edgellm process",
                )
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_WAIT_S)

    def _opened(self, path: Path) -> int:
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        with self.reaching():
            return os.open(path, flags, PRIVATE_FILE_MODE)

    def _locks(self, fd: int) -> bool:
        """Lock an open file if nobody has it.

        The system is asked in a thread of its own: on some network mounts it never answers. Where
        no thread can be started, as at the program's very end, it is asked in this one.
        """
        answers: list[bool | OSError] = []
        try:
            Started(lambda: _ask(fd, answers), "edgellm-lock").join(LOCK_ANSWER_S)
        except RuntimeError:
            _ask(fd, answers)
        if not answers:
            raise RecordsUnavailable(
                f"the records cannot be locked: no answer for {LOCK_ANSWER_S:g} s",
                path=self.path,
                hint="export EDGELLM_HOME=/some/folder on a local disk",
            )
        if isinstance(answers[0], OSError):
            with self.reaching():
                raise answers[0]
        return answers[0]

    def read(self, name: str) -> bytes | None:
        """Return a small file's content, None where there is none.

        Raises:
            RecordsDamaged: it is no regular file, is too long, or cannot be read.
        """
        path = self.path / name
        try:
            with open_regular(path) as (file, status):
                if status.st_size > _MAX_BYTES:
                    raise RecordsDamaged(f"has {status.st_size} bytes", path=path)
                return file.read(_MAX_BYTES)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except PermissionError as err:
            raise RecordsUnavailable("cannot be read: no permission", path=path) from err
        except OSError as err:
            raise RecordsDamaged(f"cannot be read: {err}", path=path) from err

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Return the object in a file, None where there is none.

        Raises:
            RecordsDamaged: it is no JSON object.
        """
        content = self.read(name)
        if content is None:
            return None
        try:
            value = json.loads(content)
        except (ValueError, RecursionError) as err:
            raise RecordsDamaged(f"is no JSON: {err}", path=self.path / name) from err
        if not isinstance(value, dict):
            raise RecordsDamaged("is no JSON object", path=self.path / name)
        return value

    def write(self, name: str, content: bytes) -> None:
        """Replace a file whole.

        Raises:
            RecordsUnavailable: it cannot be written, or the disk is full.
        """
        self.make()
        with self.reaching():
            write_atomic(self.path / name, content)

    def write_json(self, name: str, value: object) -> None:
        """Replace a file with an object, in a form that people can read.

        Raises:
            RecordsUnavailable: it cannot be written, or the disk is full.
        """
        self.write(name, json.dumps(value, indent=1, sort_keys=True).encode() + b"\n")


def _leads_to(path: Path, fd: int) -> bool:
    """Return whether a name still leads to an open file: a lock on one that was removed is none."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(fd))
    except FileNotFoundError:
        return False


def _ask(fd: int, answers: list[bool | OSError]) -> None:
    try:
        answers.append(_lock(fd))
    except OSError as err:
        answers.append(err)


def _lock(fd: int) -> bool:
    """Lock an open file if nobody has it."""
    if sys.platform == "win32":
        import msvcrt

        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
    return lock_file(fd, wait=False)
