"""Shipping: what one machine exported another admits, after it has said the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgellm.engines.scripted import ScriptedEngine
from edgellm.errors import EngineFailed, SnapshotError, UsageError
from edgellm.runtime.admission import admit
from edgellm.runtime.shipping import Exported, export_from
from edgellm.store.packs.importing import add_pack
from edgellm.store.packs.imports import Imports
from edgellm.store.packs.pack import write_pack
from edgellm.store.snapshots import Hit, Miss, Skipped, SnapshotStore

TOKENS = tuple(range(40, 240))
LONGER = (*TOKENS, *range(60, 120))


def _engine(script: str = "Yes.", **options: Any) -> ScriptedEngine:
    engine = ScriptedEngine(script, **options)
    engine.reserve(1024)
    return engine


@pytest.fixture(params=["dense", "window", "hybrid"])
def memory(request: pytest.FixtureRequest) -> str:
    """Name a kind of memory."""
    return str(request.param)


@pytest.fixture
def pack(tmp_path: Path, memory: str) -> Path:
    """Export two snapshots of the scripted engine."""
    _exported(tmp_path / "pack", tmp_path / "maker", memory)
    return tmp_path / "pack"


def _exported(out: Path, root: Path, memory: str) -> tuple[Exported, SnapshotStore, list[Any]]:
    engine, store = _engine(memory=memory), SnapshotStore(root)
    base = None
    for at, end in ((0, len(TOKENS)), (len(TOKENS), len(LONGER))):
        engine.decode(LONGER[at:end])
        base = store.save(engine.fingerprint(), LONGER[:end], engine.capture(), base=base).anchor
    entries = sorted(store.entries(), key=lambda entry: entry.n_tokens)
    return export_from(_engine(memory=memory), store, entries, out), store, entries


@pytest.fixture
def other(tmp_path: Path, pack: Path) -> SnapshotStore:
    """Open the store of somebody who has imported the pack."""
    store = SnapshotStore(tmp_path / "other")
    add_pack(store.files, pack, [], allow_unsigned=True)
    return store


def test_an_import_is_admitted_when_the_engine_agrees(other: SnapshotStore, memory: str):
    """The longest that waits becomes a hit; the memory is empty, and the answer the same."""
    engine = _engine(memory=memory)
    assert [] == admit(engine, other, engine.fingerprint(), LONGER, [len(TOKENS), len(LONGER)])
    assert 0 == engine.position
    found = other.longest(engine.fingerprint(), LONGER, [len(TOKENS), len(LONGER)])
    assert isinstance(found, Hit)
    assert len(LONGER) == found.info.n_tokens
    engine.restore(found.state)
    cold = _engine(memory=memory)
    cold.decode(TOKENS)
    cold.decode(LONGER[len(TOKENS) :])
    assert np.array_equal(cold.decode([65]), engine.decode([65]))


def test_the_longer_one_is_kept_whole_where_the_shorter_is_another(
    other: SnapshotStore, memory: str
):
    """A snapshot made here stays; what leaned on the maker's is stored with all its rows."""
    engine = _engine(memory=memory)
    engine.decode(TOKENS)
    store = SnapshotStore(other.root, clock=lambda: 1.0)
    own = store.save(engine.fingerprint(), TOKENS, engine.capture())
    engine.truncate(0)
    assert [] == admit(engine, other, engine.fingerprint(), LONGER, [len(TOKENS), len(LONGER)])
    longer = other.lookup(engine.fingerprint(), LONGER)
    assert isinstance(longer, Hit)
    assert longer.info.parent is None
    shorter = other.lookup(engine.fingerprint(), TOKENS)
    assert isinstance(shorter, Hit)
    assert own.anchor == shorter.anchor


def test_what_is_not_asked_for_waits(other: SnapshotStore, memory: str):
    """Only the prompt at hand is probed."""
    engine = _engine(memory=memory)
    admit(engine, other, engine.fingerprint(), TOKENS, [len(TOKENS)])
    assert [1] == [n for _, _, n in Imports(other.files).packs()]
    assert [] == admit(engine, other, engine.fingerprint(), TOKENS, [len(TOKENS)])


