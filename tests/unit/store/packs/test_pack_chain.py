"""Packs of snapshots that lean on others, and packs for encrypted stores."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edgellm.errors import PackRefused
from edgellm.store.disk.names import key_of, token_ids
from edgellm.store.packs.importing import add_pack
from edgellm.store.packs.imports import Imports, Waiting
from edgellm.store.packs.pack import digest_of, write_pack
from edgellm.store.packs.pack_format import Manifest, PackedFile
from edgellm.store.packs.probe import take_probe
from edgellm.store.sealed.keys import StoreKey
from edgellm.store.snapshots import Hit, Saved, SnapshotStore
from edgellm.store.state import Fingerprint

if TYPE_CHECKING:
    from collections.abc import Sequence

TOKENS = list(range(100, 140))
CUTS = (8, 12, 20)
PROBE = take_probe(7, np.arange(90, dtype=np.float32))


def grow(store: SnapshotStore, files: Any, cuts: Sequence[int] = CUTS) -> dict[int, Any]:
    """Save a chain in a store and return its states."""
    states: dict[int, Any] = {}
    base = None
    for seed, n in enumerate(cuts):
        states[n] = files.grown(states[cuts[seed - 1]], n, seed) if seed else files.hybrid(n, seed)
        saved = store.save(files.FINGERPRINT, TOKENS[:n], states[n], base=base)
        assert isinstance(saved, Saved), saved
        base = saved.anchor
    return states


def pack_of(store: SnapshotStore, files: Any, out: Path) -> Path:
    """Write a pack of all that a store holds."""
    digest, entries, paths = files.FINGERPRINT.digest(), [], []
    for entry in sorted(store.entries(), key=lambda entry: entry.n_tokens):
        n_bytes, sha256 = digest_of(store.files, entry.path)
        parent = entry.parent.key if entry.parent else ""
        key = key_of(digest, token_ids(TOKENS[: entry.n_tokens]))
        entries.append(PackedFile(key, entry.n_tokens, n_bytes, sha256, parent, PROBE))
        paths.append(entry.path)
    write_pack(out, Manifest(files.FINGERPRINT.hard, 1, tuple(entries)), store.files, paths)
    return out


@pytest.fixture
def states(store: SnapshotStore, snapshot_files: Any) -> dict[int, Any]:
    """Save a chain at the maker's."""
    return grow(store, snapshot_files)


@pytest.fixture
def other(
    tmp_path: Path, store: SnapshotStore, states: dict[int, Any], snapshot_files: Any
) -> SnapshotStore:
    """Open a store into which the chain was imported."""
    found = SnapshotStore(tmp_path / "other")
    add_pack(found.files, pack_of(store, snapshot_files, tmp_path / "p"), [], allow_unsigned=True)
    return found


def waiting(store: SnapshotStore, fingerprint: Fingerprint, n: int) -> Waiting:
    """Return what waits for the first `n` tokens."""
    found = Imports(store.files).waiting(fingerprint.digest(), token_ids(TOKENS[:n]))
    assert found is not None
    return found


@pytest.mark.parametrize("order", [(20,), (8, 20), (12, 8, 20), (8, 12, 20), (20, 12)])
def test_a_chain_is_admitted_in_any_order(
    other: SnapshotStore,
    states: dict[int, Any],
    fingerprint: Fingerprint,
    snapshot_files: Any,
    order: tuple[int, ...],
):
    """What leans on others takes them along, and what others lean on stays for them."""
    imports = Imports(other.files)
    for n in order:
        if imports.waiting(fingerprint.digest(), token_ids(TOKENS[:n])):
            assert imports.admit(waiting(other, fingerprint, n))
        found = other.lookup(fingerprint, TOKENS[:n])
        assert isinstance(found, Hit), found
        assert snapshot_files.same(states[n], found.state)
    assert [] == other.check()
    assert [] == list(imports.packs())


