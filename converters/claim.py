"""`OUT.partial` belongs to one run at a time: what a dead run left is removed, a live one is refused.

The claim is a lock on the file itself, which the system drops when its process dies. Where there
are no such locks (Windows), an open file cannot be removed, which comes to the same.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING

from edgellm.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# What network file systems without locks answer.
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


def partial_path(out: Path) -> Path:
    """Return the name under which `out` is written."""
    return out.with_name(out.name + ".partial")


def clear_partial(out: Path) -> None:
    """Remove what a dead run left of `out`.

    Raises:
        UsageError: a run that lives is writing it.
    """
    path = partial_path(out)
    try:
        with claim(path, out):
            path.unlink()
    except FileNotFoundError:
        return
    except PermissionError as err:
        raise _busy(out) from err


@contextlib.contextmanager
def claim(path: Path, out: Path) -> Iterator[None]:
    """Hold the freshly made partial file at `path` for as long as the block runs.

    Raises:
        UsageError: another run took it between its making and this call.
    """
    if os.name != "posix":
        yield
        return
    with _locked(path, out) as fd:
        there, ours = path.lstat(), os.fstat(fd)
        if (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino):
            raise _busy(out)
        yield


@contextlib.contextmanager
def _locked(path: Path, out: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0))
    try:
        import fcntl

        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as err:
            raise _busy(out) from err
        except OSError as err:
            if err.errno not in _NO_LOCKS:
                raise
        yield fd
    finally:
        os.close(fd)


def _busy(out: Path) -> UsageError:
    return UsageError(
        "another conversion is writing this file",
        path=out,
        hint="wait for it to end, or name another file",
    )