def test_another_model_admits_nothing(other: SnapshotStore, memory: str):
    """A pack is for the model that it was made with."""
    engine = _engine("No.", memory=memory)
    assert [] == admit(engine, other, engine.fingerprint(), LONGER, [len(LONGER)])
    assert [2] == [n for _, _, n in Imports(other.files).packs()]


def test_an_engine_that_disagrees_removes_it(tmp_path: Path, memory: str):
    """Where other logits come out, the snapshot goes, and the user is told."""
    exported, maker, entries = _exported(tmp_path / "pack", tmp_path / "maker", memory)
    files = tuple(
        replace(
            file, probe=replace(file.probe, ids=tuple(i + 1 for i in range(len(file.probe.ids))))
        )
        for file in exported.manifest.files
    )
    lie = replace(exported.manifest, files=files)
    write_pack(tmp_path / "lie", lie, maker.files, [entry.path for entry in entries])
    store = SnapshotStore(tmp_path / "other")
    add_pack(store.files, tmp_path / "lie", [], allow_unsigned=True)
    engine = _engine(memory=memory)
    notes = admit(engine, store, engine.fingerprint(), LONGER, [len(TOKENS), len(LONGER)])
    assert ["260 tokens", "200 tokens"] == [note.split(" was")[0].split("of ")[1] for note in notes]
    assert [] == list(store.entries())
    assert [] == list(Imports(store.files).packs())


def test_an_engine_that_fails_removes_it(other: SnapshotStore, memory: str):
    """A state that ends the decode is not tried twice."""

    class Failing(ScriptedEngine):
        def decode(self, *_: Any, **__: Any) -> Any:
            raise EngineFailed("not with this memory")

    engine = Failing("Yes.", memory=memory)
    engine.reserve(1024)
    (note,) = admit(engine, other, engine.fingerprint(), TOKENS, [len(TOKENS)])
    assert "not with this memory" in note
    assert [1] == [n for _, _, n in Imports(other.files).packs()]


def test_damage_while_it_waited(other: SnapshotStore, memory: str):
    """A bit that flips before the first use makes a miss, and no hit later."""
    path = max(other.root.rglob("*.ekv"), key=lambda file: file.stat().st_size)
    content = bytearray(path.read_bytes())
    content[-150] ^= 1
    path.write_bytes(content)
    engine = _engine(memory=memory)
    (note,) = admit(engine, other, engine.fingerprint(), TOKENS, [len(TOKENS)])
    assert "corrupt" in note
    assert [] == list(other.entries())


def test_a_pack_is_of_one_model(tmp_path: Path, memory: str):
    """What another engine made is named, with the fields that differ."""
    _, store, entries = _exported(tmp_path / "pack", tmp_path / "maker", memory)
    with pytest.raises(UsageError, match="model"):
        export_from(_engine("No.", memory=memory), store, entries, tmp_path / "p")
    assert not (tmp_path / "p").exists()


def test_a_damaged_snapshot_is_not_exported(tmp_path: Path, memory: str):
    """Nothing is signed that nobody could restore."""
    _, store, entries = _exported(tmp_path / "pack", tmp_path / "maker", memory)
    content = bytearray(entries[0].path.read_bytes())
    content[-150] ^= 1
    entries[0].path.write_bytes(content)
    with pytest.raises(SnapshotError, match="corrupt"):
        export_from(_engine(memory=memory), store, entries, tmp_path / "p")


def test_a_session_admits_what_it_needs(
    tmp_path: Path, start: Any, ask: Any, written: Any, store: SnapshotStore
):
    """The first answer after an import rests on it, and says what a cold one says."""
    request = ask("Who are you?", max_tokens=8)
    cold, _ = start(store=store)
    expected = cold.generate(request).text
    written(cold)
    entries = sorted(store.entries(), key=lambda entry: entry.n_tokens)
    engine = ScriptedEngine("Yes, so it is.")
    engine.reserve(1024)
    export_from(engine, store, entries, tmp_path / "pack")
    other = SnapshotStore(tmp_path / "other")
    add_pack(other.files, tmp_path / "pack", [], allow_unsigned=True)
    for _ in range(2):
        warm, _ = start(store=other)
        done = warm.generate(request)
        assert ("hit", expected) == (done.snapshot.code, done.text)
        assert done.usage.reused_tokens > 128
    assert not Imports(other.files).root.exists() or [] == list(Imports(other.files).packs())


