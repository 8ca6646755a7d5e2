"""Files written by the first version of the format, one a tier and feature: readable for ever.

If a test of reading fails, the format has changed: give it another number, or another codec feature,
and keep the reader of this one. Do not write the files anew.
"""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from edgellm.core import Tier
from edgellm.store.disk import names
from edgellm.store.format.codec import pack_state
from edgellm.store.snapshots import Hit, Miss, Saved, SnapshotStore
from edgellm.store.state import Fingerprint, KVState, Part, Section

if TYPE_CHECKING:
    from numpy.typing import NDArray

FOLDER = Path(__file__).parents[2] / "data" / "snapshots"
GOLDEN = FOLDER / "format-1.ekv"
CREATED_S = 1_700_000_000
TOKENS = [1, 2, 3, 49151, 2147483647, 0]
FINGERPRINT = Fingerprint(
    hard=(("arch", "llama"), ("engine", "golden 1"), ("model", "0123456789abcdef" * 4)),
    soft=(("cpu", "avx2"), ("threads", "2")),
)


def _numbers(start: int, shape: tuple[int, int], dtype: type[np.unsignedinteger]) -> NDArray:
    count = np.arange(shape[0] * shape[1], dtype=np.uint64)
    return ((count + start) * 40503 + 12345).astype(dtype).reshape(shape)


def golden_state() -> KVState:
    """Return the state in the file: each part, four element types."""
    dense = (
        Section(0, "K", "f16", _numbers(0, (6, 32), np.uint16)),
        Section(1, "K", "q8_0", _numbers(2, (6, 34), np.uint8)),
        Section(0, "V", "f16", _numbers(1, (32, 6), np.uint16).T),
        Section(1, "V", "f32", _numbers(3, (6, 8), np.uint32)),
    )
    window = (Section(0, "K", "bf16", _numbers(4, (4, 16), np.uint16)),)
    opaque = (Section(0, "blob", "u8", _numbers(5, (1, 100), np.uint8)),)
    return KVState(
        6, (Part("dense", 0, 6, dense), Part("window", 2, 4, window), Part("opaque", 0, 6, opaque))
    )


def test_the_first_files_of_the_format_can_be_read(tmp_path: Path):
    """The committed file is a hit with exactly these numbers."""
    path = names.path_of(tmp_path, FINGERPRINT.digest(), names.token_ids(TOKENS))
    path.parent.mkdir(parents=True)
    shutil.copyfile(GOLDEN, path)
    found = SnapshotStore(tmp_path).lookup(FINGERPRINT, TOKENS)
    assert isinstance(found, Hit), found
    assert found.info.created_s == CREATED_S
    assert found.soft_changes == ()
    expected = golden_state()
    assert found.state.n_tokens == expected.n_tokens
    for ours, theirs in zip(expected.parts, found.state.parts, strict=True):
        assert (ours.kind, ours.first, ours.n_tokens) == (
            theirs.kind,
            theirs.first,
            theirs.n_tokens,
        )
        for left, right in zip(ours.sections, theirs.sections, strict=True):
            assert (left.layer, left.role, left.type) == (right.layer, right.role, right.type)
            assert left.rows.dtype == right.rows.dtype
            assert np.array_equal(left.rows, right.rows)


def test_the_format_is_written_as_it_was(tmp_path: Path):
    """The same state at the same time gives the same bytes under the same name."""
    store = SnapshotStore(tmp_path, clock=lambda: CREATED_S)
    saved = store.save(FINGERPRINT, TOKENS, golden_state())
    assert isinstance(saved, Saved)
    assert saved.path.parent.name == "04f846bd7bc821d9"
    assert saved.path.stem == "7be638ce6f857a35e8702baa025443b9"
    assert saved.path.read_bytes() == GOLDEN.read_bytes()


def kinds_state() -> KVState:
    """Return the state in the file of more kinds: an extra of each position, recurrent memories."""
    dense = (
        Section(0, "K", "f16", _numbers(0, (6, 32), np.uint16)),
        Section(0, "X", "u8", _numbers(6, (6, 10), np.uint8)),
    )
    recurrent = (
        Section(0, "R", "f32", _numbers(7, (1, 24), np.uint32)),
        Section(1, "R", "f32", _numbers(8, (1, 24), np.uint32)),
        Section(0, "S", "f32", _numbers(9, (1, 64), np.uint32)),
    )
    return KVState(6, (Part("dense", 0, 6, dense), Part("recurrent", 5, 1, recurrent)))


def longer_state() -> KVState:
    """Return the state in the file that leans on the first one: its rows, then four more."""
    parts = []
    for part in golden_state().parts:
        if part.kind == "dense":
            sections = tuple(
                replace(s, rows=np.concatenate((s.rows, s.rows[:4] ^ 1))) for s in part.sections
            )
            parts.append(Part("dense", 0, 10, sections))
        else:
            first = 0 if part.kind == "opaque" else 6
            parts.append(Part(part.kind, first, 10 - first, part.sections))
    return KVState(10, tuple(parts))


