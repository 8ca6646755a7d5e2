"""Packs: what is exported comes back bit for bit, and nothing hostile comes in."""

from __future__ import annotations

import os
import random
import re
import signal
import struct
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm.errors import DoesNotFit, MissingExtra, PackRefused
from edgellm.store.disk.names import token_ids
from edgellm.store.packs.importing import add_pack
from edgellm.store.packs.imports import Imports
from edgellm.store.packs.pack import digest_of, write_pack
from edgellm.store.packs.pack_format import (
    HEAD_BYTES,
    Head,
    Manifest,
    PackedFile,
    make_head,
    parse_manifest,
)
from edgellm.store.packs.probe import take_probe
from edgellm.store.packs.signing import Signer, make_keys, read_public, read_signer
from edgellm.store.snapshots import Hit, SnapshotStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgellm.store.state import Fingerprint

TOKENS = list(range(100, 112))
LONGER = [*TOKENS, *range(300, 309)]
LOGITS = np.random.default_rng(5).normal(0, 3, 1000).astype(np.float32)


@dataclass
class Keys:
    """A pair of key files."""

    signer: Signer
    public: bytes


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    """Make a pair of keys."""
    path = tmp_path_factory.mktemp("keys") / "maker"
    public = make_keys(path)
    return Keys(read_signer(path), public)


def manifest_of(store: SnapshotStore, fingerprint: Fingerprint, *prompts: list[int]) -> Manifest:
    """Describe snapshots of a store; each leans on nothing."""
    entries = []
    for tokens in prompts:
        path = store.files.path(fingerprint.digest(), token_ids(tokens))
        n_bytes, sha256 = digest_of(store.files, path)
        probe = take_probe(7, LOGITS)
        entries.append(PackedFile(path.stem, len(tokens), n_bytes, sha256, "", probe))
    return Manifest(fingerprint.hard, 1_700_000_000, tuple(entries))


@pytest.fixture
def pack(
    tmp_path: Path, store: SnapshotStore, fingerprint: Fingerprint, keys: Keys, snapshot_files: Any
) -> Path:
    """Write a signed pack of two snapshots."""
    store.save(fingerprint, TOKENS, snapshot_files.state())
    store.save(fingerprint, LONGER, snapshot_files.state(len(LONGER)))
    manifest = manifest_of(store, fingerprint, TOKENS, LONGER)
    paths = [entry.path for entry in sorted(store.entries(), key=lambda entry: entry.n_tokens)]
    out = tmp_path / "prefix.ekp"
    n_bytes = write_pack(out, manifest, store.files, paths, keys.signer)
    assert out.stat().st_size == n_bytes
    return out


@pytest.fixture
def other(tmp_path: Path) -> SnapshotStore:
    """Open the store of somebody else."""
    return SnapshotStore(tmp_path / "other")


def left_in(store: SnapshotStore) -> list[str]:
    """List what an import left, but for the store's own locks."""
    found = sorted(str(p.relative_to(store.root)) for p in store.root.rglob("*") if p.is_file())
    return [name for name in found if not name.startswith("locks")]


def test_a_pack_waits_and_is_admitted(
    pack: Path,
    store: SnapshotStore,
    other: SnapshotStore,
    fingerprint: Fingerprint,
    keys: Keys,
    snapshot_files: Any,
):
    """What comes in is no hit before it is admitted, and the same bits afterwards."""
    added = add_pack(other.files, pack, [keys.public])
    assert (keys.public, False, 2) == (added.public, added.known, len(added.manifest.files))
    assert not isinstance(other.lookup(fingerprint, TOKENS), Hit)
    imports = Imports(other.files)
    waiting = imports.waiting(fingerprint.digest(), token_ids(TOKENS))
    assert waiting is not None
    assert imports.admit(waiting)
    found = other.lookup(fingerprint, TOKENS)
    assert isinstance(found, Hit)
    assert snapshot_files.same(snapshot_files.state(), found.state)
    assert imports.waiting(fingerprint.digest(), token_ids(TOKENS)) is None
    assert imports.waiting(fingerprint.digest(), token_ids(LONGER)) is not None


def test_the_last_one_takes_its_pack_along(
    pack: Path, other: SnapshotStore, fingerprint: Fingerprint, keys: Keys
):
    """A pack of which nothing waits any more leaves no folder."""
    add_pack(other.files, pack, [keys.public])
    imports = Imports(other.files)
    for tokens, outcome in ((TOKENS, imports.drop), (LONGER, imports.admit)):
        waiting = imports.waiting(fingerprint.digest(), token_ids(tokens))
        assert waiting is not None
        outcome(waiting)
    assert [] == list(imports.root.iterdir())


