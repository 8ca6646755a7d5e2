"""What lies below a store's root: every file counts, whatever it is.

Names and sizes tell almost all; the head of a snapshot tells when it was made and on which other one
it leans. Nothing is changed here.
"""

from __future__ import annotations

import os
import re
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from edgellm.fileio import process_alive, temp_owner
from edgellm.store.disk import names

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

ORPHAN_AGE_S: Final = 3600.0
MAX_DEPTH: Final = 64
"""Of folders below the root: deeper ones are not looked into."""
_PEEK_BYTES: Final = 8192
_VERSION: Final = re.compile(r"v[0-9]{1,4}")
# In a JSON string a quote has a backslash before it, so no value can look like these members.
_CREATED: Final = re.compile(rb',"created":([0-9]{1,18}),')
_PARENT: Final = re.compile(rb',"parent":\{"key":"([0-9a-f]{32})"')
_BLOCK_BYTES: Final = 512  # the unit of st_blocks, whatever the file system's own is


@dataclass(frozen=True, slots=True)
class Kept:
    """A snapshot as its name and its head show it.

    Attributes:
        path: where it lies.
        n_bytes: what it takes on the disk.
        used_ns: when it was saved or used last, Unix nanoseconds; never before it was made.
        parent: where the snapshot that it leans on lies, or None.
    """

    path: Path
    n_bytes: int
    used_ns: int
    parent: Path | None = None


@dataclass(frozen=True, slots=True)
class Survey:
    """What lies below a root.

    Attributes:
        n_bytes: all files and folders together: snapshots and temporaries by their length, or what
            the disk counts where that is more; the rest as the disk counts it.
        snapshots: what may go, in no order.
        orphans: what nobody can use any more, with its bytes: temporaries of dead writers, folders
            of dead importers, and texts' files that lead nowhere.
    """

    n_bytes: int
    snapshots: tuple[Kept, ...]
    orphans: tuple[tuple[Path, int], ...]


def survey(root: Path) -> Survey:
    """Look at every name below a root; no file is opened and no link followed."""
    n_bytes, now_s = 0, time.time()
    snapshots: list[Kept] = []
    orphans: list[tuple[Path, int]] = []
    leading: list[tuple[Path, int]] = []
    staged: dict[Path, int] = {}
    for entry, status, inside in _walk(root):
        taken = _taken_bytes(entry.name, status)
        n_bytes += taken
        if _is_left_by_import(*inside, entry.name):
            stage = root.joinpath(*(*inside, entry.name)[:2])
            staged[stage] = staged.get(stage, 0) + taken
            continue
        in_place = _holds_snapshots(inside)
        if not stat.S_ISREG(status.st_mode):
            continue
        if entry.name.startswith("."):
            owner = temp_owner(path := Path(entry.path))
            old = now_s - status.st_mtime > ORPHAN_AGE_S
            if owner is not None and (old or not process_alive(owner)):
                orphans.append((path, taken))
        elif in_place and names.is_file_name(entry.name):
            snapshots.append(Kept(Path(entry.path), taken, status.st_mtime_ns))
        elif in_place and names.target_name(entry.name) is not None:
            leading.append((Path(entry.path), taken))
    here = {kept.path for kept in snapshots}
    orphans += [*staged.items(), *(item for item in leading if _target(item[0]) not in here)]
    return Survey(n_bytes, tuple(snapshots), tuple(orphans))


def looked_into(snapshots: Collection[Kept]) -> tuple[list[Kept], list[tuple[Path, int]]]:
    """Read the head of each snapshot: when it was made, and on which other one it leans.

    Returns:
        The snapshots, and with their bytes those that are of no use: they lean on one that is gone,
        or begin with nothing but zeros, as after a power loss.
    """
    starts = {kept.path: _start_of(kept.path) for kept in snapshots}
    heads = {path: _head_in(path, start) for path, start in starts.items()}
    whole: list[Kept] = []
    orphans: list[tuple[Path, int]] = []
    for kept in snapshots:
        made_ns, parent = heads[kept.path]
        start = starts[kept.path]
        is_empty = bool(start) and not any(start)
        if is_empty or (parent is not None and parent not in heads):
            orphans.append((kept.path, kept.n_bytes))
        else:
            whole.append(Kept(kept.path, kept.n_bytes, max(kept.used_ns, made_ns), parent))
    return whole, orphans


def head(path: Path) -> tuple[int, Path | None]:
    """Return when a snapshot says it was made, Unix nanoseconds or 0, and what it leans on.

    The first bytes tell, and are not verified: they decide only what goes first. An encrypted file
    tells nothing here; the times of its uses do.
    """
    return _head_in(path, _start_of(path))


def _start_of(path: Path) -> bytes:
    """Return the first bytes of a file; b"" where it cannot be read."""
    try:
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        fd = os.open(path, flags | getattr(os, "O_BINARY", 0))
        try:
            return os.read(fd, _PEEK_BYTES)
        finally:
            os.close(fd)
    except OSError:
        return b""


def _head_in(path: Path, start: bytes) -> tuple[int, Path | None]:
    made, parent = _CREATED.search(start), _PARENT.search(start)
    made_ns = int(made.group(1)) * 10**9 if made else 0
    return made_ns, path.with_name(parent.group(1).decode() + names.SUFFIX) if parent else None


def _walk(root: Path) -> Iterator[tuple[os.DirEntry[str], os.stat_result, tuple[str, ...]]]:
    """Give everything below a root with its status, and the names of the folders that it lies in."""
    folders: list[tuple[str, tuple[str, ...]]] = [(str(root), ())]
    while folders:
        folder, inside = folders.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except OSError:  # gone meanwhile
                        continue
                    yield entry, status, inside
                    if stat.S_ISDIR(status.st_mode) and len(inside) < MAX_DEPTH:
                        folders.append((entry.path, (*inside, entry.name)))
        except OSError:
            continue


def _holds_snapshots(inside: tuple[str, ...]) -> bool:
    """Return whether a folder below the root is one of snapshots, of any version."""
    if len(inside) != 2:
        return False
    version, folder = inside
    return _VERSION.fullmatch(version) is not None and names.is_folder_name(folder)


def _is_left_by_import(top: str, name: str = "", *_: str) -> bool:
    """Return whether what has these names below the root was staged by an import that is gone."""
    owner = temp_owner(Path(name)) if top == names.IMPORTS_DIR else None
    return owner is not None and not process_alive(owner)


def _target(path: Path) -> Path:
    """Return where the snapshot lies that a text's file leads to."""
    return path.with_name(names.target_name(path.name) or "")


def _taken_bytes(name: str, status: os.stat_result) -> int:
    """Return what a file takes on the disk.

    Some file systems count the blocks of a new file seconds later: what the store writes itself, and
    never with holes, takes its length at least. Of any other file a hole is no reason to remove
    snapshots; it counts as it is filled.
    """
    blocks: int | None = getattr(status, "st_blocks", None)
    if blocks is None:  # Windows tells none
        return status.st_size
    is_ours = names.is_file_name(name) or name.startswith(".")
    return max(status.st_size if is_ours else 0, blocks * _BLOCK_BYTES)
