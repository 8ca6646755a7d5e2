"""What the store takes stays below its limits, and what goes for it is what is missed least."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edgellm.errors import SnapshotError
from edgellm.fileio import AtomicWriter
from edgellm.store.answers import Hit, Saved, Skipped
from edgellm.store.disk import room
from edgellm.store.disk.eviction import evict, in_order, use
from edgellm.store.disk.flight import Locks
from edgellm.store.disk.place import Disk
from edgellm.store.disk.room import LOCK_NAME, Room
from edgellm.store.disk.survey import Kept, Survey, looked_into, survey
from edgellm.store.sealed.keys import StoreKey
from edgellm.store.snapshots import SnapshotStore
from edgellm.store.state import KVState, Part, Section

if TYPE_CHECKING:
    from edgellm.store.state import Fingerprint

FOLDER = "0123456789abcdef"
DAY_NS = 86_400 * 10**9
N_TOKENS = 1500


def key(name: str) -> str:
    """Return a key that begins with `name`, which is hex."""
    return name.ljust(32, "0")


class Tree:
    """A store of files that have only a head: enough for what goes first."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, name: str, version: str = "v1") -> Path:
        return self.root / version / FOLDER / f"{key(name)}.ekv"

    def add(
        self, name: str, used_s: float, *, n: int = 4096, on: str = "", made: int = 0, version="v1"
    ) -> Path:
        path = self.path(name, version)
        path.parent.mkdir(parents=True, exist_ok=True)
        parent = f'{{"key":"{key(on)}","n_tokens":1}}' if on else "null"
        path.write_bytes(f'..."exactness":"bits","created":{made},"parent":{parent},'.encode())
        os.truncate(path, n)
        os.utime(path, (used_s, used_s))
        return path

    def order(self) -> str:
        """Return the first digits of the keys in the order in which they go."""
        return "".join(kept.path.name[0] for kept in in_order(looked_into(self.kept())[0]))

    def kept(self) -> tuple[Kept, ...]:
        return survey(self.root).snapshots

    def names(self) -> str:
        return "".join(sorted(kept.path.name[0] for kept in self.kept()))

    def evict(self, n_bytes: int, keep: str = "") -> str:
        removed = evict(looked_into(self.kept())[0], n_bytes, [self.path(name) for name in keep])
        return "".join(kept.path.name[0] for kept in removed)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "store")


def test_every_file_counts(tree: Tree, tmp_path: Path):
    """Also what no version knows; what a link leads to does not."""
    (tmp_path / "aim").write_bytes(bytes(1 << 20))
    tree.add("a", 1)
    for name in ("ledger", "v9/odd", "v1/x/y/z", f"v1/{FOLDER}/stray", "locks/a.lock"):
        (tree.root / name).parent.mkdir(parents=True, exist_ok=True)
        (tree.root / name).write_bytes(bytes(4096))
    before = survey(tree.root)
    (tree.root / "v1" / "link").symlink_to(tmp_path)
    found = survey(tree.root)
    n_folders = sum(
        path.is_dir() for path in (p for p in tree.root.rglob("*") if not p.is_symlink())
    )
    assert before.n_bytes >= 6 * 4096
    assert before.n_bytes <= found.n_bytes <= 6 * 4096 + (n_folders + 8) * 4096
    assert [kept.path for kept in found.snapshots] == [tree.path("a")]
    assert found.orphans == ()


def test_a_store_that_is_not_there_takes_nothing(tree: Tree):
    assert survey(tree.root) == Survey(0, (), ())


def test_the_least_recently_used_goes_first(tree: Tree):
    """And snapshots of another version go in the same order."""
    for name, used_s in (("c", 30), ("a", 10), ("b", 20)):
        tree.add(name, used_s)
    tree.add("d", 15, version="v2")
    assert tree.order() == "adbc"


def test_the_time_in_the_header_is_the_least(tree: Tree):
    """A copy that lost the times of its files is not older than when they were made."""
    tree.add("a", 0, made=300)
    tree.add("b", 200, made=100)
    assert tree.order() == "ba"


