"""The paths of a conversion: what may be its source, what it never replaces, room on the disk.

A path is judged by what it leads to: nothing of the source, no folder and no device is overwritten,
and nothing of the source is taken for what a dead run left.
"""

from __future__ import annotations

import os
import shutil
import stat
from typing import TYPE_CHECKING, Final

from edgellm.errors import DoesNotFit, UsageError
from edgellm.units import format_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from edgellm.runtime.conversion import ConvertOptions

_KINDS: Final = {
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}


def check_source(src: Path) -> None:
    """Refuse what is there and is neither a folder nor a regular file; what is missing is passed.

    Raises:
        UsageError: it is a device, a pipe or a socket.
    """
    try:
        mode = src.stat().st_mode
    except OSError:  # whoever opens it says what is wrong with it
        return
    if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
        what = _KINDS.get(stat.S_IFMT(mode), "no file")
        raise UsageError(f"is {what}; a checkpoint folder or a GGUF file is needed", path=src)


def check_out(options: ConvertOptions) -> None:
    """Refuse to replace what no conversion may: links are judged by what they lead to.

    Worth a call of its own before a source is fetched.

    Raises:
        UsageError: `options.out` is there, cannot be written, or its folder does not exist; or the
            name it is written under is a file of the source.
    """
    out = options.out
    check_folder(out)
    _check_partial(out, options.src)
    try:
        there = out.stat()
    except FileNotFoundError:
        return
    except OSError as err:
        raise UsageError(f"cannot be written: {err.strerror or err}", path=out) from err
    other = "name another file"
    if stat.S_ISDIR(there.st_mode):
        raise UsageError("is a folder", path=out, hint="name a file in it")
    if not stat.S_ISREG(there.st_mode):
        raise UsageError("is there and is not a regular file", path=out, hint=other)
    if any(_is_same(path, there) for path in _files(options.src)):
        raise UsageError("is a file of the source itself", path=out, hint=other)
    if not options.overwrite:
        raise UsageError("is there already", path=out, hint=f"use --force, or {other}")


def _check_partial(out: Path, src: Path) -> None:
    """Refuse a source that the run would clear as a dead one's."""
    from edgellm.converters.claim import partial_path

    partial = partial_path(out)
    try:
        there = partial.stat()
    except OSError:  # where it is there and cannot be asked, it cannot be cleared either
        return
    # In a folder, the name itself is a dead run's whose output lay there, and no checkpoint's.
    own = [path for path in _files(src) if path == src or path.name != partial.name]
    if any(_is_same(path, there) for path in own):
        raise UsageError(
            f"is a file of the source itself, and the name under which {out.name} would be written",
            path=partial,
            hint="rename it, or name another file",
        )


def check_folder(out: Path) -> None:
    """Refuse a file in a folder that is not there.

    Raises:
        UsageError: there is no such folder.
    """
    if not out.parent.is_dir():
        raise UsageError("the folder does not exist", path=out.parent)


def check_space(out: Path, need_bytes: int) -> None:
    """Refuse to begin what the disk cannot hold.

    Raises:
        DoesNotFit: fewer than `need_bytes` are free where `out` goes.
    """
    have_bytes = free_bytes(out)
    if have_bytes < need_bytes:
        raise DoesNotFit(
            f"needs {format_bytes(need_bytes)}, {format_bytes(have_bytes)} are free",
            path=out,
            hint="free some space or name a file elsewhere",
            need_bytes=need_bytes,
            have_bytes=have_bytes,
        )


def free_bytes(out: Path) -> int:
    """Return the free space where `out` goes, in bytes."""
    return shutil.disk_usage(out.parent).free


def _files(src: Path) -> list[Path]:
    try:
        return list(src.iterdir()) if src.is_dir() else [src]
    except OSError:  # planning says what is wrong with it
        return []


def _is_same(path: Path, status: os.stat_result) -> bool:
    try:
        return os.path.samestat(path.stat(), status)
    except OSError:  # a link to nowhere
        return False
