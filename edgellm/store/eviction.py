"""What lies below a store's root, and what goes first when there is too much of it.

Every file counts, whatever it is; only snapshots, of this version of the store and of others, and
what nobody can use any more are ever removed. The least recently used goes first, what leans on a
snapshot goes before it, and nothing goes where that would not make room enough.
"""

from __future__ import annotations

import os
import re
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from edgellm.fileio import PRIVATE_FILE_MODE, private_dir, process_alive, temp_owner
from edgellm.store import names
from edgellm.store.flight import LOCKS_DIR

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

ORPHAN_AGE_S: Final = 3600.0
MAX_DEPTH: Final = 64
"""Of folders below the root, and of snapshots that lean on each other: longer is not followed."""
CLOCK_NAME: Final = "clock"
_FOLLOW: Final = os.utime not in os.supports_follow_symlinks  # as on Windows
_PEEK_BYTES: Final = 8192
_TICK_NS: Final = 1_000_000
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
        n_bytes: all files and folders together, as the disk counts them.
        snapshots: what may go, in no order.
        orphans: what nobody can use any more, with its bytes: temporaries of dead writers, and
            texts' files that lead nowhere.
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
    for path, status, inside in _walk(root):
        taken = _taken_bytes(status)
        n_bytes += taken
        if not stat.S_ISREG(status.st_mode):
            continue
        owner = temp_owner(path)
        if owner is not None:
            if now_s - status.st_mtime > ORPHAN_AGE_S or not process_alive(owner):
                orphans.append((path, taken))
        elif len(inside) == 2 and _is_snapshot(inside, path.name):
            snapshots.append(Kept(path, taken, status.st_mtime_ns))
        elif len(inside) == 2 and names.target_name(path.name) is not None:
            leading.append((path, taken))
    here = {kept.path for kept in snapshots}
    orphans += [item for item in leading if _target(item[0]) not in here]
    return Survey(n_bytes, tuple(snapshots), tuple(orphans))


def looked_into(snapshots: Collection[Kept]) -> tuple[list[Kept], list[tuple[Path, int]]]:
    """Read the head of each snapshot: when it was made, and on which other one it leans.

    Returns:
        The snapshots, and those that lean on one that is gone, with their bytes.
    """
    heads = {kept.path: _head(kept.path) for kept in snapshots}
    whole: list[Kept] = []
    orphans: list[tuple[Path, int]] = []
    for kept in snapshots:
        made_ns, parent = heads[kept.path]
        if parent is not None and parent not in heads:
            orphans.append((kept.path, kept.n_bytes))
        else:
            whole.append(Kept(kept.path, kept.n_bytes, max(kept.used_ns, made_ns), parent))
    return whole, orphans


def in_order(snapshots: Collection[Kept]) -> list[Kept]:
    """Return snapshots in the order in which they go: oldest use first, children before parents.

    A use of a snapshot is one of those it leans on.
    """
    known = {kept.path: kept for kept in snapshots}
    used = {path: kept.used_ns for path, kept in known.items()}
    depth = dict.fromkeys(known, 0)
    for path, kept in known.items():
        for above in _ancestors(path, known):
            used[above] = max(used[above], kept.used_ns)
            depth[path] += 1
    return sorted(snapshots, key=lambda kept: (used[kept.path], -depth[kept.path], kept.path))


def evict(snapshots: Collection[Kept], n_bytes: int, keep: Collection[Path] = ()) -> list[Kept]:
    """Remove snapshots until so many bytes are free, or nothing at all if that cannot be done.

    Args:
        snapshots: those there are, looked into.
        n_bytes: what is to become free.
        keep: those that stay, with all that they lean on.

    Returns:
        Those removed; they have less than `n_bytes` where it could not be done.
    """
    known = {kept.path: kept for kept in snapshots}
    spared = {above for path in keep for above in (path, *_ancestors(path, known))}
    candidates = [kept for kept in in_order(snapshots) if kept.path not in spared]
    if sum(kept.n_bytes for kept in candidates) < n_bytes:
        return []
    removed: list[Kept] = []
    for kept in candidates:
        if n_bytes <= 0:
            break
        leaning = kept.path in spared
        if not leaning and remove(kept.path):
            n_bytes -= kept.n_bytes
            removed.append(kept)
        else:  # Windows keeps what somebody reads, and then what it leans on is of use
            spared.update(_ancestors(kept.path, known))
    return removed


