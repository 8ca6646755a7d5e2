"""Encrypted files: every change to one is noticed, and nothing of it can be told from noise."""

from __future__ import annotations

import hashlib
import io
import os
import random
import re
import struct
import tempfile
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgellm.core import Tier
from edgellm.errors import SnapshotCorrupt, SnapshotError, SnapshotIncompatible
from edgellm.fileio import AtomicWriter, read_exactly
from edgellm.store.sealed import chunks as module
from edgellm.store.sealed.chunks import HEADER, TAG_BYTES, outer_bytes
from edgellm.store.sealed.envelope import EnvelopeReader, EnvelopeWriter
from edgellm.store.sealed.keys import StoreKey
from edgellm.store.snapshots import Hit, Miss, Saved, SnapshotStore
from edgellm.store.state import KVState, Part

CHUNK = module.MIN_CHUNK_BYTES
SEALED = CHUNK + TAG_BYTES
KEY = StoreKey(bytes(range(32)))
OTHER = StoreKey(bytes(range(1, 33)))
TOKENS = list(range(12))


def seal(plain: bytes, key: StoreKey = KEY, **options: Any) -> bytes:
    """Return an encrypted file, written in pieces of odd lengths."""
    with tempfile.TemporaryDirectory() as folder:
        final = Path(folder, "sealed")
        with EnvelopeWriter(AtomicWriter(final), key, **{"chunk_bytes": CHUNK} | options) as writer:
            for start in range(0, len(plain), 1000):
                writer.write(plain[start : start + 1000])
        assert writer.n_bytes == final.stat().st_size
        return final.read_bytes()


def unseal(content: bytes, key: StoreKey = KEY) -> bytes:
    """Return the inner file."""
    reader = EnvelopeReader(io.BytesIO(content), len(content), key)
    plain = reader.readall()
    assert len(plain) == reader.n_bytes
    return plain


