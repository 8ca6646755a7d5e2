"""Room for a snapshot: made before it is written, so that no limit is ever passed.

Whoever writes holds the one lock of the store, so that of several processes each counts what the
others have written. What stands in the way of a save is a reason to skip it, never an error.
"""

from __future__ import annotations

import contextlib
import functools
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from edgellm.errors import SnapshotError
from edgellm.paths import CAP_VARIABLE, snapshots_cap_bytes
from edgellm.store.answers import Skipped
from edgellm.store.disk import eviction, survey
from edgellm.store.disk.flight import Locks
from edgellm.store.disk.place import disk_of, judge, no_room
from edgellm.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path

    from edgellm.store.disk.place import Disk, Place

WAIT_S: Final = 10.0
"""How long a save waits for those of other processes."""
LOCK_NAME: Final = "store"
_AROUND_BYTES: Final = 16 << 10
"""What a new file may take beside its own bytes: its last block, and a folder of its own."""

_OWN_BYTES: Final = 2 << 20
"""What the store's own ledger, locks and folders may take."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """What pruning removed, and what is left below the root.

    Attributes:
        n_snapshots: how many went because there were too many.
        n_orphans: how many files went that nobody could use any more.
        freed_bytes: what all of these took.
        left_bytes: what is still there, whatever it is.
        other_bytes: how much of that is no snapshot, and so stays.
    """

    n_snapshots: int
    n_orphans: int
    freed_bytes: int
    left_bytes: int
    other_bytes: int = 0


class Room:
    """The room that one store may take.

    Args:
        root: the store's folder.
        cap_bytes: the most that everything below it may take together; None takes what
            `EDGELLM_SNAPSHOTS_MAX` says, or else the disk's own default.
        floor_bytes: what stays free on the disk; None takes the disk's own default.
        wait_s: how long a save waits for those of other processes.
        clock_ns: gives the time of uses, Unix nanoseconds.

    Raises:
        UsageError: `EDGELLM_SNAPSHOTS_MAX` is no number of bytes.
    """

    def __init__(
        self,
        root: Path,
        *,
        cap_bytes: int | None = None,
        floor_bytes: int | None = None,
        wait_s: float = WAIT_S,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.root = root
        self.locks = Locks(root)
        self._cap_bytes = snapshots_cap_bytes() if cap_bytes is None else cap_bytes
        self._floor_bytes = floor_bytes
        self._wait_s = wait_s
        self._clock_ns = clock_ns

    @functools.cached_property
    def place(self) -> Place:
        """What may be done with the root; judged once."""
        return judge(self.root, self._floor_bytes)

    @property
    def cap_bytes(self) -> int:
        """The most that everything below the root may take together."""
        return disk_of(self.root).cap_bytes if self._cap_bytes is None else self._cap_bytes

    @property
    def free_bytes(self) -> int:
        """What the disk has free and others need not be left; negative where they already lack it."""
        disk = disk_of(self.root)
        return disk.free_bytes - self._floor(disk)

    def _floor(self, disk: Disk) -> int:
        return disk.floor_bytes if self._floor_bytes is None else self._floor_bytes

    @property
    def closed(self) -> str:
        """Why nothing at all can be written, as far as that is known beforehand, or ""."""
        if self.place.writable and self.cap_bytes <= 0:
            return f"no room is given to snapshots ({CAP_VARIABLE} or the cap that was asked for)"
        return "" if self.place.writable else self.place.problem

    @contextlib.contextmanager
    def made(
        self, n_bytes: int, keep: Collection[Path] = (), wait_s: float | None = None
    ) -> Iterator[Skipped | None]:
        """Make room for a file and keep others from writing until it is written.

        Args:
            n_bytes: of the file, at most.
            keep: snapshots that must not go for it, such as the one that it leans on.
            wait_s: how long to wait for other processes; None waits as long as the room says.

        Yields:
            None, or why it is not to be written.
        """
        refused = self._refused(n_bytes + _AROUND_BYTES)
        if refused is not None:
            yield refused
            return
        lease = self.locks.take(LOCK_NAME, self._wait_s if wait_s is None else wait_s)
        if lease is None:
            yield Skipped("other processes are saving")
            return
        with lease:
            if lease.is_locked:
                yield self._make(n_bytes + _AROUND_BYTES, keep)
            else:
                yield Skipped(f"cannot write: {lease.trouble} in {self.root}", failed=True)

    def used(self, paths: Sequence[Path]) -> None:
        """Note that a snapshot was used or saved just now, with those that it leans on.

        Args:
            paths: the snapshot, then what it leans on, as far as that is known.
        """
        if self.place.writable:
            eviction.use(self.root, paths, self._clock_ns())

    def sweep(self) -> int:
        """Remove what killed processes left behind, and return how many files; names only are read.

        Where another process is writing, it is left for another time.
        """
        if not self.place.writable:
            return 0
        orphans = survey.survey(self.root).orphans
        n_removed = self.locks.collect()
        lease = self.locks.take(LOCK_NAME) if orphans else None
        if lease is not None:
            with lease:
                n_removed += len(_removed(orphans))
        return n_removed

    def prune(self, max_bytes: int | None = None) -> Pruned:
        """Remove what nobody can use any more, then what was used least recently.

        Args:
            max_bytes: what may be left; None takes the cap.

        Raises:
            SnapshotError: another process keeps the store busy, or locks do not work.
        """
        if not self.root.exists():
            return Pruned(0, 0, 0, 0)
        lease = self.locks.take(LOCK_NAME, self._wait_s)
        if lease is None or not lease.is_locked:
            why = lease.trouble if lease else f"another process saved for {self._wait_s:.0f} s"
            raise SnapshotError(f"cannot be pruned: {why}", path=self.root)
        with lease:
            n_locks = self.locks.collect()
            found = survey.survey(self.root)
            whole, leaning = survey.looked_into(found.snapshots)
            orphans = _removed([*found.orphans, *leaning])
            left = found.n_bytes - sum(orphans)
            limit = self.cap_bytes if max_bytes is None else max_bytes
            snapshot_bytes = sum(kept.n_bytes for kept in whole)
            other = left - snapshot_bytes
            # Where what is no snapshot takes more than there may be, nothing helps; 0 means all.
            helps = not limit or other <= limit + _OWN_BYTES
            snapshots = eviction.evict(whole, min(left - limit, snapshot_bytes)) if helps else []
        freed = sum(kept.n_bytes for kept in snapshots)
        n_orphans = n_locks + len(orphans)
        return Pruned(len(snapshots), n_orphans, sum(orphans) + freed, left - freed, other)

    def _refused(self, need_bytes: int) -> Skipped | None:
        """Say what is known before anything is looked at."""
        if not self.place.writable:
            return Skipped(self.place.problem)  # of which whoever opened the store was told
        if need_bytes > self.cap_bytes:
            return Skipped(
                f"it takes {format_bytes(need_bytes)}, more than the "
                f"{format_bytes(self.cap_bytes)} of all snapshots together ({CAP_VARIABLE})",
                failed=self.cap_bytes > 0,  # who allows nothing wants no warning
            )
        return None

    def _make(self, need_bytes: int, keep: Collection[Path]) -> Skipped | None:
        """Remove as little as will do; nothing where even everything would not."""
        found = survey.survey(self.root)
        taken = found.n_bytes - sum(_removed(found.orphans))
        disk = disk_of(self.root)
        floor = self._floor(disk)
        over, short = taken + need_bytes - self.cap_bytes, floor + need_bytes - disk.free_bytes
        wanted = max(over, short)
        if wanted <= 0:
            return None
        whole, leaning = survey.looked_into(found.snapshots)
        wanted -= sum(_removed(leaning))
        if wanted <= sum(kept.n_bytes for kept in eviction.evict(whole, wanted, keep)):
            return None
        if short > over:
            return Skipped(no_room(self.root, disk, floor), failed=True)
        text = f"{format_bytes(taken)} of {format_bytes(self.cap_bytes)} are taken in {self.root}"
        return Skipped(f"{text}, and too little of it can go", failed=True)


def _removed(files: Collection[tuple[Path, int]]) -> list[int]:
    """Remove files and return the bytes of those that went."""
    return [n_bytes for path, n_bytes in files if eviction.remove(path)]
