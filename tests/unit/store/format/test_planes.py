"""Byte planes: smaller files of the same bits, and nothing in them that could grow beyond bounds."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zstandard

from edgellm.errors import SnapshotCorrupt, SnapshotIncompatible
from edgellm.store.format import planes
from edgellm.store.snapshots import Hit, Miss, Saved, Skipped, SnapshotStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgellm.store.state import Fingerprint

TOKENS = list(range(40))
RATIO = {"f16": 0.93, "bf16": 0.8, "f32": 0.9}


def save(store: SnapshotStore, files: Any, kind: str = "f16") -> Saved:
    """Save a state losslessly smaller."""
    saved = store.save(files.FINGERPRINT, TOKENS, files.smooth(40, kind), lossless=True)
    assert isinstance(saved, Saved), saved
    return saved


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32"])
def test_the_same_bits_in_fewer_bytes(
    store: SnapshotStore, fingerprint: Fingerprint, snapshot_files: Any, kind: str
):
    """Every element type that has a high byte; the file says what its reader needs."""
    state = snapshot_files.smooth(40, kind)
    saved = save(store, snapshot_files, kind)
    raw = sum(s.rows.nbytes for s in state.parts[0].sections)
    assert saved.n_bytes < raw * RATIO[kind]
    found = store.lookup(fingerprint, TOKENS)
    assert isinstance(found, Hit), found
    assert snapshot_files.same(state, found.state)
    header, _ = snapshot_files.split(saved.path.read_bytes())
    assert header["required_features"] == ["planes-1"]
    assert (header["tier"], header["exactness"]) == ("exact", "bits")
    assert {row["stored"] for row in header["parts"][0]["sections"]} == {"planes"}
    assert store.check() == []


def test_what_would_not_become_smaller_stays_plain(
    store: SnapshotStore, fingerprint: Fingerprint, snapshot_files: Any
):
    """Noise, blocks of quantised numbers and blobs: then the file needs nothing new at all."""
    state = snapshot_files.state()
    saved = store.save(fingerprint, TOKENS[:12], state, lossless=True)
    assert isinstance(saved, Saved)
    header, _ = snapshot_files.split(saved.path.read_bytes())
    assert header["required_features"] == []
    assert "stored" not in header["parts"][0]["sections"][0]


def test_without_the_library_it_is_kept_plain_and_read_by_nobody(
    store: SnapshotStore,
    fingerprint: Fingerprint,
    snapshot_files: Any,
    monkeypatch: pytest.MonkeyPatch,
):
    """A program without it misses, leaves the file alone, and writes plain ones itself."""
    saved = save(store, snapshot_files)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "zstandard", None)
        found = store.lookup(fingerprint, TOKENS)
        assert found == Miss(
            "incompatible: layer 0 K: the package zstandard is not installed", "incompatible"
        )
        assert saved.path.exists()
        other = store.save(fingerprint, TOKENS[::-1], snapshot_files.smooth(40), lossless=True)
        assert isinstance(other, Saved)
        assert isinstance(store.lookup(fingerprint, TOKENS[::-1]), Hit)
    assert isinstance(store.lookup(fingerprint, TOKENS), Hit)


def test_a_chain_of_byte_planes(
    store: SnapshotStore, fingerprint: Fingerprint, snapshot_files: Any
):
    """What leans on others is made smaller the same way, and gives anchors for the same bits."""
    state = snapshot_files.smooth(40)
    short = store.save(fingerprint, TOKENS[:20], _first(state, 20), lossless=True)
    assert isinstance(short, Saved)
    saved = store.save(fingerprint, TOKENS, state, base=short.anchor, lossless=True)
    assert isinstance(saved, Saved)
    found = store.lookup(fingerprint, TOKENS)
    assert isinstance(found, Hit), found
    assert snapshot_files.same(state, found.state)
    header, _ = snapshot_files.split(saved.path.read_bytes())
    assert header["required_features"] == ["delta-1", "planes-1"]
    again = store.save(fingerprint, TOKENS, state, base=short.anchor)
    assert again == Skipped("already stored", anchor=saved.anchor)


def _first(state: Any, n: int) -> Any:
    from dataclasses import replace

    part = state.parts[0]
    sections = tuple(replace(s, rows=s.rows[:n]) for s in part.sections)
    return replace(state, n_tokens=n, parts=(replace(part, n_tokens=n, sections=sections),))


def run_of(n: int, frame: bytes) -> np.ndarray:
    """Return a run of `n` f16 elements whose high bytes are in this frame."""
    start = -(-n // 64) * 64
    run = np.zeros(start + len(frame), np.uint8)
    run[start:] = np.frombuffer(frame, np.uint8)
    return run


def _lying(n: int) -> bytes:
    frame = bytearray(zstandard.ZstdCompressor().compress(bytes(n)))
    frame[5] ^= 1  # its size, of one byte in frames below 256
    return bytes(frame)


def _huge() -> bytes:
    size = 1 << 40
    return b"\x28\xb5\x2f\xfd\xe0" + size.to_bytes(8, "little") + b"\x03\x00\x00"


def _unsized() -> bytes:
    return zstandard.ZstdCompressor(write_content_size=False).compress(bytes(200))


FRAMES: dict[str, Callable[[], bytes]] = {
    "nothing": lambda: b"",
    "no_frame": lambda: b"EDGE" * 10,
    "cut": lambda: zstandard.ZstdCompressor().compress(np.random.default_rng(1).bytes(200))[:-1],
    "too_long": lambda: zstandard.ZstdCompressor().compress(bytes(201)),
    "too_short": lambda: zstandard.ZstdCompressor().compress(bytes(199)),
    "lying": lambda: _lying(200),
    "huge": _huge,
    "unsized": _unsized,
    "more_behind": lambda: zstandard.ZstdCompressor().compress(bytes(200)) + b"\0",
    "two_frames": lambda: zstandard.ZstdCompressor().compress(bytes(200)) * 2,
    "skippable": lambda: b"\x50\x2a\x4d\x18\x08\x00\x00\x00" + bytes(8),
}


@pytest.mark.parametrize("case", sorted(FRAMES))
def test_a_frame_of_anything_else_is_damage(case: str):
    """Its size is compared before it is unpacked, and all of it must be one frame."""
    out = np.empty((10, 20), np.uint16)
    with pytest.raises(SnapshotCorrupt, match="layer 0 K: "):
        planes.join(run_of(200, FRAMES[case]()), out, "layer 0 K")


def test_padding_between_the_planes_is_zero():
    """No byte may change unnoticed, whatever the checksum says."""
    run = run_of(200, zstandard.ZstdCompressor().compress(bytes(200)))
    out = np.empty((10, 20), np.uint16)
    planes.join(run, out, "x")
    run[201] = 1
    with pytest.raises(SnapshotCorrupt, match="padding"):
        planes.join(run, out, "x")


def test_a_section_can_only_promise_what_its_low_bytes_hold():
    """A run of little stands for little: the bound holds before memory is taken."""
    assert planes.has_length("f16", 200, 257)
    assert not planes.has_length("f16", 200, 256)
    assert not planes.has_length("f16", 200, 400)
    assert not planes.has_length("f16", 1 << 60, 1 << 20)
    assert planes.has_length("f32", 64, 193)
    assert not planes.has_length("f32", 64, 192)


def test_a_frame_that_passes_the_checksum_is_still_read_with_care(
    store: SnapshotStore, fingerprint: Fingerprint, snapshot_files: Any
):
    """A forger who computes checksums gets a miss, as for every other field."""
    saved = save(store, snapshot_files)
    for change in (
        lambda row: row.update(stored="exact"),
        lambda row: row.update(stored="packed"),
        lambda row: row.update(stored="zstd"),
        lambda row: row.update(shape=[40, 255]),
        lambda row: row.update(shape=[40, 1 << 40]),
        lambda row: row.update(type="f32"),
        lambda row: row.update(type="q8_0"),
        lambda row: row.update(type="bf16", role="V"),
    ):
        content = saved.path.read_bytes()
        snapshot_files.forge(saved.path, lambda h, c=change: c(h["parts"][0]["sections"][0]))
        assert isinstance(store.lookup(fingerprint, TOKENS), Miss)
        saved.path.write_bytes(content)
    assert isinstance(store.lookup(fingerprint, TOKENS), Hit)


def test_the_message_names_what_is_missing(monkeypatch: pytest.MonkeyPatch):
    """Who lacks the package is told its name."""
    run = run_of(200, zstandard.ZstdCompressor().compress(bytes(200)))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(SnapshotIncompatible, match="zstandard is not installed"):
        planes.join(run, np.empty((10, 20), np.uint16), "x")