def planes_state() -> KVState:
    """Return the state in the file of byte planes: few high bytes, all low ones."""
    parts = []
    for part in tier_state().parts:
        sections = [
            replace(s, rows=s.rows & np.uint16(0x83FF)) if s.type == "f16" else s
            for s in part.sections
        ]
        sections.append(Section(0, "X", "u8", _numbers(6, (part.n_tokens, 3), np.uint8)))
        parts.append(replace(part, sections=tuple(sections)))
    return KVState(40, tuple(parts))


LONGER_TOKENS = [*TOKENS, 7, 8, 9, 10]
LATER_FILES = {
    "format-1-kinds-2": (TOKENS, kinds_state),
    "format-1-delta-1": (LONGER_TOKENS, longer_state),
    "format-1-planes-1": (list(range(1000, 1040)), planes_state),
    "format-1-cuts-1": (TOKENS, golden_state),
}
CUTS = {"format-1-cuts-1": (2, 5)}
"""Where the prefix of a file was cut before its end."""


def _path(folder: Path, name: str, tokens: list[int]) -> Path:
    ids = names.token_ids(tokens)
    return names.path_of(folder, FINGERPRINT.digest(), ids, cuts=CUTS.get(name, ()))


def _put(folder: Path, name: str, tokens: list[int]) -> None:
    path = _path(folder, name, tokens)
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(FOLDER / f"{name}.ekv", path)


@pytest.mark.parametrize("name", sorted(LATER_FILES))
def test_the_first_files_of_each_feature_can_be_read(tmp_path: Path, name: str):
    """Each committed file is a hit with the numbers it had; one leans on the first of all."""
    tokens, make_state = LATER_FILES[name]
    if name == "format-1-delta-1":
        _put(tmp_path, "format-1", TOKENS)
    _put(tmp_path, name, tokens)
    found = SnapshotStore(tmp_path).lookup(FINGERPRINT, tokens, cuts=CUTS.get(name, ()))
    assert isinstance(found, Hit), found
    expected = make_state()
    assert [(p.kind, p.first, p.n_tokens) for p in expected.parts] == [
        (p.kind, p.first, p.n_tokens) for p in found.state.parts
    ]
    for ours, theirs in zip(expected.parts, found.state.parts, strict=True):
        for left, right in zip(ours.sections, theirs.sections, strict=True):
            assert (left.layer, left.role, left.type) == (right.layer, right.role, right.type)
            assert np.array_equal(left.rows, right.rows)


@pytest.mark.parametrize("name", ["format-1-kinds-2", "format-1-delta-1", "format-1-cuts-1"])
def test_each_feature_is_written_as_it_was(tmp_path: Path, name: str):
    """The same bytes again; not of byte planes, because another Zstandard may pack them better."""
    tokens, make_state = LATER_FILES[name]
    store = SnapshotStore(tmp_path, clock=lambda: CREATED_S)
    base = store.save(FINGERPRINT, TOKENS, golden_state()) if name.endswith("delta-1") else None
    anchor = base.anchor if isinstance(base, Saved) else None
    cuts = CUTS.get(name, ())
    saved = store.save(FINGERPRINT, tokens, make_state(), base=anchor, cuts=cuts)
    assert isinstance(saved, Saved)
    assert saved.path == _path(tmp_path, name, tokens)
    assert saved.path.read_bytes() == (FOLDER / f"{name}.ekv").read_bytes()


EVERY = pytest.mark.parametrize("step", [41, pytest.param(1, marks=pytest.mark.full)])
GOLDEN_FILES = sorted(path.stem for path in FOLDER.glob("*.ekv"))


@EVERY
@pytest.mark.parametrize("name", GOLDEN_FILES)
def test_any_changed_byte_is_a_miss(tmp_path: Path, name: str, step: int):
    """Every byte of every golden file, one bit of it turned: no other state ever comes out."""
    tokens, tier = _asked(name)
    if name == "format-1-delta-1":
        _put(tmp_path, "format-1", TOKENS)
    _put(tmp_path, name, tokens)
    store = SnapshotStore(tmp_path)
    path, cuts = _path(tmp_path, name, tokens), CUTS.get(name, ())
    content = path.read_bytes()
    for at in range(0, len(content), step):
        damaged = bytearray(content)
        damaged[at] ^= 1 << (at % 8)
        path.write_bytes(damaged)
        assert isinstance(store.lookup(FINGERPRINT, tokens, tier, cuts=cuts), Miss), at
    path.write_bytes(content)
    assert isinstance(store.lookup(FINGERPRINT, tokens, tier, cuts=cuts), Hit)