def test_what_leans_on_another_goes_before_it(tree: Tree):
    """A base is as young as the youngest that leans on it, however old its own use is."""
    tree.add("a", 10)
    tree.add("b", 50, on="a")
    tree.add("c", 20, on="b")
    tree.add("d", 40)
    assert tree.order() == "cdba"


def test_parents_in_a_circle_end(tree: Tree):
    """Files that nobody wrote so are no reason to hang."""
    tree.add("a", 10, on="b")
    tree.add("b", 20, on="a")
    tree.add("c", 5, on="c")
    assert sorted(tree.order()) == ["a", "b", "c"]
    assert sorted(tree.evict(1 << 60)) == []
    assert sorted(tree.evict(3 * 4096)) == ["a", "b", "c"]


def test_only_as_much_goes_as_is_needed(tree: Tree):
    """And nothing at all where even everything would not do."""
    for i, name in enumerate("abcd"):
        tree.add(name, i)
    assert tree.evict(4 * 4096 + 1) == ""
    assert tree.evict(0) == ""
    assert tree.evict(4097) == "ab"
    assert tree.names() == "cd"


def test_what_is_in_use_stays_with_its_base(tree: Tree):
    """The snapshot that a new one leans on does not go to make room for that one."""
    tree.add("a", 1)
    tree.add("b", 2, on="a")
    tree.add("c", 3)
    assert tree.evict(4096, keep="b") == "c"
    assert tree.evict(4096, keep="b") == ""
    assert tree.names() == "ab"


def test_a_file_that_cannot_be_removed_is_passed_by(tree: Tree, monkeypatch: pytest.MonkeyPatch):
    """As on Windows, while somebody reads it; then its base stays as well."""
    tree.add("a", 1)
    tree.add("b", 2, on="a")
    tree.add("c", 3)
    real = Path.unlink

    def unlink(path: Path, missing_ok: bool = False) -> None:
        if path.name.startswith("b"):
            raise PermissionError(13, "in use", str(path))
        real(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink)
    assert tree.evict(8192) == ""  # nothing goes where the rest is not enough
    assert tree.evict(4096) == "c"
    assert tree.names() == "ab"


def test_a_file_with_holes_takes_no_room_before_it_is_filled(tree: Tree):
    """Nothing goes for a file of which the disk has next to nothing, and all that is written counts."""
    for name in "abc":
        tree.add(name, 1)
    manifest = tree.root / "imports" / key("d") / "manifest"
    manifest.parent.mkdir(parents=True)
    manifest.touch()
    os.truncate(manifest, 200 << 30)
    assert survey(tree.root).n_bytes < 1 << 20
    assert Room(tree.root, cap_bytes=1 << 20).prune().n_snapshots == 0
    with manifest.open("r+b") as file:
        file.write(bytes(1 << 20))
        os.fsync(file.fileno())
    assert survey(tree.root).n_bytes > 1 << 20


def test_a_snapshot_of_zeros_goes_first(tree: Tree):
    """It was never written to its end; no good one goes for what it claims to take."""
    tree.add("a", 1)
    tree.path("b").touch()
    os.truncate(tree.path("b"), 200 << 30)
    whole, orphans = looked_into(tree.kept())
    assert [kept.path for kept in whole] == [tree.path("a")]
    assert [path for path, _ in orphans] == [tree.path("b")]
    done = Room(tree.root, cap_bytes=1 << 20).prune()
    assert (done.n_snapshots, done.n_orphans, tree.names()) == (0, 1, "a")


def test_nothing_is_pruned_in_vain(tree: Tree):
    """Where other files take more than there may be, snapshots stay; all of them go when asked for."""
    tree.add("a", 1)
    alien = tree.root / "alien"
    alien.write_bytes(bytes(4 << 20))
    store = Room(tree.root, cap_bytes=1 << 20)
    done = store.prune()
    assert (done.n_snapshots, tree.names()) == (0, "a")
    assert done.other_bytes >= 4 << 20
    assert store.prune(0).n_snapshots == 1