def test_a_second_import_changes_nothing(pack: Path, other: SnapshotStore, keys: Keys):
    """The same pack again is known."""
    add_pack(other.files, pack, [keys.public])
    before = left_in(other)
    assert add_pack(other.files, pack, [keys.public]).known
    assert before == left_in(other)


def test_another_key_is_refused(pack: Path, other: SnapshotStore, tmp_path: Path):
    """Who is not trusted is named, and comes in only when the user says so."""
    stranger = make_keys(tmp_path / "stranger")
    with pytest.raises(PackRefused, match="not trusted") as caught:
        add_pack(other.files, pack, [stranger])
    assert 5 == caught.value.exit_code
    assert [] == left_in(other)
    assert add_pack(other.files, pack, [], allow_unsigned=True).public


def test_an_unsigned_pack_is_refused(
    tmp_path: Path, store: SnapshotStore, other: SnapshotStore, pack: Path, fingerprint: Fingerprint
):
    """Nobody's pack comes in only when the user says so."""
    manifest = manifest_of(store, fingerprint, TOKENS)
    path = store.files.path(fingerprint.digest(), token_ids(TOKENS))
    plain = tmp_path / "plain.ekp"
    write_pack(plain, manifest, store.files, [path])
    with pytest.raises(PackRefused, match="nobody signed it"):
        add_pack(other.files, plain, [])
    assert b"" == add_pack(other.files, plain, [], allow_unsigned=True).public


def test_a_forged_signature_never_comes_in(pack: Path, other: SnapshotStore, keys: Keys):
    """A signature that is wrong is refused, also where none is asked for."""
    content = bytearray(pack.read_bytes())
    content[HEAD_BYTES - 1] ^= 1
    pack.write_bytes(content)
    with pytest.raises(PackRefused, match="signature is wrong"):
        add_pack(other.files, pack, [keys.public], allow_unsigned=True)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: replace(m, files=(m.files[0], m.files[0])),
        lambda m: replace(m, files=()),
        lambda m: replace(m, files=(replace(m.files[0], key="../../../etc/passwd"),)),
        lambda m: replace(m, files=(replace(m.files[0], key="0" * 32), m.files[1])),
        lambda m: replace(m, files=(replace(m.files[0], n_tokens=11), m.files[1])),
        lambda m: replace(m, files=(replace(m.files[0], sha256="0" * 64), m.files[1])),
        lambda m: replace(m, files=(replace(m.files[0], n_bytes=1 << 50), m.files[1])),
        lambda m: replace(m, files=(replace(m.files[0], n_bytes=1), m.files[1])),
        lambda m: replace(m, files=(m.files[1], m.files[0])),
        lambda m: replace(m, files=(replace(m.files[0], parent=m.files[1].key), m.files[1])),
        lambda m: replace(m, files=(m.files[0], replace(m.files[1], parent=m.files[0].key))),
        lambda m: replace(m, files=(m.files[0], replace(m.files[1], parent="../x"))),
        lambda m: replace(m, hard=(("model", "cd" * 32),)),
        lambda m: replace(m, hard=tuple(reversed(m.hard))),
        lambda m: replace(m, hard=(*m.hard, ("zz", "\n"))),
        lambda m: replace(m, files=(replace(m.files[0], probe=replace(m.files[0].probe, ids=(1, 1), logits=(1.0, 0.0))), m.files[1])),
        lambda m: replace(m, files=(replace(m.files[0], probe=replace(m.files[0].probe, logits=(float("nan"),) * 64)), m.files[1])),
    ],
)  # fmt: skip
def test_a_signed_lie_leaves_nothing(
    pack: Path,
    store: SnapshotStore,
    other: SnapshotStore,
    fingerprint: Fingerprint,
    keys: Keys,
    change: Callable[[Manifest], Manifest],
):
    """Also a trusted key cannot bring in what contradicts itself: names, lengths, hashes, parents."""
    manifest = manifest_of(store, fingerprint, TOKENS, LONGER)
    body = pack.read_bytes()[len(make_head(manifest, keys.signer).encode()) :]
    pack.write_bytes(make_head(change(manifest), keys.signer).encode() + body)
    with pytest.raises(PackRefused):
        add_pack(other.files, pack, [keys.public])
    assert [] == left_in(other)
    assert [] == (list(Imports(other.files).root.iterdir()) if other.root.exists() else [])


@pytest.mark.parametrize("spelling", [b'{"format": 1}', b"[]", b"{", b"\xff", b"[" * 100_000])
def test_a_signed_manifest_in_another_form(
    tmp_path: Path, other: SnapshotStore, keys: Keys, spelling: bytes
):
    """Only the one canonical JSON is read."""
    unsigned = Head(keys.public, b"", spelling)
    signed = replace(unsigned, signature=keys.signer.sign(unsigned.message()))
    path = tmp_path / "odd.ekp"
    path.write_bytes(signed.encode())
    with pytest.raises(PackRefused):
        add_pack(other.files, path, [keys.public])