def test_what_is_kept_whole_says_that_its_maker_rounded_otherwise(
    tmp_path: Path, memory: str, monkeypatch: pytest.MonkeyPatch
):
    """It was made with other threads: later uses must hear of it, as of any such state."""
    plain = ScriptedEngine.fingerprint
    threads = "2"

    def with_threads(engine: ScriptedEngine) -> Any:
        return replace(plain(engine), soft=(("n_threads", threads),))

    monkeypatch.setattr(ScriptedEngine, "fingerprint", with_threads)
    _exported(tmp_path / "pack", tmp_path / "maker", memory)
    threads = "1"
    store = SnapshotStore(tmp_path / "other")
    add_pack(store.files, tmp_path / "pack", [], allow_unsigned=True)
    engine = _engine(memory=memory)
    engine.decode(TOKENS)
    store.save(engine.fingerprint(), TOKENS, engine.capture())
    engine.truncate(0)
    assert [] == admit(engine, store, engine.fingerprint(), LONGER, [len(LONGER)])
    longer = store.lookup(engine.fingerprint(), LONGER)
    assert isinstance(longer, Hit)
    assert longer.info.parent is None
    assert ("n_threads: mixed, now 1",) == longer.soft_changes


def test_admitting_keeps_the_cap(tmp_path: Path, memory: str):
    """What a shorter one is copied for takes room like any other file; without it nothing moves."""
    _exported(tmp_path / "pack", tmp_path / "maker", memory)
    files = SnapshotStore(tmp_path / "other").files
    add_pack(files, tmp_path / "pack", [], allow_unsigned=True)
    n_bytes = sum(path.stat().st_size for path in files.root.rglob("*") if path.is_file())
    store = SnapshotStore(files.root, cap_bytes=n_bytes + 1000, floor_bytes=0)
    engine = _engine(memory=memory)
    (note,) = admit(engine, store, engine.fingerprint(), TOKENS, [len(TOKENS)])
    assert "waits on: it cannot be moved" in note
    assert [2] == [n for _, _, n in Imports(files).packs()]
    left = sum(path.stat().st_size for path in files.root.rglob("*") if path.is_file())
    assert left <= n_bytes + 1000


@pytest.mark.parametrize("code", ["no_memory", "unreadable"])
def test_what_cannot_be_read_just_now_waits_on(
    other: SnapshotStore, memory: str, monkeypatch: pytest.MonkeyPatch, code: Any
):
    """Little memory, or a disk with an error, is no reason to lose what was shipped."""
    engine = _engine(memory=memory)
    with monkeypatch.context() as patch:
        patch.setattr("edgellm.runtime.admission.find", lambda *_, **__: Miss("not now", code))
        (note,) = admit(engine, other, engine.fingerprint(), LONGER, [len(TOKENS), len(LONGER)])
    assert "waits on: not now" in note
    assert [2] == [n for _, _, n in Imports(other.files).packs()]
    assert [] == admit(engine, other, engine.fingerprint(), LONGER, [len(LONGER)])


def test_where_nothing_can_be_written_nothing_is_probed(other: SnapshotStore, memory: str):
    """The live memory stays, for it could not be moved anyway."""
    store = SnapshotStore(other.root, floor_bytes=1 << 60)
    engine = _engine(memory=memory)
    engine.decode([1, 2, 3])
    assert [] == admit(engine, store, engine.fingerprint(), LONGER, [len(LONGER)])
    assert 3 == engine.position
    assert [2] == [n for _, _, n in Imports(other.files).packs()]


def test_what_cannot_be_kept_whole_waits_on(
    other: SnapshotStore, memory: str, monkeypatch: pytest.MonkeyPatch
):
    """It leans on another than the one here, and the disk has no room for all its rows."""
    engine = _engine(memory=memory)
    engine.decode(TOKENS)
    SnapshotStore(other.root, clock=lambda: 1.0).save(
        engine.fingerprint(), TOKENS, engine.capture()
    )
    monkeypatch.setattr(SnapshotStore, "save", lambda *_, **__: Skipped("full", failed=True))
    (note,) = admit(engine, other, engine.fingerprint(), LONGER, [len(LONGER)])
    assert "waits on: it cannot be kept (full)" in note
    assert [1] == [n for _, _, n in Imports(other.files).packs()]
