"""`.OUT.edgellm-partial` is one run's at a time: a dead run's is removed, a live one's is refused.

No other name is ever cleared, and under this one only the beginning of a GGUF; a file `OUT.partial`
is somebody's own. Whoever clears has made sure that it is no file of the source.

The claim is a lock on the file itself, which the system drops when its process dies. Where there
are no such locks (Windows), an open file cannot be removed, which comes to the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from typing import TYPE_CHECKING, Final

from edgellm.errors import UsageError
from edgellm.fileio import lock_file, open_regular

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PARTIAL_SUFFIX: Final = ".edgellm-partial"
_MAX_NAME_BYTES: Final = 255  # what file systems take
_MAGIC: Final = b"GGUF"


def partial_path(out: Path) -> Path:
    """Return the name under which `out` is written; a digest stands for one that is too long."""
    raw = os.fsencode(out.name)
    if 1 + len(raw) + len(PARTIAL_SUFFIX) > _MAX_NAME_BYTES:
        return out.with_name(f".{hashlib.sha256(raw).hexdigest()[:32]}{PARTIAL_SUFFIX}")
    return out.with_name(f".{out.name}{PARTIAL_SUFFIX}")


def clear_partial(out: Path) -> None:
    """Remove what a dead run left of `out`.

    Raises:
        UsageError: a run that lives is writing it, or what has the name is no conversion's.
    """
    path = partial_path(out)
    try:
        with open_regular(path) as (file, _):
            begin = file.read(len(_MAGIC))
    except FileNotFoundError:
        return
    except OSError as err:
        raise _in_the_way(path, err.strerror or str(err)) from err
    if not _MAGIC.startswith(begin):  # a run may have died before it wrote the magic whole
        raise _in_the_way(path, "not what a conversion left")
    try:
        with claim(path, out):
            path.unlink()
    except PermissionError as err:
        raise _busy(out) from err


@contextlib.contextmanager
def claim(path: Path, out: Path) -> Iterator[None]:
    """Hold the freshly made partial file at `path` for as long as the block runs.

    Let go only after the rename: in between, another run would take the file for a dead one's.

    Raises:
        UsageError: another run took it between its making and this call.
    """
    if os.name != "posix":
        yield
        return
    with _locked(path, out) as fd:
        try:
            is_ours = os.path.samestat(path.lstat(), os.fstat(fd))
        except FileNotFoundError as err:
            raise _busy(out) from err
        if not is_ours:
            raise _busy(out)
        yield


@contextlib.contextmanager
def _locked(path: Path, out: Path) -> Iterator[int]:
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        fd = os.open(path, flags)
    except FileNotFoundError as err:  # it was there a moment ago
        raise _busy(out) from err
    try:
        if not lock_file(fd, wait=False):
            raise _busy(out)
        yield fd
    finally:
        os.close(fd)


def _in_the_way(path: Path, why: str) -> UsageError:
    return UsageError(f"is in the way: {why}", path=path, hint="move it, or name another file")


def _busy(out: Path) -> UsageError:
    return UsageError(
        "another conversion is writing this file",
        path=out,
        hint="wait for it to end, or name another file",
    )