def test_a_base_of_another_form_is_in_the_way(
    other: SnapshotStore, fingerprint: Fingerprint, snapshot_files: Any
):
    """A snapshot made here is not exchanged for the one that came: others may lean on it."""
    grow(other, snapshot_files, CUTS[:1])  # at another second: another identity
    assert not Imports(other.files).admit(waiting(other, fingerprint, 20))
    assert [8] == [entry.n_tokens for entry in other.entries()]
    assert [] == other.check()


@pytest.mark.parametrize("n", CUTS)
def test_an_admission_that_breaks_off_loses_nothing(
    tmp_path: Path,
    store: SnapshotStore,
    states: dict[int, Any],
    fingerprint: Fingerprint,
    snapshot_files: Any,
    n: int,
):
    """Whichever step fails, what is in the store is whole, and another try succeeds."""
    pack = pack_of(store, snapshot_files, tmp_path / "pack")
    for step in range(100):
        failing = [False, step]

        def fault(name: str, path: str, failing: list[Any] = failing) -> None:
            failing[1] -= failing[0]
            if failing == [True, -1]:
                raise OSError(5, f"{name} failed", path)

        root = tmp_path / f"store{step}"
        broken = SnapshotStore(root, fault=fault)
        add_pack(broken.files, pack, [], allow_unsigned=True)
        failing[0] = True
        try:
            assert Imports(broken.files).admit(waiting(broken, fingerprint, n))
        except OSError:
            mended = SnapshotStore(root)
            assert [] == mended.check()
            if Imports(mended.files).waiting(fingerprint.digest(), token_ids(TOKENS[:n])):
                assert Imports(mended.files).admit(waiting(mended, fingerprint, n))
            assert isinstance(mended.lookup(fingerprint, TOKENS[:n]), Hit)
        else:
            assert step > 1
            return
    pytest.fail("it never succeeded")


def test_an_encrypted_store_keeps_imports_encrypted(
    tmp_path: Path, store: SnapshotStore, snapshot_files: Any, fingerprint: Fingerprint
):
    """What waits is sealed under the store's own key, and so is what was admitted."""
    state = snapshot_files.state(12)
    store.save(fingerprint, TOKENS[:12], state)
    secret = StoreKey(bytes(range(32)))
    sealed = SnapshotStore(tmp_path / "sealed", key=secret)
    pack = pack_of(store, snapshot_files, tmp_path / "pack")
    add_pack(sealed.files, pack, [], allow_unsigned=True)
    plain = key_of(fingerprint.digest(), token_ids(TOKENS[:12]))
    files = [path for path in sealed.root.rglob("*") if path.is_file()]
    assert not any(plain in path.name for path in files)
    for path in Imports(sealed.files).root.rglob("*"):
        if path.is_file():
            assert path.read_bytes().startswith(b"EDGEKX1\0")
    assert Imports(sealed.files).admit(waiting(sealed, fingerprint, 12))
    found = sealed.lookup(fingerprint, TOKENS[:12])
    assert isinstance(found, Hit)
    assert snapshot_files.same(state, found.state)
    back = pack_of(sealed, snapshot_files, tmp_path / "back")
    again = SnapshotStore(tmp_path / "again")
    add_pack(again.files, back, [], allow_unsigned=True)
    assert Imports(again.files).admit(waiting(again, fingerprint, 12))
    assert isinstance(again.lookup(fingerprint, TOKENS[:12]), Hit)


def test_a_chain_does_not_enter_an_encrypted_store(
    tmp_path: Path, store: SnapshotStore, states: dict[int, Any], snapshot_files: Any
):
    """Keys that mean nothing there are refused before anything is written."""
    sealed = SnapshotStore(tmp_path / "sealed", key=StoreKey(bytes(range(32))))
    pack = pack_of(store, snapshot_files, tmp_path / "pack")
    with pytest.raises(PackRefused, match="lean on others"):
        add_pack(sealed.files, pack, [], allow_unsigned=True)
    assert not Imports(sealed.files).root.exists()
