"""check: names everything that is wrong, mends what is ours, and leaves the rest alone."""

from __future__ import annotations

import os
import shutil
import stat
import time
from typing import TYPE_CHECKING, Any

import pytest

from edgellm.store import checkup
from edgellm.store.disk.files import Files
from edgellm.store.file.read import read_snapshot
from edgellm.store.sealed.keys import StoreKey
from edgellm.store.snapshots import Hit, Saved, SnapshotStore
from edgellm.store.state import Fingerprint

if TYPE_CHECKING:
    from pathlib import Path

TOKENS = list(range(12))


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    """Open a store."""
    return SnapshotStore(tmp_path / "snapshots")


@pytest.fixture
def path(store: SnapshotStore, snapshot_files: Any) -> Path:
    """Save one snapshot and return its path."""
    outcome = store.save(snapshot_files.FINGERPRINT, TOKENS, snapshot_files.state())
    assert isinstance(outcome, Saved)
    return outcome.path


def report(store: SnapshotStore, *, fix: bool = False) -> list[tuple[str, str, bool]]:
    """Return the findings as (file name, problem, fixed)."""
    return [(f.path.name, f.problem, f.fixed) for f in store.check(fix=fix)]


def test_a_missing_and_a_good_store_are_clean(store: SnapshotStore, path: Path, tmp_path: Path):
    """Nothing to say about nothing, nor about what is right."""
    assert SnapshotStore(tmp_path / "absent").check() == []
    assert store.check(fix=True) == []
    assert path.exists()


def test_a_damaged_snapshot_is_named_then_removed(store: SnapshotStore, path: Path):
    """Without `fix` nothing changes; with it the file goes and the store is clean."""
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)
    ((name, problem, fixed),) = report(store)
    assert (name, fixed) == (path.name, False)
    assert problem.startswith("corrupt: section")
    assert path.exists()
    assert report(store, fix=True) == [(path.name, problem, True)]
    assert report(store) == []


def test_temporaries_of_the_dead_and_old_ones_are_removed(
    store: SnapshotStore, path: Path, dead_pid: int
):
    """A live writer's fresh temporary is none of our business."""
    dead = path.with_name(f".a.ekv.{dead_pid}.abcd.tmp")
    old = path.with_name(f".b.ekv.{os.getpid()}.abcd.tmp")
    live = path.with_name(f".c.ekv.{os.getpid()}.abcd.tmp")
    for temp in (dead, old, live):
        temp.write_bytes(b"x")
    two_hours_ago = time.time() - 7200
    os.utime(old, (two_hours_ago, two_hours_ago))
    found = report(store, fix=True)
    assert [(name, fixed) for name, _, fixed in found] == [(dead.name, True), (old.name, True)]
    assert live.exists()


