"""Files written by the first version of the format, one a tier: readable for ever, still written so.

If a test of reading fails, the format has changed: give it another number, or another codec feature,
and keep the reader of this one. Do not write the files anew.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from edgellm.core import Tier
from edgellm.store import names
from edgellm.store.codec import pack_state
from edgellm.store.snapshots import Hit, Saved, SnapshotStore
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