def test_what_leans_on_nothing_is_an_orphan(tree: Tree):
    """A snapshot whose base is gone is of no use to anybody."""
    tree.add("a", 1, on="f")
    tree.add("b", 2)
    whole, orphans = looked_into(tree.kept())
    assert [kept.path for kept in whole] == [tree.path("b")]
    assert [path for path, _ in orphans] == [tree.path("a")]


def test_temporaries_of_the_dead_are_orphans(tree: Tree, dead_pid: int):
    """Wherever below the root; those of the living are left, unless they are over an hour old."""
    tree.root.mkdir()
    dead = tree.root / f".ledger.{dead_pid}.ab.tmp"
    mine = tree.root / f".ledger.{os.getpid()}.ab.tmp"
    old = tree.root / f".old.{os.getpid()}.ab.tmp"
    for path in (dead, mine, old):
        path.touch()
    os.utime(old, (1, 1))
    assert sorted(path.name for path, _ in survey(tree.root).orphans) == sorted(
        [dead.name, old.name]
    )


def test_a_use_makes_the_newest(tree: Tree):
    """Whatever the clock says: it may have been set back by years."""
    now_ns = time.time_ns()
    for name, years in (("a", 0), ("b", 0), ("c", -30), ("a", -29), ("b", 0)):
        path = tree.path(name)
        if not path.exists():
            tree.add(name, 0)
        use(tree.root, [path], now_ns + years * 365 * DAY_NS)
        assert tree.order()[-1] == name
    assert tree.order() == "cab"


def test_a_use_is_one_of_what_it_leans_on(tree: Tree):
    """So that the order is right also where the heads cannot be read."""
    tree.add("a", 10)
    tree.add("b", 20, on="a")
    tree.add("c", 30)
    use(tree.root, [tree.path("b")], 40 * 10**9)
    times = {name: tree.path(name).stat().st_mtime_ns for name in "abc"}
    assert times["a"] > times["b"] > times["c"]


def test_a_use_in_a_place_that_cannot_be_written_is_no_error(tmp_path: Path):
    use(tmp_path / "absent", [tmp_path / "absent" / "v1" / FOLDER / "a.ekv"], 1)
    (tmp_path / "file").touch()
    use(tmp_path / "file", [tmp_path / "file" / "a.ekv"], 1)


def test_a_thousand_files_cost_little(tree: Tree):
    """To look at all of them and into them takes milliseconds, not one for each."""
    for i in range(1000):
        tree.add(f"{i:03x}", i, on="000" if i % 2 else "", n=64)
    took_s = []
    for _ in range(5):
        started = time.process_time()
        in_order(looked_into(survey(tree.root).snapshots)[0])
        took_s.append(time.process_time() - started)
    assert min(took_s) < 0.1  # seconds of a processor, which a busy machine has fewer of


# The same through the store, with real snapshots.


@pytest.fixture
def entry_bytes(tmp_path: Path, fingerprint: Fingerprint, snapshot_files: Any) -> int:
    """Return what one snapshot of these tests takes."""
    outcome = SnapshotStore(tmp_path / "one").save(
        fingerprint, range(N_TOKENS), snapshot_files.state(N_TOKENS)
    )
    assert isinstance(outcome, Saved)
    return outcome.n_bytes


class Saver:
    """Saves and looks up numbered snapshots of one size."""

    def __init__(self, root: Path, cap_bytes: int, fingerprint: Fingerprint, files: Any) -> None:
        self.store = SnapshotStore(root, cap_bytes=cap_bytes)
        self._fingerprint = fingerprint
        self._state = files.state(N_TOKENS)

    def save(self, i: int) -> Saved | Skipped:
        return self.store.save(self._fingerprint, range(i, i + N_TOKENS), self._state)

    def hits(self, i: int) -> bool:
        found = self.store.lookup(self._fingerprint, range(i, i + N_TOKENS))
        return isinstance(found, Hit)

    def has(self, i: int) -> bool:
        stem = self.store.key(self._fingerprint, range(i, i + N_TOKENS))
        return any(kept.path.stem == stem for kept in survey(self.store.root).snapshots)


@pytest.fixture
def saver(tmp_path: Path, fingerprint: Fingerprint, snapshot_files: Any, entry_bytes: int) -> Saver:
    """Give a store with room for three."""
    return Saver(tmp_path / "store", int(3.5 * entry_bytes), fingerprint, snapshot_files)