def text(n_bytes: int) -> bytes:
    """Return bytes that a cipher must hide: always the same."""
    return (b"the same words over and over again " * (n_bytes // 35 + 1))[:n_bytes]


def chunks(content: bytes) -> list[bytes]:
    """Return the sealed chunks of a file."""
    body = content[HEADER.size :]
    return [body[start : start + SEALED] for start in range(0, len(body), SEALED)]


@pytest.mark.parametrize("n_bytes", [1, 63, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 5 * CHUNK + 7])
def test_what_goes_in_comes_out(n_bytes: int):
    """Whatever the length is to the chunks, and as long as was said."""
    content = seal(text(n_bytes))
    assert text(n_bytes) == unseal(content)
    assert outer_bytes(n_bytes, CHUNK) == len(content)


def test_it_can_be_read_in_pieces_of_any_length():
    """A reader asks for headers, runs and padding; none of them knows of chunks."""
    plain = os.urandom(5 * CHUNK + 7)
    content = seal(plain)
    rng = random.Random(5)
    for most in (1, 64, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK):
        reader = EnvelopeReader(io.BytesIO(content), len(content), KEY)
        found = b""
        while piece := reader.read(rng.randint(max(1, most - 3), most) if most > 1 else 997):
            found += piece
        assert plain == found


def test_a_place_in_it_can_be_sought():
    """From the start or from here, across chunks, also back."""
    plain = os.urandom(4 * CHUNK)
    content = seal(plain)
    reader = EnvelopeReader(io.BytesIO(content), len(content), KEY)
    for place in (3 * CHUNK - 5, 7, CHUNK, 4 * CHUNK - 1):
        reader.seek(place)
        found = bytearray(min(10, len(plain) - place))
        read_exactly(reader, found)
        assert plain[place : place + 10] == found
    reader.seek(0)
    reader.seek(2 * CHUNK + 1, os.SEEK_CUR)
    assert plain[2 * CHUNK + 1] == reader.read(1)[0]
    assert b"" == reader.read(0)
    reader.seek(4 * CHUNK)
    assert b"" == reader.read(1)


def test_every_byte_is_covered():
    """A flip anywhere, in the outer header and its zeros too, is refused."""
    content = seal(text(CHUNK + 100))
    offsets = [*range(HEADER.size + 40), *range(HEADER.size + 40, len(content), 13)]
    for offset in offsets:
        damaged = bytearray(content)
        damaged[offset] ^= 1
        with pytest.raises(SnapshotError):
            unseal(bytes(damaged))


@pytest.mark.parametrize("n_chunks", [1, 3])
@pytest.mark.parametrize("rest", [0, 100])
def test_no_other_length_passes(n_chunks: int, rest: int):
    """Cut anywhere, at the end of a chunk too, or longer by anything."""
    content = seal(text(n_chunks * CHUNK + rest))
    ends = {HEADER.size + n * SEALED for n in range(n_chunks + 1)}
    lengths = ends | {n + by for n in ends for by in (-1, 1, TAG_BYTES, TAG_BYTES + 1)}
    for n_bytes in lengths - {len(content)}:
        other = (content * 2)[: max(0, n_bytes)]
        with pytest.raises((SnapshotCorrupt, EOFError)):
            unseal(other)
    with pytest.raises(SnapshotCorrupt):
        unseal(content + chunks(content)[0])


def test_chunks_cannot_change_places():
    """Neither within a file, nor dropped, nor doubled."""
    content = seal(text(4 * CHUNK))
    head, parts = content[: HEADER.size], chunks(content)
    orders = [(1, 0, 2, 3), (0, 2, 1, 3), (0, 1, 3, 2), (0, 1, 3), (1, 2, 3), (0, 0, 1, 2, 3)]
    for order in orders:
        with pytest.raises(SnapshotCorrupt):
            unseal(head + b"".join(parts[i] for i in order))


def test_chunks_cannot_move_between_files():
    """Two files of one key and the same content share nothing, not even with one header."""
    plain = text(3 * CHUNK)
    first, second = seal(plain), seal(plain)
    assert not set(chunks(first)) & set(chunks(second))
    swapped = first[: HEADER.size + SEALED] + second[HEADER.size + SEALED :]
    with pytest.raises(SnapshotCorrupt):
        unseal(swapped)
    with pytest.raises(SnapshotCorrupt):
        unseal(second[: HEADER.size] + first[HEADER.size :])


def test_another_key_does_not_open_it():
    """It is not damaged, it is for somebody else; and its id cannot be forged onto it."""
    content = seal(text(100))
    with pytest.raises(SnapshotIncompatible, match="another key"):
        unseal(content, OTHER)
    forged = content.replace(KEY.id, OTHER.id)
    with pytest.raises(SnapshotCorrupt):
        unseal(forged, OTHER)


def test_no_two_files_share_a_key_and_a_nonce():
    """The salt makes a cipher of its own for each file, even where the prefix is the same."""
    salts = iter([b"a" * 32, b"p" * 7, b"b" * 32, b"p" * 7])
    first = seal(text(100), random=lambda _: next(salts))
    second = seal(text(100), random=lambda _: next(salts))
    assert chunks(first) != chunks(second)


@pytest.mark.parametrize("chunk_bytes", [0, 1, CHUNK - 1, module.MAX_CHUNK_BYTES + 1, 0xFFFFFFFF])
def test_no_length_of_chunks_is_believed(chunk_bytes: int):
    """Memory is taken for chunks of a sane length, and never for more than the file has."""
    content = bytearray(seal(text(100)))
    struct.pack_into("<I", content, 12, chunk_bytes)
    with pytest.raises(SnapshotCorrupt):
        unseal(bytes(content))


@pytest.mark.parametrize("n_bytes", [0, 1, 7, 8, HEADER.size - 1, HEADER.size, HEADER.size + 16])
def test_what_is_too_short_is_refused(n_bytes: int):
    """Before any cipher is asked."""
    content = seal(text(100))[:n_bytes]
    with pytest.raises((SnapshotCorrupt, EOFError)):
        unseal(content)


def test_older_versions_of_the_library_serve(monkeypatch: pytest.MonkeyPatch):
    """They return fresh bytes where newer ones write into a buffer."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    class Older:
        def __init__(self, key: bytes) -> None:
            cipher = AESGCM(key)
            self.encrypt, self.decrypt = cipher.encrypt, cipher.decrypt

    plain = os.urandom(2 * CHUNK + 1)
    newer = seal(plain)
    monkeypatch.setattr("cryptography.hazmat.primitives.ciphers.aead.AESGCM", Older)
    assert plain == unseal(newer) == unseal(seal(plain))
    with pytest.raises(SnapshotCorrupt):
        unseal(newer[:-1] + bytes([newer[-1] ^ 1]))


def chi_square(content: bytes) -> float:
    """Return how far the counts of the 256 values are from equal; 255 is expected of noise."""
    counts = np.bincount(np.frombuffer(content, np.uint8), minlength=256)
    expected = len(content) / 256
    return float(((counts - expected) ** 2 / expected).sum())


def test_a_sealed_file_looks_like_noise():
    """Chi-square of its bytes within what one of a million noises exceeds; plain ones are far off."""
    plain = text(1 << 20)
    assert chi_square(plain) > 1e6
    assert 155 < chi_square(seal(plain)[HEADER.size :]) < 380


@pytest.fixture(params=[Tier.EXACT, Tier.Q4])
def saved(request, tmp_path: Path, snapshot_files: Any) -> tuple[SnapshotStore, Path, Tier, Any]:
    """Save one state in a store with a key."""
    tier = request.param
    store = SnapshotStore(tmp_path, key=KEY)
    state = snapshot_files.state() if tier is Tier.EXACT else snapshot_files.packed(tier)
    done = store.save(snapshot_files.FINGERPRINT, TOKENS, state)
    assert isinstance(done, Saved)
    assert done.path.stat().st_size == done.n_bytes
    return store, done.path, tier, snapshot_files


def test_a_store_with_a_key_gives_back_what_it_got(saved: Any):
    """The same bits as from a plain one, and the same words about them."""
    store, path, tier, files = saved
    found = store.lookup(files.FINGERPRINT, TOKENS, tier)
    assert isinstance(found, Hit), found
    if tier is Tier.EXACT:
        assert files.same(files.state(), found.state)
    assert found.info.n_bytes == path.stat().st_size
    assert [path.stem] == [entry.key for entry in store.entries()]
    assert [] == store.check()


def test_no_mutation_of_an_encrypted_file_is_used(saved: Any):
    """300 flips, cuts, extensions, swaps and overwritings: a miss each, never an error."""
    store, path, tier, files = saved
    content = path.read_bytes()
    rng = random.Random(20_260_201)
    for _ in range(300):
        damaged = files.mutate(content, rng)
        path.write_bytes(damaged)
        found = store.lookup(files.FINGERPRINT, TOKENS, tier)
        assert isinstance(found, Hit) == (damaged == content), found


def test_what_an_encrypted_store_holds_shows_nothing(saved: Any):
    """No token ids, no header, no names that could be computed from the tokens without the key."""
    _, path, _, files = saved
    content = path.read_bytes()
    assert b"fingerprint" not in content
    assert np.arange(12, dtype="<i4").tobytes() not in content
    plain = SnapshotStore(path.parent.parent.parent)
    assert plain.key(files.FINGERPRINT, TOKENS) != path.stem
    assert files.FINGERPRINT.digest()[:16] != path.parent.name


def test_who_has_no_key_or_another_one_misses(saved: Any):
    """The file stays, for whoever has the key."""
    store, path, tier, files = saved
    for other in (None, OTHER):
        stranger = SnapshotStore(store.root, key=other)
        found = stranger.lookup(files.FINGERPRINT, TOKENS, tier)
        assert isinstance(found, Miss)
        assert found.code == "not_stored"
        planted = stranger._files.path(
            files.FINGERPRINT.digest(), np.arange(12, dtype="<i4").tobytes()
        )
        planted.parent.mkdir(exist_ok=True)
        planted.write_bytes(path.read_bytes())
        found = stranger.lookup(files.FINGERPRINT, TOKENS, tier)
        assert isinstance(found, Miss)
        assert found.code == "incompatible", found
        planted.unlink()  # it was left
    assert isinstance(store.lookup(files.FINGERPRINT, TOKENS, tier), Hit)


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, snapshot_files: Any):
    """Whichever step fails: no file, no temporary, and the reason is given."""
    for n_steps in range(9):
        left = iter(range(n_steps))

        def fault(step: str, _: str, left: Any = left) -> None:
            if next(left, None) is None and step != "fsync_dir":
                raise OSError(5, "Input/output error")

        store = SnapshotStore(tmp_path / str(n_steps), key=KEY, fault=fault)
        done = store.save(snapshot_files.FINGERPRINT, TOKENS, snapshot_files.state())
        files = [path for path in (store.root / "v1").rglob("*") if path.is_file()]
        assert (1 if isinstance(done, Saved) else 0) == len(files), n_steps


def test_plain_files_from_before_the_key_are_not_used(tmp_path: Path, snapshot_files: Any):
    """A miss that says so; `check` names the file; without the key it is as good as before."""
    plain, keyed = SnapshotStore(tmp_path), SnapshotStore(tmp_path, key=KEY)
    done = plain.save(snapshot_files.FINGERPRINT, TOKENS, snapshot_files.state())
    assert isinstance(done, Saved)
    found = keyed.lookup(snapshot_files.FINGERPRINT, TOKENS)
    assert isinstance(found, Miss)
    assert ("incompatible", "kept plain" in found.reason) == (found.code, True)
    (finding,) = keyed.check(fix=True)
    assert finding.path == done.path
    assert "a plain file" in finding.problem
    assert [] == list(keyed.entries())
    assert isinstance(keyed.save(snapshot_files.FINGERPRINT, TOKENS, snapshot_files.state()), Saved)
    assert isinstance(keyed.lookup(snapshot_files.FINGERPRINT, TOKENS), Hit)
    assert isinstance(plain.lookup(snapshot_files.FINGERPRINT, TOKENS), Hit)
    (finding,) = plain.check()
    assert "encrypted, and no key was given" in finding.problem


def test_reading_takes_two_chunks_more_than_a_plain_file(tmp_path: Path, snapshot_files: Any):
    """And writing as much: neither holds the file a second time."""
    state = snapshot_files.state(n=20_000)
    peaks = []
    for name, key in (("plain", None), ("encrypted", KEY)):
        store = SnapshotStore(tmp_path / name, key=key)
        tokens = list(range(20_000))
        for step in (
            lambda: store.save(snapshot_files.FINGERPRINT, tokens, state),  # noqa: B023  # called here
            lambda: store.lookup(snapshot_files.FINGERPRINT, tokens),  # noqa: B023
        ):
            tracemalloc.start()
            assert isinstance(step(), (Saved, Hit))
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    more_bytes = [encrypted - plain for plain, encrypted in zip(peaks[:2], peaks[2:], strict=True)]
    assert max(more_bytes) < 3 * module.CHUNK_BYTES


def test_chains_texts_and_planes_work_under_a_key(tmp_path: Path, snapshot_files: Any):
    """A longer snapshot leans on a shorter one, is found by its text, and no name can be computed."""
    whole = snapshot_files.state(n=40)
    first = KVState(
        20,
        tuple(
            Part(part.kind, 0, 20, tuple(replace(s, rows=s.rows[:20]) for s in part.sections))
            for part in whole.parts[:1]
        ),
    )
    whole = replace(whole, parts=whole.parts[:1])
    tokens, text = list(range(40)), hashlib.sha256(b"a conversation").hexdigest()
    keyed, plain = SnapshotStore(tmp_path / "k", key=KEY), SnapshotStore(tmp_path / "p")
    names = []
    for store in (keyed, plain):
        base = store.save(snapshot_files.FINGERPRINT, tokens[:20], first)
        assert isinstance(base, Saved), base
        done = store.save(
            snapshot_files.FINGERPRINT,
            tokens,
            whole,
            base=base.anchor,
            lossless=True,
            text_sha256=text,
        )
        assert isinstance(done, Saved), done
        found = store.longest(snapshot_files.FINGERPRINT, [*tokens, 7], [20, 40])
        assert isinstance(found, Hit), found
        assert snapshot_files.same(whole, found.state)
        assert tuple(tokens) == store.by_text(snapshot_files.FINGERPRINT, text)
        assert store.by_text(snapshot_files.FINGERPRINT, text[::-1]) is None
        assert [] == store.check()
        names.append({path.name for path in store.root.rglob("*.ek?")})
    assert 3 == len(names[0]) == len(names[1])
    digits = [
        {word for name in them for word in re.findall("[0-9a-f]{32}", name)} for them in names
    ]
    assert not digits[0] & digits[1]