def test_modes_are_closed(store: SnapshotStore, path: Path):
    """Files become 0600 and folders 0700."""
    path.chmod(0o644)
    levels = (path.parent, store.root / "v1", store.root)
    for level in levels:
        level.chmod(0o755)
    problems = [problem for _, problem, _ in report(store, fix=True)]
    assert problems == ["open to others (mode 0755)"] * 3 + ["open to others (mode 0644)"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert {stat.S_IMODE(level.stat().st_mode) for level in levels} == {0o700}
    assert report(store) == []


def test_what_is_not_ours_is_reported_and_left(store: SnapshotStore, path: Path, tmp_path: Path):
    """Other versions, folders and files stay where they are."""
    strange = [store.root / "v2", store.root / "v1" / "notes", path.parent / "a.txt"]
    strange[0].mkdir()
    strange[1].mkdir()
    strange[2].write_text("x")
    linked = store.root / "v1" / ("0" * 16)
    linked.symlink_to(tmp_path)
    pipe = path.parent / ("1" * 32 + ".ekv")
    os.mkfifo(pipe)
    names = {name for name, _, fixed in report(store, fix=True) if not fixed}
    assert names == {"v2", "notes", "a.txt", linked.name, pipe.name}
    assert all(p.exists() for p in (*strange, linked, path))


def test_links_second_names_and_wrong_names_are_removed(
    store: SnapshotStore, path: Path, tmp_path: Path, snapshot_files: Any
):
    """Only the name in the store goes; what it led to stays."""
    real = tmp_path / "real.ekv"
    other = store.save(snapshot_files.FINGERPRINT, TOKENS[::-1], snapshot_files.state())
    assert isinstance(other, Saved)
    os.link(other.path, real)
    link = path.parent / ("2" * 32 + ".ekv")
    link.symlink_to(real)
    path.rename(path.parent / ("3" * 32 + ".ekv"))
    problems = sorted(problem for _, problem, fixed in report(store, fix=True) if fixed)
    assert problems == ["a link", "has 2 names", "lies under a wrong name"]
    assert real.exists()
    assert report(store) == []


def test_a_snapshot_in_another_models_folder_lies_wrong(
    store: SnapshotStore, path: Path, snapshot_files: Any
):
    """The folder is part of the name."""
    other = path.parent.parent / Fingerprint((("a", "b"),)).digest()[:16]
    other.mkdir(mode=0o700)
    path.rename(other / path.name)
    assert report(store, fix=True) == [(path.name, "lies under a wrong name", True)]


@pytest.mark.parametrize("gone", ["file", "folder", "version"])
@pytest.mark.parametrize("fix", [False, True])
def test_what_others_remove_meanwhile_is_no_problem(
    store: SnapshotStore,
    path: Path,
    snapshot_files: Any,
    monkeypatch: pytest.MonkeyPatch,
    gone: str,
    fix: bool,
):
    """Another process evicts while this one reads: what went is not named, and stops nothing."""
    other = Fingerprint((("model", "another"),), ())
    for tokens in (TOKENS, TOKENS[:6]):
        store.save(other, tokens, snapshot_files.state(len(tokens)))
    levels = {"file": 0, "folder": 1, "version": 2}

    def remove(snapshot: Path, **options: Any) -> Any:
        for one in sorted(store.root.rglob("*.ekv"), reverse=True):
            victim = (one, *one.parents)[levels[gone]]
            if victim not in (snapshot, snapshot.parent):
                shutil.rmtree(victim) if victim.is_dir() else victim.unlink()
                break
        return read_snapshot(snapshot, **options)

    monkeypatch.setattr(checkup, "read_snapshot", remove)
    assert report(store, fix=fix) == []


def test_one_that_memory_cannot_hold_is_named_and_left(
    store: SnapshotStore, path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Nothing is known to be wrong with it, and the others are still read."""

    def no_memory(*_: Any, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(checkup, "read_snapshot", no_memory)
    assert report(store, fix=True) == [(path.name, "not enough memory to read it", False)]
    assert path.exists()


def test_a_later_format_is_kept(store: SnapshotStore, path: Path, snapshot_files: Any):
    """What an upgraded program wrote is of use to it again."""
    snapshot_files.forge(path, lambda h: h | {"cipher": "aes"})
    assert report(store, fix=True) == [(path.name, "incompatible: field 'cipher' is set", False)]
    assert not isinstance(store.lookup(snapshot_files.FINGERPRINT, TOKENS), Hit)
    assert path.exists()


def test_any_other_kind_of_file_under_our_name_is_damage(store: SnapshotStore, path: Path):
    """Another version of the file would lie in a folder of its own."""
    path.write_bytes(b"EDGEKV2\0" + bytes(100))
    assert report(store, fix=True) == [(path.name, "corrupt: not a snapshot", True)]


@pytest.mark.parametrize("content", [None, b"", b"{}", bytes(9)])
def test_a_pack_without_a_manifest_is_removed(store: SnapshotStore, path: Path, content: Any):
    """Nobody can use it; what may be of another version, or is no pack by name, is only named."""
    pack = store.root / "imports" / ("ab" * 16)
    (pack / "v1").mkdir(parents=True, mode=0o700)
    (store.root / "imports" / "notes").mkdir(mode=0o700)
    (store.root / "imports").chmod(0o700)
    if content is not None:
        (pack / "manifest").write_bytes(content)
        (pack / "manifest").chmod(0o600)
    assert [(pack.name, False), ("notes", False)] == [(n, f) for n, _, f in report(store)]
    fixed = report(store, fix=True)
    assert [(pack.name, True), ("notes", False)] == [(name, done) for name, _, done in fixed]
    assert (pack.exists(), path.exists()) == (False, True)


def test_a_pack_under_another_key_is_left(store: SnapshotStore, path: Path):
    """Whoever has the key can still use it."""
    pack = store.root / "imports" / ("ab" * 16)
    pack.mkdir(parents=True, mode=0o700)
    (store.root / "imports").chmod(0o700)
    key = StoreKey(bytes(range(32)))
    with Files(pack, secret=key).writer(pack / "manifest") as out:
        out.write(b"{}")
    (problem,) = report(store, fix=True)
    assert problem == (pack.name, "not a pack that is known here", False)
    assert pack.exists()
