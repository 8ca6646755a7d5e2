"""What others could have put in place, or could change, is neither read nor written through."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from edgellm.errors import SnapshotIncompatible
from edgellm.store.file.read import read_snapshot
from edgellm.store.snapshots import Hit, Miss, Saved, Skipped, SnapshotStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from edgellm.store.state import Fingerprint

TOKENS = list(range(100, 112))


def _link(path: Path, real: Path) -> None:
    path.rename(real)
    path.symlink_to(real)


def _second_name(path: Path, real: Path) -> None:
    os.link(path, real)


def _pipe(path: Path, _: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _folder(path: Path, _: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("disguise", [_link, _second_name, _pipe, _folder])
def test_what_is_not_one_plain_file_is_a_miss(
    store: SnapshotStore,
    fingerprint: Fingerprint,
    saved: Saved,
    tmp_path: Path,
    disguise: Callable[[Path, Path], None],
    snapshot_files: Any,
):
    """Links, second names, pipes and folders are not read, and what they lead to is not touched."""
    real = tmp_path / "real"
    disguise(saved.path, real)
    found = store.lookup(fingerprint, TOKENS)
    assert isinstance(found, Miss)
    assert found.reason.startswith(("unreadable: ", "incompatible: the file has 2 names"))
    outcome = store.save(fingerprint, TOKENS, snapshot_files.state())
    assert isinstance(outcome, Skipped if disguise is _folder else Saved)
    if real.exists():
        assert real.stat().st_size == saved.n_bytes


def test_a_file_of_another_user_is_a_miss(
    store: SnapshotStore, fingerprint: Fingerprint, saved: Saved, monkeypatch: pytest.MonkeyPatch
):
    """Whoever owns a file or its folder could change it while it is in use."""
    stranger = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: stranger)
    with pytest.raises(SnapshotIncompatible, match="the file belongs to user"):
        read_snapshot(saved.path)
    assert store.lookup(fingerprint, TOKENS) == Miss(
        f"incompatible: the folder {saved.path.parents[1]} belongs to user {stranger - 1}",
        "incompatible",
    )
    assert saved.path.exists()


@pytest.mark.parametrize("mode", [0o666, 0o620, 0o602])
def test_a_file_that_others_may_write_is_a_miss_and_is_replaced(
    store: SnapshotStore, fingerprint: Fingerprint, saved: Saved, mode: int, snapshot_files: Any
):
    """It is not used and not judged; the next save puts a private one in its place."""
    saved.path.chmod(mode)
    assert store.lookup(fingerprint, TOKENS) == Miss(
        f"incompatible: others may change the file (mode {mode:04o})", "incompatible"
    )
    assert saved.path.exists()
    assert store.save(fingerprint, TOKENS, snapshot_files.state()) == saved
    assert isinstance(store.lookup(fingerprint, TOKENS), Hit)


@pytest.mark.parametrize("level", [0, 1])
def test_nothing_behind_a_linked_folder_is_found(
    store: SnapshotStore, fingerprint: Fingerprint, saved: Saved, tmp_path: Path, level: int
):
    """What is listed, saved and found is one set: a link leads out of the store."""
    folder = saved.path.parents[level]
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    assert store.lookup(fingerprint, TOKENS) == Miss(
        f"incompatible: the folder {folder} is a link", "incompatible"
    )
    assert saved.path.exists()


def test_a_folder_that_is_a_link_is_not_written_into(
    store: SnapshotStore, fingerprint: Fingerprint, tmp_path: Path, snapshot_files: Any
):
    """A link in the store's own tree would put private files elsewhere."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (store.root / "v1").mkdir(parents=True)
    (store.root / "v1" / fingerprint.digest()[:16]).symlink_to(elsewhere)
    outcome = store.save(fingerprint, TOKENS, snapshot_files.state())
    assert isinstance(outcome, Skipped)
    assert outcome.reason.endswith("is a link")
    assert not list(elsewhere.iterdir())


def test_nothing_behind_a_linked_folder_is_listed_or_removed(
    store: SnapshotStore, saved: Saved, tmp_path: Path
):
    """Removing everything removes everything of ours, not what a link leads to."""
    elsewhere = tmp_path / "elsewhere"
    saved.path.parent.rename(elsewhere)
    saved.path.parent.symlink_to(elsewhere)
    assert list(store.entries()) == []
    assert store.remove() == 0
    assert (elsewhere / saved.path.name).exists()