@given(seed=st.integers(0, 2**32))
def test_damage_anywhere_is_refused(
    tmp_path_factory: pytest.TempPathFactory, snapshot_files: Any, keys: Keys, seed: int
):
    """No flip, cut, extension or swap of bytes gets in, and nothing is left of it."""
    content = _signed_pack(tmp_path_factory, snapshot_files, keys)
    damaged = snapshot_files.mutate(content, random.Random(seed))
    if damaged == content:
        return
    folder = tmp_path_factory.mktemp("damaged")
    (folder / "pack").write_bytes(damaged)
    store = SnapshotStore(folder / "store")
    with pytest.raises(PackRefused):
        add_pack(store.files, folder / "pack", [keys.public])
    assert [] == left_in(store)


_PACKS: dict[bytes, bytes] = {}


def _signed_pack(factory: pytest.TempPathFactory, snapshot_files: Any, keys: Keys) -> bytes:
    """Return the bytes of one pack, made once for a key."""
    if keys.public not in _PACKS:
        folder = factory.mktemp("signed")
        store = SnapshotStore(folder / "store")
        fingerprint = snapshot_files.FINGERPRINT
        saved = store.save(fingerprint, TOKENS, snapshot_files.state())
        manifest = manifest_of(store, fingerprint, TOKENS)
        write_pack(folder / "pack", manifest, store.files, [saved.path], keys.signer)
        _PACKS[keys.public] = (folder / "pack").read_bytes()
    return _PACKS[keys.public]


def test_an_import_that_breaks_off_leaves_nothing(
    pack: Path, tmp_path: Path, keys: Keys, fingerprint: Fingerprint
):
    """Whichever step fails, the store has all of the pack afterwards, or nothing of it."""
    outcomes = []
    for n in range(200):
        steps = iter(range(1000))

        def fault(step: str, path: str, n: int = n, steps: Any = steps) -> None:
            if next(steps) == n:
                raise OSError(5, f"{step} failed", path)

        root = tmp_path / f"store{n}"
        store = SnapshotStore(root, fault=fault)
        try:
            add_pack(store.files, pack, [keys.public])
        except OSError:
            whole = SnapshotStore(root)
            outcomes.append(len(left_in(whole)))
            packs = list(Imports(whole.files).packs())
            assert len(packs) == (1 if left_in(whole) else 0)
            assert all(n_waiting == 2 for _, _, n_waiting in packs)
        else:
            break
    assert len(outcomes) > 10
    assert set(outcomes) <= {0, 3}


def test_a_killed_import_is_swept(
    pack: Path, other: SnapshotStore, keys: Keys, dead_pid: int, fingerprint: Fingerprint
):
    """The next import removes what a process that is no more had staged."""
    root = Imports(other.files).root
    stage = root / f".{'a' * 32}.{dead_pid}.abcd.tmp"
    (stage / "v1").mkdir(parents=True)
    add_pack(other.files, pack, [keys.public])
    assert not stage.exists()
    assert [len(path.name) for path in root.iterdir()] == [32]


def test_a_killed_import_takes_no_room_from_snapshots(
    tmp_path: Path, fingerprint: Fingerprint, dead_pid: int, snapshot_files: Any
):
    """What it had staged goes at the next use of the store, or by `prune`; what is staged now stays."""
    other = SnapshotStore(tmp_path / "other", cap_bytes=300_000, floor_bytes=0)
    root = Imports(other.files).root
    dead, alive = (root / f".{'a' * 32}.{pid}.abcd.tmp" for pid in (dead_pid, os.getpid()))
    for use in (other.prune, lambda: other.save(fingerprint, TOKENS, snapshot_files.state())):
        for stage, n_bytes in ((dead, 250_000), (alive, 1000)):
            folder = stage / "v1" / "0123456789abcdef"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{'b' * 32}.ekv").write_bytes(bytes(n_bytes))
        use()
        assert [alive] == list(root.iterdir())
    assert isinstance(other.lookup(fingerprint, TOKENS), Hit)


def test_what_others_put_beside_packs_hides_none(
    pack: Path, other: SnapshotStore, keys: Keys, fingerprint: Fingerprint
):
    """However many names come before theirs."""
    add_pack(other.files, pack, [keys.public])
    for n in range(80):
        (Imports(other.files).root / f".note{n}").touch()
    assert Imports(other.files).waiting(fingerprint.digest(), token_ids(TOKENS)) is not None


def test_too_little_room_is_told(pack: Path, tmp_path: Path, keys: Keys):
    """A pack that the cap does not allow stays out."""
    store = SnapshotStore(tmp_path / "small", cap_bytes=20_000)
    with pytest.raises(DoesNotFit):
        add_pack(store.files, pack, [keys.public])
    assert [] == left_in(store)


