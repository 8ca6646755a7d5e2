"""A place that is not fit for snapshots is known before anything is done there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgellm.paths import NOWHERE
from edgellm.store.disk import place
from edgellm.store.disk.place import Disk, Place, judge, network_type

GIB = 1 << 30


def _table(tmp_path: Path, *lines: str) -> Path:
    """Write a table of mounts: `point type` a line."""
    table = tmp_path / "mounts"
    rows = ("none {} {} rw,relatime 0 0\n".format(*line.split(" ")) for line in lines)
    table.write_text("".join(rows))
    return table


@pytest.mark.parametrize(
    ("kind", "is_network"),
    [
        *((kind, True) for kind in ("nfs", "nfs4", "cifs", "smb3", "9p", "lustre", "ceph")),
        *((kind, True) for kind in ("fuse.sshfs", "fuse.rclone", "fuse.glusterfs")),
        *((kind, False) for kind in ("ext4", "tmpfs", "overlay", "fuse.ntfs-3g", "fuseblk", "new")),
    ],
)
def test_network_file_systems_are_known_by_their_type(tmp_path: Path, kind: str, is_network: bool):
    """What is not known is taken for a disk."""
    table = _table(tmp_path, "/ ext4", f"{tmp_path} {kind}")
    assert network_type(tmp_path / "a", table) == (kind if is_network else "")


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        ("/mnt/share/snapshots", "nfs4"),
        ("/mnt/share", "nfs4"),
        ("/mnt/shared", ""),
        ("/mnt/share/local/x", ""),
        ("/my home/x", "cifs"),
        ("/over/x", "9p"),
        ("/elsewhere", ""),
    ],
)
def test_the_innermost_mount_counts(tmp_path: Path, folder: str, expected: str):
    """Of mounts within others the last part of the path decides, at one point the later one."""
    table = _table(
        tmp_path,
        "/ ext4",
        "/mnt/share/local ext4",
        "/mnt/share nfs4",
        r"/my\040home cifs",
        "/over autofs",
        "/over 9p",
    )
    assert network_type(Path(folder), table) == expected


def test_a_table_of_nonsense_tells_nothing(tmp_path: Path):
    """A table that is missing, or holds something else, is no reason against a folder."""
    table = tmp_path / "mounts"
    assert network_type(tmp_path, table) == ""
    table.write_bytes(b"\n/ nfs\n\xff\xfe \xff nfs 0\n")
    assert network_type(tmp_path, table) == ""


def test_a_network_folder_is_left_alone(tmp_path: Path):
    """Neither read nor written; the warning names the type and the way out."""
    found = judge(tmp_path / "home" / "snapshots", mounts=_table(tmp_path, f"{tmp_path} nfs4"))
    assert (found.readable, found.writable) == (False, False)
    assert "network file system (nfs4)" in found.trouble
    assert "EDGELLM_HOME" in found.trouble


def test_a_link_to_a_network_folder_is_one(tmp_path: Path):
    """The place is where the files would lie, not where the link does."""
    (tmp_path / "share").mkdir()
    (tmp_path / "home").symlink_to(tmp_path / "share")
    table = _table(tmp_path, f"{tmp_path}/share nfs")
    assert not judge(tmp_path / "home" / "snapshots", mounts=table).readable


def test_an_ordinary_folder_is_fine_and_stays_as_it_is(tmp_path: Path):
    """One that is not there yet is judged by the one above, and is not made."""
    assert judge(tmp_path / "a" / "b", 0) == Place()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Below the floor nothing is written; the figures are in the warning."""
    monkeypatch.setattr(place, "disk_of", lambda folder: Disk(100 * GIB, 2 * GIB))
    found = judge(tmp_path)
    assert (found.readable, found.writable) == (True, False)
    assert "2.1 GB free" in found.trouble
    assert judge(tmp_path, GIB) == Place()


@pytest.mark.parametrize(
    ("total", "cap", "floor"),
    [
        (8 * GIB, int(0.8 * GIB), GIB),
        (100 * GIB, 10 * GIB, 5 * GIB),
        (4000 * GIB, 10 * GIB, 200 * GIB),
    ],
)
def test_the_defaults_follow_the_disk(total: int, cap: int, floor: int):
    """At most 10 GiB or a tenth of the disk is taken, and 1 GiB or a twentieth left free."""
    disk = Disk(total, total)
    assert (disk.cap_bytes, disk.floor_bytes) == (cap, floor)


def test_a_user_without_a_home_has_no_store():
    """The path that stands for no home is told as what it is."""
    found = judge(NOWHERE / "edgellm" / "snapshots")
    assert not found.readable
    assert "no home folder" in found.trouble


def test_links_in_a_circle_are_no_error(tmp_path: Path):
    """A path that leads nowhere is a place that cannot be written, or nothing worse."""
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert judge(tmp_path / "a" / "snapshots").readable


JUDGE = """
import sys
from pathlib import Path
from edgellm.store.disk.place import judge
found = judge(Path(sys.argv[1]))
print(found.readable, found.writable, "cannot be written" in found.trouble)
"""


def test_a_folder_without_write_permission_is_read_only(tmp_path: Path):
    """Mode 500 stops whoever is not root; the store is still read."""
    (tmp_path / "store").mkdir(mode=0o500)
    command = [sys.executable, "-c", JUDGE, tmp_path / "store"]
    if os.geteuid() == 0:
        # Keeps the id, which may read the sources, and gives up root's right to write anywhere.
        command = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all", "--", *command]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout == "True False True\n"