@EVERY
def test_any_changed_byte_of_a_base_is_a_miss_or_changes_nothing(tmp_path: Path, step: int):
    """What leans on a file sees no other rows than those it was made after."""
    tokens, make_state = LATER_FILES["format-1-delta-1"]
    _put(tmp_path, "format-1", TOKENS)
    base = names.path_of(tmp_path, FINGERPRINT.digest(), names.token_ids(TOKENS))
    content, expected = base.read_bytes(), make_state()
    store = SnapshotStore(tmp_path)
    n_hits = 0
    for at in range(0, len(content), step):
        _put(tmp_path, "format-1-delta-1", tokens)
        damaged = bytearray(content)
        damaged[at] ^= 1 << (at % 8)
        base.write_bytes(damaged)
        found = store.lookup(FINGERPRINT, tokens)
        if isinstance(found, Hit):
            n_hits += 1
            for ours, theirs in zip(expected.parts, found.state.parts, strict=True):
                for left, right in zip(ours.sections, theirs.sections, strict=True):
                    assert np.array_equal(left.rows, right.rows), at
        else:
            assert found.code in {"corrupt", "base_missing"}
    assert 0 < n_hits < len(content) / step / 4  # the windows and blobs of a base are not read


def _asked(name: str) -> tuple[list[int], Tier]:
    if name in LATER_FILES:
        return LATER_FILES[name][0], Tier.EXACT
    tier = name.removeprefix("format-1").removeprefix("-")
    return (TIER_TOKENS, Tier(tier)) if tier else (TOKENS, Tier.EXACT)


TIER_TOKENS = list(range(1000, 1040))
# SHA-256 over the rows that come out of each packed file, section after section.
UNPACKED = {
    Tier.Q8: "7d1148718a143e00750ec5669873b8be25d0a8aacb9fd37375bb24f3ad7b1db2",
    Tier.Q6: "5d242049154edc7e6827a5e67ac1cb1bbce70a47ab99b0f99780e3036a1bbeba",
    Tier.Q5: "0dfe401b8734be3a180b641cb65d58137d8df4f4487411e8ce5111b17d5b27c9",
    Tier.Q4: "8ee1b20f87bf46158fa4b1f0d8a81e9f244db9f09d4d4ca90934bc32689fdbaf",
}


def _halves(start: int, shape: tuple[int, int]) -> NDArray:
    """Return f16 bits of numbers between -2 and 2, subnormal ones among them."""
    return _numbers(start, shape, np.uint16) & np.uint16(0xBFFF)


def tier_state() -> KVState:
    """Return the state in the packed files: full and late parts, and what stays exact in them."""
    dense = (
        Section(0, "K", "f16", _halves(0, (40, 96))),
        Section(1, "K", "q8_0", _numbers(2, (40, 34), np.uint8)),
        Section(0, "V", "f16", _halves(1, (96, 40)).T),
        Section(1, "V", "f16", _halves(3, (40, 8))),
    )
    window = (
        Section(0, "K", "f16", _halves(4, (37, 64))),
        Section(0, "V", "f16", _halves(5, (37, 64))),
    )
    parts = (Part("dense", 0, 40, dense), Part("window", 3, 37, window))
    return KVState(40, parts)


@pytest.mark.parametrize("tier", sorted(UNPACKED))
def test_the_first_packed_files_can_be_read(tmp_path: Path, tier: Tier):
    """Each committed file is a hit with the numbers it had from the start."""
    path = names.path_of(tmp_path, FINGERPRINT.digest(), names.token_ids(TIER_TOKENS))
    path.parent.mkdir(parents=True)
    shutil.copyfile(FOLDER / f"format-1-{tier.value}.ekv", path)
    found = SnapshotStore(tmp_path).lookup(FINGERPRINT, TIER_TOKENS, tier)
    assert isinstance(found, Hit), found
    assert found.info.tier is tier
    digest = hashlib.sha256()
    for part in found.state.parts:
        for section in part.sections:
            digest.update(np.ascontiguousarray(section.rows).tobytes())
    assert UNPACKED[tier] == digest.hexdigest()


@pytest.mark.parametrize("tier", sorted(UNPACKED))
def test_packed_files_are_written_as_they_were(tmp_path: Path, tier: Tier):
    """The same state gives the same bytes: no row of the kernels may round in another way."""
    store = SnapshotStore(tmp_path, clock=lambda: CREATED_S)
    saved = store.save(FINGERPRINT, TIER_TOKENS, pack_state(tier_state(), tier))
    assert isinstance(saved, Saved)
    assert saved.path.read_bytes() == (FOLDER / f"format-1-{tier.value}.ekv").read_bytes()
