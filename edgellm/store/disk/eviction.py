"""What goes first when there is too much: the least recently used, and what leans on it before it.

Only snapshots are removed here, of this version of the store and of others, and nothing goes where
that would not make room enough. Uses are noted in the times of the files.
"""

from __future__ import annotations

import os
import shutil
import stat
from typing import TYPE_CHECKING, Final

from edgellm.fileio import PRIVATE_FILE_MODE, private_dir
from edgellm.store.disk import names
from edgellm.store.disk.flight import LOCKS_DIR
from edgellm.store.disk.survey import head
from edgellm.store.format.layout import MAX_LINKS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

    from edgellm.store.disk.survey import Kept

CLOCK_NAME: Final = "clock"
_FOLLOW: Final = os.utime not in os.supports_follow_symlinks  # as on Windows
_TICK_NS: Final = 1_000_000


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
    left_bytes = sum(kept.n_bytes for kept in candidates)
    for kept in candidates:
        if n_bytes <= 0 or left_bytes < n_bytes:  # what cannot go takes nothing else with it
            break
        left_bytes -= kept.n_bytes
        leaning = kept.path in spared
        if not leaning and remove(kept.path):
            n_bytes -= kept.n_bytes
            removed.append(kept)
        else:  # Windows keeps what somebody reads, and then what it leans on is of use
            spared.update(_ancestors(kept.path, known))
    return removed


def remove(path: Path) -> bool:
    """Remove one file, and its folder if that is empty then; False where the system refuses.

    A folder, which an import that was killed has left, goes with all that is in it.
    """
    try:
        if stat.S_ISDIR(path.lstat().st_mode):
            shutil.rmtree(path)
        else:
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
    for _ in range(MAX_LINKS):
        parent = head(path)[1]
        if parent is None:
            return
        yield parent
        path = parent


def _ancestors(path: Path, known: dict[Path, Kept]) -> Iterator[Path]:
    for _ in range(MAX_LINKS):
        parent = known[path].parent if path in known else None
        if parent is None or parent not in known:
            return
        yield parent
        path = parent
