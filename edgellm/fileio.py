"""Files that are whole or not there: atomic replace with fsync, bounded reads, a fault hook.

Every step that can fail in the real world (create, write, fsync, rename, fsync of the folder) first
calls `fault`, so that a test can make the N-th step fail, or kill the process there.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
import time
from typing import TYPE_CHECKING, BinaryIO

from edgellm.errors import DoesNotFit, UsageError
from edgellm.windows import name_problem, system_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Fault = Callable[[str, str], None]

PRIVATE_FILE_MODE = 0o600
PRIVATE_DIR_MODE = 0o700
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_FREE_SOME = "free some space or choose another folder"
_LARGER = "raise the limit (`ulimit -f`), or choose a folder whose file system takes larger files"
_TEMP_NAME = re.compile(r"\..+\.([0-9]{1,10})\.[0-9a-f]+\.tmp", re.DOTALL)
_MAX_PID = (1 << 31) - 1
_WINDOWS = "nt"
_RENAME_WAITS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)


def no_fault(step: str, path: str) -> None:
    """Do nothing: the fault hook of normal operation."""


def private_dir(path: Path) -> Path:
    """Make a folder (and its parents) that only its owner can enter, and return it."""
    missing = [p for p in (path, *path.parents) if not p.exists()]
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):
            os.mkdir(system_path(folder), PRIVATE_DIR_MODE)  # noqa: PTH102  # may be long
    return path


def fsync_dir(path: Path) -> None:
    """Make renames in a folder survive a power loss, where the system can."""
    if os.name == _WINDOWS:
        return
    fd = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    try:
        os.fsync(fd)
    except OSError as err:  # some network file systems refuse to sync a folder
        if err.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(fd)


def temp_name(final: Path) -> Path:
    """Return a name beside `final` that says who is writing: `.NAME.PID.RANDOM.tmp`."""
    return final.with_name(f".{final.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")


def temp_owner(path: Path) -> int | None:
    """Return the process id in a `temp_name`, or None if the name is not of that form."""
    match = _TEMP_NAME.fullmatch(path.name)
    pid = int(match.group(1)) if match else 0
    return pid if 0 < pid <= _MAX_PID else None


def check_name(path: Path, os_name: str = os.name) -> None:
    """Make sure that this system can keep a file under that name.

    Raises:
        UsageError: Windows would write to a device, to a stream of another file, or elsewhere.
    """
    problem = name_problem(path.name) if os_name == _WINDOWS else ""
    if problem:
        raise UsageError(
            f"no file can have this name: {problem}", path=path, hint="choose another name"
        )


def rename_over(
    src: Path,
    dst: Path,
    *,
    os_name: str = os.name,
    rename: Callable[[str, str], None] = os.replace,
    wait: Callable[[float], None] = time.sleep,
) -> None:
    """Rename a file over another; Windows refuses while somebody reads the old one, so ask again.

    Raises:
        OSError: it cannot be renamed, at once or, on Windows, after a second.
    """
    old, new = system_path(src, os_name), system_path(dst, os_name)
    for wait_s in _RENAME_WAITS_S if os_name == _WINDOWS else ():
        try:
            rename(old, new)
        except PermissionError:  # noqa: PERF203  # asking again is the point
            wait(wait_s)
        else:
            return
    rename(old, new)


class AtomicWriter:
    """A binary file that appears under its final name whole, or not at all.

    Leaving the `with` block without an error syncs and renames; an error removes the temporary.
    Nothing but a kill leaves the temporary behind.
    """

    def __init__(
        self,
        final: Path,
        *,
        temp: Path | None = None,
        mode: int = PRIVATE_FILE_MODE,
        fault: Fault = no_fault,
    ) -> None:
        self.final = final
        self.temp = temp or temp_name(final)
        self.n_bytes = 0
        self._fault = fault
        self._mode = mode
        self._file: BinaryIO | None = None

    def __enter__(self) -> AtomicWriter:
        """Create the temporary file; it must not exist.

        Raises:
            FileExistsError: it does.
            DoesNotFit: the disk is full, or the system allows no file so large.
            UsageError: no file can have the final name.
        """
        check_name(self.final)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
        flags |= getattr(os, "O_BINARY", 0)
        with self._room():
            self._fault("create", str(self.temp))
            fd = os.open(system_path(self.temp), flags, self._mode)
        self._file = os.fdopen(fd, "wb", buffering=0)
        return self

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append all of `data`.

        Raises:
            DoesNotFit: the disk is full, or the system allows no file so large.
        """
        if self._file is None:
            raise ValueError("write outside the with block")
        view = memoryview(data).cast("B")
        with self._room():
            while view.nbytes:
                self._fault("write", str(self.temp))
                n = self._file.write(view)
                self.n_bytes += n
                view = view[n:]

    def sync(self) -> None:
        """Force what was written so far to the disk.

        Raises:
            DoesNotFit: the disk is full, which some file systems say only now.
        """
        if self._file is not None:
            with self._room():
                self._fault("fsync", str(self.temp))
                os.fsync(self._file.fileno())

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Sync and rename, or remove the temporary when the block or that failed."""
        renamed = False
        try:
            if kind is None:
                self.sync()
                self._close()  # Windows cannot rename an open file
                with self._room():
                    self._fault("rename", str(self.final))
                    rename_over(self.temp, self.final)
                    renamed = True  # from here on the temporary's name may be another writer's
                    self._fault("fsync_dir", str(self.final.parent))
                    fsync_dir(self.final.parent)
        finally:
            self._close()
            if not renamed:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(system_path(self.temp))  # noqa: PTH108  # a path that may be long

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with self._room():
                file.close()

    @contextlib.contextmanager
    def _room(self) -> Iterator[None]:
        """Turn the system's ways to say that there is no room into `DoesNotFit`."""
        try:
            yield
        except OSError as err:
            problem = no_room(err, self.final, self.n_bytes)
            if problem is None:
                raise
            raise problem from err


