"""Purging: what the store wrote goes, whatever version it is of; what others wrote stays, and is named."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from edgellm.fileio import temp_name
from edgellm.store import purge as module
from edgellm.store.disk.flight import Locks
from edgellm.store.ledger import Ledger, Use
from edgellm.store.purge import purge
from edgellm.store.sealed.keys import StoreKey
from edgellm.store.snapshots import Saved, SnapshotStore

if TYPE_CHECKING:
    from pathlib import Path

KEY = "0123456789abcdef" * 2


def put(path: Path, content: bytes = b"content") -> Path:
    """Write a file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("key", [None, StoreKey(bytes(range(32)))])
def test_nothing_is_left_of_a_store(tmp_path: Path, snapshot_files: Any, key: StoreKey | None):
    """Snapshots, the ledger, a lock that is held, what killed writers left, and the folders."""
    root = tmp_path / "snapshots"
    store = SnapshotStore(root, key=key)
    for n in range(3):
        saved = store.save(snapshot_files.FINGERPRINT, [n] * 12, snapshot_files.state())
        assert isinstance(saved, Saved)
    Ledger(root).record(Use("ab" * 32, "hit"))
    lease = Locks(root).take("tokens-0123")
    assert lease is not None
    put(temp_name(saved.path))
    put(temp_name(root / "ledger"))
    losses = put(tmp_path / "cache" / "losses" / f"{KEY}.json").parent
    n_files = sum(path.is_file() for path in tmp_path.rglob("*"))
    done = purge(root, [losses])
    lease.release()
    assert (n_files, ()) == (done.n_files, done.left)
    assert ["cache"] == [path.name for path in tmp_path.rglob("*")]


@pytest.mark.parametrize("version", ["v1", "v2", "v17"])
def test_every_version_goes(tmp_path: Path, version: str):
    """Also one that only a later program knows, with names like ours."""
    put(tmp_path / version / KEY[:16] / f"{KEY}.ekv")
    put(tmp_path / version / KEY[:16] / f"{KEY}-{KEY}.ekt")
    put(temp_name(tmp_path / version / KEY[:16] / f"{KEY}.ekv"))
    assert 3 == purge(tmp_path).n_files
    assert not tmp_path.exists()


@pytest.mark.parametrize(
    "name",
    [
        "notes.txt",
        "v1/notes.txt",
        f"v1/{KEY[:16]}/notes.txt",
        "holiday/pictures/one.jpg",
        "vault/x",
    ],
)
def test_what_the_store_did_not_write_stays(tmp_path: Path, name: str):
    """It is named, and nothing above it is removed."""
    foreign = put(tmp_path / name)
    put(tmp_path / "v1" / KEY[:16] / f"{KEY}.ekv")
    done = purge(tmp_path)
    assert 1 == done.n_files
    assert foreign.exists()
    assert len(done.left) == 1
    assert foreign == done.left[0].path or done.left[0].path in foreign.parents
    assert "not of this store" == done.left[0].problem


def test_links_are_removed_and_not_followed(tmp_path: Path):
    """In place of a file, of a folder, and of a version; what they lead to is untouched."""
    other = put(tmp_path / "other" / KEY[:16] / f"{KEY}.ekv")
    root = tmp_path / "snapshots"
    folder = root / "v1" / KEY[:16]
    folder.mkdir(parents=True)
    (folder / f"{KEY}.ekv").symlink_to(other)
    (root / "v1" / KEY[16:32].replace("0", "f")).symlink_to(other.parent)
    (root / "v2").symlink_to(other.parent.parent)
    os.link(other, folder / f"{KEY[::-1]}.ekv")
    done = purge(root)
    assert (4, ()) == (done.n_files, done.left)
    assert not root.exists()
    assert b"content" == other.read_bytes()


def test_what_is_no_file_goes_too(tmp_path: Path):
    """A pipe, and a folder in a file's place: nothing is opened."""
    folder = tmp_path / "v1" / KEY[:16]
    (folder / f"{KEY}.ekv").mkdir(parents=True)
    os.mkfifo(folder / f"{KEY[::-1]}.ekv")
    assert (1, ()) == (purge(tmp_path).n_files, purge(tmp_path).left)
    assert not tmp_path.exists()


def test_files_of_others_are_named_and_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Whoever asks, and whatever he may."""
    path = put(tmp_path / "v1" / KEY[:16] / f"{KEY}.ekv")
    me = path.stat().st_uid
    monkeypatch.setattr(module.os, "geteuid", lambda: me + 1)
    done = purge(tmp_path)
    assert path.exists()
    assert f"belongs to user {me}" in {finding.problem for finding in done.left}


def test_a_store_that_is_not_there_is_purged(tmp_path: Path):
    """Nothing is made by it either."""
    assert (0, 0, ()) == tuple(
        getattr(purge(tmp_path / "no"), name) for name in ("n_files", "n_bytes", "left")
    )
    assert not list(tmp_path.iterdir())


def test_a_link_to_the_store_itself_is_the_users(tmp_path: Path):
    """Who moved the store to another disk keeps the link; the store is emptied."""
    put(tmp_path / "disk" / "v1" / KEY[:16] / f"{KEY}.ekv")
    (tmp_path / "snapshots").symlink_to(tmp_path / "disk")
    assert (1, ()) == (purge(tmp_path / "snapshots").n_files, ())
    assert (tmp_path / "snapshots").is_symlink()
    assert not list((tmp_path / "disk").iterdir())