def test_the_cap_holds_after_every_save_and_hits_are_kept(saver: Saver, entry_bytes: int):
    """What is looked up each time survives fifty others."""
    cap = int(3.5 * entry_bytes)
    assert isinstance(saver.save(0), Saved)
    for i in range(1, 50):
        assert isinstance(saver.save(i), Saved)
        assert survey(saver.store.root).n_bytes <= cap
        assert saver.hits(0)
    assert [i for i in range(50) if saver.has(i)] == [0, 48, 49]
    assert saver.store.check() == []


def test_one_that_is_larger_than_the_cap_is_not_kept(
    tmp_path: Path, fingerprint: Fingerprint, snapshot_files: Any, entry_bytes: int
):
    """It is said, and nothing else goes for it."""
    small = Saver(tmp_path / "store", entry_bytes - 1, fingerprint, snapshot_files)
    outcome = small.save(0)
    assert isinstance(outcome, Skipped)
    assert outcome.failed
    assert "more than the" in outcome.reason
    assert "EDGELLM_SNAPSHOTS_MAX" in outcome.reason
    none = Saver(tmp_path / "store", 0, fingerprint, snapshot_files).save(0)
    assert isinstance(none, Skipped)
    assert not none.failed


def test_other_files_count_and_stay(saver: Saver, entry_bytes: int):
    """What is no snapshot leaves less room for them; where it leaves none, nothing goes."""
    saver.save(0)
    alien = saver.store.root / "alien"
    alien.write_bytes(bytes(2 * entry_bytes))
    assert isinstance(saver.save(1), Saved)
    assert (saver.has(0), alien.exists()) == (False, True)
    alien.write_bytes(bytes(3 * entry_bytes))
    outcome = saver.save(2)
    assert isinstance(outcome, Skipped)
    assert "too little of it can go" in outcome.reason
    assert saver.has(1)