def no_room(err: OSError, path: Path, n_bytes: int) -> DoesNotFit | None:
    """Return what to raise for a write that failed for lack of room, or None for another reason.

    Args:
        err: what the system said.
        path: the file meant.
        n_bytes: how much of it was written.
    """
    if err.errno in _DISK_FULL:
        return DoesNotFit(f"the disk is full after {n_bytes} bytes", path=path, hint=_FREE_SOME)
    if err.errno == errno.EFBIG:
        message = f"the system allows no file of more than {n_bytes} bytes"
        return DoesNotFit(message, path=path, hint=_LARGER)
    return None


def lock_file(fd: int, *, wait: bool) -> bool:
    """Lock an open file for this process until it is closed; False where another one has it.

    Where there are no locks (Windows, some network file systems) the answer is True: whoever asks
    must come to no harm from a second one.

    Raises:
        OSError: the system refused for another reason.
    """
    if os.name != "posix":
        return True
    import fcntl

    try:
        fcntl.flock(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as err:
        if err.errno not in _NO_LOCKS:
            raise
    return True


def write_atomic(
    final: Path, data: bytes, *, mode: int = PRIVATE_FILE_MODE, fault: Fault = no_fault
) -> None:
    """Replace a small file's content in one step."""
    with AtomicWriter(final, mode=mode, fault=fault) as out:
        out.write(data)


@contextlib.contextmanager
def open_regular(path: Path, *, follow: bool = False) -> Iterator[tuple[BinaryIO, os.stat_result]]:
    """Open a regular file for reading and give its handle and status of that very handle.

    Raises:
        OSError: it is not there, is a link (unless `follow`), or is not a regular file.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    if not follow:
        flags |= getattr(os, "O_NOFOLLOW", 0)
    fd = os.open(system_path(path), flags)  # non-blocking: opening a pipe must not hang
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)  # here, because fdopen refuses a folder and leaves it open
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    with os.fdopen(fd, "rb", buffering=0) as file:
        yield file, status


def read_exactly(file: BinaryIO, into: bytearray | memoryview) -> None:
    """Fill a buffer from an unbuffered file.

    Raises:
        EOFError: the file ends before the buffer is full; says by how much.
    """
    view = memoryview(into).cast("B")
    while view.nbytes:
        n = file.readinto(view)  # type: ignore[attr-defined]  # raw files have it
        if not n:
            raise EOFError(f"{view.nbytes} bytes are missing")
        view = view[n:]


def process_alive(pid: int) -> bool:
    """Return whether a process with this id exists on this machine."""
    import psutil

    return bool(psutil.pid_exists(pid))


def process_stopped(pid: int) -> bool:
    """Return whether a process of this machine was suspended; False where nobody can say."""
    import psutil

    try:
        status = psutil.Process(pid).status()
    except (psutil.Error, OSError, OverflowError):
        return False
    return status in {psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP}