def test_links_in_the_way_are_not_followed(
    pack: Path, other: SnapshotStore, keys: Keys, tmp_path: Path, fingerprint: Fingerprint
):
    """A folder of imports that is a link leads nowhere."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    other.root.mkdir(mode=0o700)
    (other.root / "imports").symlink_to(elsewhere)
    with pytest.raises(PackRefused, match="not a folder"):
        add_pack(other.files, pack, [keys.public])
    assert [] == list(elsewhere.iterdir())


def test_keys_are_private_and_kept(tmp_path: Path):
    """A private key is for its owner alone, and no key is ever written over."""
    from edgellm.errors import UsageError

    public = make_keys(tmp_path / "k")
    assert 0o600 == (tmp_path / "k").stat().st_mode & 0o777
    assert public == read_public(tmp_path / "k.pub") == read_signer(tmp_path / "k").public
    with pytest.raises(UsageError, match="exists"):
        make_keys(tmp_path / "k")
    (tmp_path / "k").chmod(0o644)
    with pytest.raises(UsageError, match="others can read"):
        read_signer(tmp_path / "k")
    with pytest.raises(UsageError, match="public"):
        read_public(tmp_path / "k")


@given(seed=st.integers(0, 2**32))
def test_a_manifest_that_was_signed_damaged_is_refused(
    tmp_path_factory: pytest.TempPathFactory, snapshot_files: Any, keys: Keys, seed: int
):
    """Behind the signature the parser stands alone: no change of a manifest gets a pack in."""
    content = _signed_pack(tmp_path_factory, snapshot_files, keys)
    (n_bytes,) = struct.unpack_from("<I", content, 8)
    manifest = content[HEAD_BYTES : HEAD_BYTES + n_bytes]
    damaged = snapshot_files.mutate(manifest, random.Random(seed))
    created = re.compile(rb'"created":[0-9]+')
    if created.sub(b"", damaged) == created.sub(b"", manifest):
        return  # at another time: as good
    head = Head(keys.public, b"", damaged)
    head = replace(head, signature=keys.signer.sign(head.message()))
    folder = tmp_path_factory.mktemp("resigned")
    (folder / "pack").write_bytes(head.encode() + content[HEAD_BYTES + n_bytes :])
    store = SnapshotStore(folder / "store")
    try:
        added = add_pack(store.files, folder / "pack", [keys.public])
    except PackRefused:
        assert [] == left_in(store)
    else:  # another number in the probe: what the engine says will tell
        (entry,) = added.manifest.files
        (before,) = parse_manifest(manifest).files
        assert replace(entry, probe=before.probe) == before


_IMPORTER = """
import os, signal, sys
from pathlib import Path
from edgellm.store.packs.importing import add_pack
from edgellm.store.snapshots import SnapshotStore
left = int(sys.argv[3])
def fault(step, path):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
add_pack(SnapshotStore(Path(sys.argv[1]), fault=fault).files, Path(sys.argv[2]), [], allow_unsigned=True)
"""


@pytest.mark.parametrize("n_steps", [0, 3, 6, 9, 12, 15])
def test_a_real_kill_leaves_all_or_nothing(
    pack: Path, tmp_path: Path, fingerprint: Fingerprint, n_steps: int
):
    """A process that is killed in the middle of an import leaves nothing that anybody would use."""
    root = tmp_path / "killed"
    command = [sys.executable, "-c", _IMPORTER, str(root), str(pack), str(n_steps)]
    assert -signal.SIGKILL == subprocess.run(command, check=False).returncode
    store = SnapshotStore(root)
    assert [] == list(Imports(store.files).packs())
    add_pack(store.files, pack, [], allow_unsigned=True)
    assert [2] == [n_waiting for _, _, n_waiting in Imports(store.files).packs()]
    assert [] == store.check()
    assert 1 == len(list(Imports(store.files).root.iterdir()))


def test_without_cryptography(
    pack: Path, other: SnapshotStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """What needs the extra says so; an unsigned pack does not need it."""
    head = pack.read_bytes()[:HEAD_BYTES]
    unsigned = head[:12] + bytes(HEAD_BYTES - 12) + pack.read_bytes()[HEAD_BYTES:]
    (tmp_path / "unsigned").write_bytes(unsigned)
    for name in [name for name in sys.modules if name.startswith("cryptography")]:
        monkeypatch.setitem(sys.modules, name, None)
    for call in (
        lambda: make_keys(tmp_path / "new"),
        lambda: add_pack(other.files, pack, [], allow_unsigned=True),
    ):
        with pytest.raises(MissingExtra, match="cryptography") as caught:
            call()
        assert "edgellm[secure]" in caught.value.hint
    assert [] == left_in(other)
    add_pack(other.files, tmp_path / "unsigned", [], allow_unsigned=True)
