"""What kind of place the store's folder is: whether snapshots may be read there, and written.

A network file system is left alone: locks there may hang, and a rename may be seen half done. A
folder that cannot be written, or a disk without room, is still read. What is not known is fine.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from edgellm.paths import HOME_VARIABLE, NOWHERE
from edgellm.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

MOUNTS: Final = Path("/proc/self/mounts")
NETWORK: Final = frozenset(
    [
        *("9p", "afpfs", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "drvfs", "fhgfs", "gfs"),
        *("gfs2", "glusterfs", "gpfs", "lustre", "ncp", "ncpfs", "nfs", "nfs3", "nfs4", "ocfs2"),
        *("orangefs", "pvfs2", "smb", "smb2", "smb3", "smbfs", "vboxsf", "vmhgfs", "webdav"),
    ]
)
"""Types of file systems whose files other machines may change, as mount tables name them."""
NETWORK_FUSE: Final = frozenset(
    [
        *("ceph", "davfs2", "gcsfuse", "glusterfs", "goofys", "gvfsd-fuse", "mountpoint-s3"),
        *("rclone", "s3fs", "s3ql", "seaweedfs", "smbnetfs", "sshfs", "vmhgfs-fuse"),
    ]
)
"""Likewise, what stands behind `fuse.`."""
MAX_CAP_BYTES: Final = 10 << 30
CAP_SHARE: Final = 0.1
MIN_FLOOR_BYTES: Final = 1 << 30
FLOOR_SHARE: Final = 0.05
_ESCAPED: Final = re.compile(rb"\\([0-7]{3})")
_HINT: Final = f"set {HOME_VARIABLE} to a folder of your own on a disk of this machine"


@dataclass(frozen=True, slots=True)
class Disk:
    """The disk under a folder: its size, and what this user may still fill."""

    total_bytes: int
    free_bytes: int

    @property
    def cap_bytes(self) -> int:
        """The most that snapshots take where nobody says otherwise."""
        return min(MAX_CAP_BYTES, int(self.total_bytes * CAP_SHARE))

    @property
    def floor_bytes(self) -> int:
        """What snapshots leave free for others."""
        return max(MIN_FLOOR_BYTES, int(self.total_bytes * FLOOR_SHARE))


@dataclass(frozen=True, slots=True)
class Place:
    """What may be done with a store's folder.

    Attributes:
        problem: why something may not, one phrase, or "".
        readable: whether snapshots are looked for.
        writable: whether they are kept.
    """

    problem: str = ""
    readable: bool = True
    writable: bool = True

    @property
    def trouble(self) -> str:
        """The problem and what it means, in words for one warning, or ""."""
        if not self.problem:
            return ""
        return f"prefix snapshots are {'not kept' if self.readable else 'off'}: {self.problem}"


def judge(root: Path, floor_bytes: int | None = None, mounts: Path = MOUNTS) -> Place:
    """Return what may be done with a folder, which need not be there yet. Nothing is changed.

    Args:
        root: the store's folder, absolute.
        floor_bytes: what must stay free on its disk; None takes the disk's own.
        mounts: the table of mounts, in the form of /proc/self/mounts.
    """
    there = _nearest(root)
    if NOWHERE in root.parents:
        problem = f"this user has no home folder; {_HINT}"
        return Place(problem, readable=False, writable=False)
    network = network_type(there, mounts)
    if network:
        problem = f"{root} is on a network file system ({network}); {_HINT}"
        return Place(problem, readable=False, writable=False)
    if there.is_dir() and not os.access(there, os.W_OK | os.X_OK):
        return Place(f"{there} cannot be written; {_HINT}", writable=False)
    disk = disk_of(root)
    floor = disk.floor_bytes if floor_bytes is None else floor_bytes
    if disk.free_bytes < floor:
        return Place(no_room(root, disk, floor), writable=False)
    return Place()


def no_room(root: Path, disk: Disk, floor_bytes: int) -> str:
    """Say that a disk is as full as it may be."""
    return (
        f"the disk of {root} has {format_bytes(disk.free_bytes)} free, "
        f"of which {format_bytes(floor_bytes)} stay free for others"
    )


def disk_of(folder: Path) -> Disk:
    """Return the size and the free space of the disk under a folder, which need not be there yet.

    A disk that does not say is one of which nothing is used.
    """
    try:
        usage = shutil.disk_usage(_nearest(folder))
    except OSError:
        return Disk(sys.maxsize, sys.maxsize)
    return Disk(usage.total, usage.free)


def network_type(folder: Path, mounts: Path = MOUNTS) -> str:
    """Return the type of the network file system that a folder is on, or "" for any other."""
    place = _bytes_of(folder)
    found, length = "", -1
    for point, kind in _mounts(mounts):
        inside = point in {b"/", place} or place.startswith(point + b"/")
        if inside and len(point) >= length:  # of several at one point the last one is seen
            found, length = kind, len(point)
    is_network = found in NETWORK or found.removeprefix("fuse.") in NETWORK_FUSE
    return found if is_network else ""


def _mounts(table: Path) -> Iterable[tuple[bytes, str]]:
    """Give every mount point and the type of what is mounted there, in the order of mounting.

    Source: proc(5) and fstab(5): blanks and backslashes in a path are written in octal.
    """
    try:
        lines = table.read_bytes().splitlines()
    except OSError:
        return _mounts_of_others()
    rows = [line.split(b" ") for line in lines]
    return [
        (_ESCAPED.sub(lambda m: bytes([int(m[1], 8) & 0xFF]), row[1]), row[2].decode("latin-1"))
        for row in rows
        if len(row) > 3
    ]


def _mounts_of_others() -> list[tuple[bytes, str]]:
    """Do the same on systems without /proc, where it takes longer."""
    if sys.platform == "linux":
        return []
    import psutil

    # On Windows the type says how a share is formatted, and the options that it is one.
    return [
        (
            os.fsencode(part.mountpoint).rstrip(b"/\\") or b"/",
            "smb" if "remote" in part.opts.split(",") else part.fstype,
        )
        for part in psutil.disk_partitions(all=True)
    ]


def _nearest(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that is there, without links."""
    try:
        there = next((p for p in (folder, *folder.parents) if os.path.lexists(p)), folder)
        return there.resolve()
    except (OSError, RuntimeError):  # RuntimeError: links that lead in a circle
        return folder


def _bytes_of(folder: Path) -> bytes:
    return os.fsencode(folder).replace(os.sep.encode(), b"/")