def remove(path: Path) -> bool:
    """Remove one file, and its folder if that is empty then; False where the system refuses."""
    try:
        path.unlink()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    if names.is_folder_name(path.parent.name):
        try:
            path.parent.rmdir()  # works only on an empty folder
        except OSError:
            return True
    return True


def use(root: Path, paths: Sequence[Path], now_ns: int) -> None:
    """Note that a snapshot is used now, and with it those it leans on, which so stay longer.

    The time noted is later than that of any use before, also where the clock was set back: the
    newest of all is that of the file `locks/clock`. What cannot be noted is left.

    Args:
        root: the store's folder.
        paths: the snapshot, and as far as it is known what it leans on, in that order.
        now_ns: what the clock says, Unix nanoseconds.
    """
    clock = root / LOCKS_DIR / CLOCK_NAME
    try:
        newest_ns = clock.stat(follow_symlinks=False).st_mtime_ns
    except OSError:
        newest_ns = 0
    used_ns = max(now_ns, newest_ns + _TICK_NS)
    try:
        for above in (*paths, *_below(paths[-1])):
            os.utime(above, ns=(used_ns, used_ns), follow_symlinks=_FOLLOW)
            used_ns += _TICK_NS
        if not newest_ns:
            private_dir(clock.parent)
            flags = os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
            os.close(os.open(clock, flags, PRIVATE_FILE_MODE))
        os.utime(clock, ns=(used_ns, used_ns), follow_symlinks=_FOLLOW)
    except OSError:  # a store that may only be read
        return


def _below(path: Path) -> Iterator[Path]:
    """Give what a snapshot leans on, one after the other, as far as their heads tell."""
    for _ in range(MAX_DEPTH):
        parent = _head(path)[1]
        if parent is None:
            return
        yield parent
        path = parent


def _ancestors(path: Path, known: dict[Path, Kept]) -> Iterator[Path]:
    for _ in range(MAX_DEPTH):
        parent = known[path].parent if path in known else None
        if parent is None or parent not in known:
            return
        yield parent
        path = parent


def _head(path: Path) -> tuple[int, Path | None]:
    """Return when a snapshot says it was made, Unix nanoseconds or 0, and what it leans on.

    The first bytes tell, and are not verified: they decide only what goes first. An encrypted file
    tells nothing here; the times of its uses do.
    """
    try:
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        fd = os.open(path, flags | getattr(os, "O_BINARY", 0))
        try:
            start = os.read(fd, _PEEK_BYTES)
        finally:
            os.close(fd)
    except OSError:
        return 0, None
    made, parent = _CREATED.search(start), _PARENT.search(start)
    made_ns = int(made.group(1)) * 10**9 if made else 0
    return made_ns, path.with_name(parent.group(1).decode() + names.SUFFIX) if parent else None


def _walk(root: Path) -> Iterator[tuple[Path, os.stat_result, tuple[str, ...]]]:
    """Give everything below a root with its status and the folders it is in, itself included."""
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
                    yield Path(entry.path), status, inside
                    if stat.S_ISDIR(status.st_mode) and len(inside) < MAX_DEPTH:
                        folders.append((entry.path, (*inside, entry.name)))
        except OSError:
            continue


def _is_snapshot(inside: tuple[str, ...], name: str) -> bool:
    """Return whether a file's place and name are those of a snapshot of any version."""
    version, folder = inside
    in_place = _VERSION.fullmatch(version) is not None and names.is_folder_name(folder)
    return in_place and names.is_file_name(name)


def _target(path: Path) -> Path:
    """Return where the snapshot lies that a text's file leads to."""
    return path.with_name(names.target_name(path.name) or "")


def _taken_bytes(status: os.stat_result) -> int:
    """Return what a file takes: its length, or its blocks where they are more."""
    return max(status.st_size, getattr(status, "st_blocks", 0) * _BLOCK_BYTES)