def test_a_disk_that_becomes_full_is_left_alone(
    saver: Saver, entry_bytes: int, monkeypatch: pytest.MonkeyPatch
):
    """Snapshots go while that frees what has to stay free; else nothing is written, nor removed."""
    saver.save(0)
    saver.save(1)
    disk = Disk(100 << 30, (5 << 30) + entry_bytes // 2)
    monkeypatch.setattr(room, "disk_of", lambda folder: disk)
    assert isinstance(saver.save(2), Saved)
    assert [saver.has(i) for i in range(3)] == [False, True, True]
    monkeypatch.setattr(room, "disk_of", lambda folder: Disk(100 << 30, 1 << 30))
    outcome = saver.save(3)
    assert isinstance(outcome, Skipped)
    assert outcome.failed
    assert "stay free for others" in outcome.reason
    assert [saver.has(i) for i in range(3)] == [False, True, True]


def test_a_full_disk_is_known_from_the_start(
    tmp_path: Path, fingerprint: Fingerprint, snapshot_files: Any
):
    """The store says so once, still reads, and does not try to write."""
    writing = SnapshotStore(tmp_path)
    writing.save(fingerprint, range(12), snapshot_files.state())
    store = SnapshotStore(tmp_path, floor_bytes=1 << 62)
    assert "not kept" in store.trouble
    assert store.off == ""
    assert isinstance(store.lookup(fingerprint, range(12)), Hit)
    outcome = store.save(fingerprint, range(5), snapshot_files.state(5))
    assert isinstance(outcome, Skipped)
    assert not outcome.failed
    assert outcome.reason in store.trouble
    lease = store.lease(fingerprint, range(5))
    assert lease is not None
    assert not lease.is_locked


def test_a_network_folder_is_not_touched(
    tmp_path: Path, fingerprint: Fingerprint, snapshot_files: Any, monkeypatch: pytest.MonkeyPatch
):
    """No lookup, no save, no lock; the reason is told."""
    monkeypatch.setattr("edgellm.store.disk.place.network_type", lambda *_: "nfs4")
    store = SnapshotStore(tmp_path / "store")
    assert store.trouble == f"prefix snapshots are off: {store.off}"
    assert "nfs4" in store.off
    found = store.lookup(fingerprint, range(12))
    assert not isinstance(found, Hit)
    assert (found.code, found.reason) == ("unreadable", store.off)
    assert isinstance(store.save(fingerprint, range(12), snapshot_files.state()), Skipped)
    assert store.lease(fingerprint, range(12)) is not None
    assert list(tmp_path.iterdir()) == []


def test_while_another_saves_a_save_waits_and_is_skipped(
    tmp_path: Path, fingerprint: Fingerprint, snapshot_files: Any, monkeypatch: pytest.MonkeyPatch
):
    """A process that is stuck in its save costs the others theirs, and no error."""
    store = SnapshotStore(tmp_path)
    monkeypatch.setattr(store._room, "_wait_s", 0.05)
    with Locks(tmp_path).take(LOCK_NAME) or pytest.fail("is free"):
        outcome = store.save(fingerprint, range(12), snapshot_files.state())
        assert outcome == Skipped("other processes are saving")
        with pytest.raises(SnapshotError, match="cannot be pruned"):
            store.prune()
    assert isinstance(store.save(fingerprint, range(12), snapshot_files.state()), Saved)


def test_pruning_removes_orphans_and_the_least_used(tree: Tree, dead_pid: int):
    """Down to the size that was asked for, or to what can go."""
    for i, name in enumerate("abcd"):
        tree.add(name, i + 1, n=1 << 16)
    tree.add("e", 9, on="f")
    (tree.root / "v1" / FOLDER / f".x.{dead_pid}.ab.tmp").touch()
    store = Room(tree.root)
    assert (store.prune().n_snapshots, tree.names()) == (0, "abcd")
    done = store.prune(3 << 16)
    assert (done.n_snapshots, done.n_orphans, tree.names()) == (2, 0, "cd")
    assert done.freed_bytes == 2 << 16
    assert store.prune(0).n_snapshots == 2
    assert [path.name for path in (tree.root / "v1").rglob("*")] == []


@pytest.mark.parametrize("secret", [None, StoreKey(bytes(range(32)))], ids=["plain", "encrypted"])
def test_no_base_goes_before_what_leans_on_it(
    tmp_path: Path, fingerprint: Fingerprint, secret: StoreKey | None
):
    """Chains of three under a cap for a few of them: what is left of each can be used."""
    store = SnapshotStore(tmp_path, cap_bytes=400_000, key=secret)
    rows = np.zeros((300, 128), np.uint16)
    misses: list[str] = []
    for step in range(60):
        first = 1000 * (step * step % 11)
        tokens = range(first, first + 300)
        found = store.longest(fingerprint, tokens, (100, 200, 300))
        have, base = 0, None
        if isinstance(found, Hit):
            have, base = found.state.n_tokens, found.anchor
        else:
            misses.append(found.code)
        for n in (100, 200, 300):
            if n > have:
                part = Part("dense", 0, n, (Section(0, "K", "f16", rows[:n]),))
                saved = store.save(fingerprint, tokens[:n], KVState(n, (part,)), base=base)
                assert isinstance(saved, Saved)
                base = saved.anchor
    assert set(misses) == {"not_stored"}
    assert 6 < len(misses) < 60


def test_what_is_being_read_may_go(saver: Saver, tmp_path: Path):
    """A reader keeps what it has opened; only the name is gone."""
    saved = saver.save(0)
    assert isinstance(saved, Saved)
    with saved.path.open("rb") as file:
        saver.store.prune(0)
        assert len(file.read()) == saved.n_bytes
    assert not saver.hits(0)


def test_a_writer_of_another_version_is_swept_too(tree: Tree, dead_pid: int):
    """Temporaries of any name in any folder of the store; the living one's stays."""
    tree.add("a", 1)
    tree.add("b", 1, version="v7")
    for version in ("v1", "v7"):
        (tree.root / version / FOLDER / f".x.{dead_pid}.ab.tmp").touch()
    with AtomicWriter(tree.path("c")) as out:
        assert Room(tree.root).sweep() == 2
        out.write(b"x")
    assert tree.names() == "abc"
