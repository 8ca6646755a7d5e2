"""Tiers in files: which one answers whom, what is replaced, and what a header may say of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edgellm.core import Tier
from edgellm.store.format import layout
from edgellm.store.format.codec import pack_state, unpack_state
from edgellm.store.format.parse import parse_header
from edgellm.store.format.runs import run_of
from edgellm.store.snapshots import Hit, Miss, Saved, Skipped, SnapshotStore
from edgellm.store.state import KVState, PackedState, Part, Section

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from edgellm.store.state import Fingerprint

TOKENS = list(range(12))
FINEST_FIRST = (Tier.EXACT, Tier.Q8, Tier.Q6, Tier.Q5, Tier.Q4)
PACKED = FINEST_FIRST[1:]


def kept(files: Any, tier: Tier) -> KVState | PackedState:
    """Return a state as a tier keeps it, with rows wide enough for each of them."""
    if tier is Tier.Q8:
        rows = files.finite(files.state(40, seed=3)).parts[0].sections
        wide = tuple(Section(s.layer, s.role, s.type, np.tile(s.rows, (1, 4))[:12]) for s in rows)
        return pack_state(KVState(12, (Part("dense", 0, 12, wide),)), tier)
    return files.finite(files.state()) if tier is Tier.EXACT else files.packed(tier)


def exact(state: KVState | PackedState) -> KVState:
    """Return what a reader gets."""
    return unpack_state(state) if isinstance(state, PackedState) else state


@pytest.mark.parametrize("tier", FINEST_FIRST)
def test_what_was_packed_comes_back(
    store: SnapshotStore, fingerprint: Fingerprint, snapshot_files: Any, tier: Tier
):
    """A hit is what unpacking gave before it was written; the file, its listing and its check agree."""
    state = kept(snapshot_files, tier)
    saved = store.save(fingerprint, TOKENS, state)
    assert isinstance(saved, Saved)
    found = store.lookup(fingerprint, TOKENS, tier)
    assert isinstance(found, Hit), found
    assert snapshot_files.same(exact(state), found.state)
    assert found.info.tier is tier
    assert [entry.tier for entry in store.entries()] == [tier]
    assert store.check() == []


@pytest.mark.parametrize("wanted", FINEST_FIRST)
@pytest.mark.parametrize("stored", FINEST_FIRST)
def test_a_finer_file_answers_a_coarser_one_does_not(
    store: SnapshotStore,
    fingerprint: Fingerprint,
    snapshot_files: Any,
    stored: Tier,
    wanted: Tier,
):
    """At least as exact as asked is a hit; a coarser one is a miss that says so and stays."""
    saved = store.save(fingerprint, TOKENS, kept(snapshot_files, stored))
    assert isinstance(saved, Saved)
    found = store.lookup(fingerprint, TOKENS, wanted)
    if FINEST_FIRST.index(stored) <= FINEST_FIRST.index(wanted):
        assert isinstance(found, Hit)
        assert found.info.tier is stored
    else:
        assert found == Miss(f"kept as {stored.value}, {wanted.value} is asked", "too_coarse")
    assert saved.path.exists()


@pytest.mark.parametrize("second", FINEST_FIRST)
@pytest.mark.parametrize("first", FINEST_FIRST)
def test_the_finest_of_two_stays(
    store: SnapshotStore, fingerprint: Fingerprint, snapshot_files: Any, first: Tier, second: Tier
):
    """A finer state takes the place of a coarser one; anything else is already stored."""
    assert isinstance(store.save(fingerprint, TOKENS, kept(snapshot_files, first)), Saved)
    outcome = store.save(fingerprint, TOKENS, kept(snapshot_files, second))
    if FINEST_FIRST.index(second) < FINEST_FIRST.index(first):
        assert isinstance(outcome, Saved)
    else:
        assert isinstance(outcome, Skipped)
        assert (outcome.reason, outcome.failed) == ("already stored", False)
    (entry,) = store.entries()
    assert entry.tier is min(first, second, key=FINEST_FIRST.index)


def test_who_does_not_say_wants_exact(
    store: SnapshotStore, fingerprint: Fingerprint, snapshot_files: Any
):
    """The default promises the very bits."""
    store.save(fingerprint, TOKENS, snapshot_files.packed(Tier.Q6))
    assert isinstance(store.lookup(fingerprint, TOKENS), Miss)


def test_an_exact_file_is_what_it_was_and_a_packed_one_says_so(
    store: SnapshotStore, fingerprint: Fingerprint, snapshot_files: Any
):
    """Earlier versions read the one and leave the other alone, because of its required feature."""
    headers = []
    for tier in (Tier.Q4, Tier.EXACT):
        saved = store.save(fingerprint, TOKENS, kept(snapshot_files, tier))
        assert isinstance(saved, Saved)
        headers.append(snapshot_files.split(saved.path.read_bytes())[0])
    packed, plain = headers
    assert (packed["tier"], packed["exactness"]) == ("q4", "rounded")
    assert packed["required_features"] == ["kv-codec-1"]
    stored = [row["stored"] for part in packed["parts"] for row in part["sections"]]
    assert stored == ["packed"] * 6 + ["exact"]
    assert (plain["tier"], plain["exactness"], plain["required_features"]) == ("exact", "bits", [])
    assert not any("stored" in row for part in plain["parts"] for row in part["sections"])


Header = dict[str, Any]


def at(*path: str | int, to: object) -> Callable[[Header], None]:
    """Return a change that sets one place in the header."""

    def change(header: Header) -> None:
        place: Any = header
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = to

    return change


def all_exact(header: Header) -> None:
    """Call a packed file an exact one in every member that says so."""
    header["required_features"], header["tier"] = [], "exact"
    header["exactness"] = "bits"
    for part in header["parts"]:
        for row in part["sections"]:
            del row["stored"]


SECTION = ("parts", 0, "sections", 0)
LATER, WRONG = "incompatible: ", "corrupt: "
CHANGES: dict[str, tuple[Callable[[Header], object], str]] = {
    "another_codec": (
        at("required_features", to=["kv-codec-2"]),
        LATER + "requires 'kv-codec-2'",
    ),
    "a_second_feature": (
        at("required_features", to=["kv-codec-1", "rans"]),
        LATER + "requires 'rans'",
    ),
    "feature_twice": (
        at("required_features", to=["kv-codec-1", "kv-codec-1"]),
        WRONG + "tier 'q4' with exactness 'rounded' and features",
    ),
    "no_feature": (at("required_features", to=[]), WRONG + "tier 'q4' with"),
    "tier_exact": (at("tier", to="exact"), WRONG + "tier 'exact' with exactness 'rounded'"),
    "tier_off": (at("tier", to="off"), LATER + "tier 'off'"),
    "tier_q3": (at("tier", to="q3"), LATER + "tier 'q3'"),
    "tier_q5": (at("tier", to="q5"), WRONG + "layer 0 K: 640 bytes for shape"),
    "tier_q8": (at("tier", to="q8"), WRONG + "layer 0 K: 640 bytes for shape"),
    "exactness": (at("exactness", to="bits"), WRONG + "tier 'q4' with exactness 'bits'"),
    "exactness_later": (at("exactness", to="near"), LATER + "exactness 'near'"),
    "called_exact": (all_exact, WRONG + "layer 0 K: 640 bytes for shape"),
    "stored_exact": (at(*SECTION, "stored", to="exact"), WRONG + "layer 0 K: 640 bytes"),
    "stored_rans": (at(*SECTION, "stored", to="rans"), LATER + "a section: unknown stored 'rans'"),
    "stored_true": (at(*SECTION, "stored", to=True), WRONG + "a section: 'stored'"),
    "stored_gone": (
        lambda h: h["parts"][0]["sections"][0].pop("stored") and None,
        WRONG + "a section: 'stored' is missing",
    ),
    "blob_packed": (
        at("parts", 2, "sections", 0, "stored", to="packed"),
        WRONG + "layer 0 blob: 77 bytes for shape",
    ),
    "bf16": (at(*SECTION, "type", to="bf16"), WRONG + "layer 0 K: 640 bytes for shape"),
    "roles": (at("parts", 0, "sections", 1, "role", to="V"), WRONG),
    "first": (at("parts", 1, "first", to=3), WRONG + "a window part holds positions 3 to 8"),
    "shape": (at(*SECTION, "shape", to=[12, 33]), WRONG + "layer 0 K: 640 bytes"),
    "shape_huge": (at(*SECTION, "shape", to=[1 << 52, 1 << 52]), WRONG + "layer 0 K: 640 bytes"),
    "n_bytes": (at(*SECTION, "n_bytes", to=639), WRONG + "layer 0 K: 639 bytes"),
    "xxh3": (at(*SECTION, "xxh3", to="0" * 32), WRONG + "section 1 at 64: the checksum"),
}


@pytest.mark.parametrize("case", sorted(CHANGES))
def test_a_wrong_field_of_a_packed_file_is_a_miss_with_its_reason(
    store: SnapshotStore, fingerprint: Fingerprint, snapshot_files: Any, case: str
):
    """The checksums of each file are right: only the rules of the format can refuse it."""
    change, reason = CHANGES[case]
    saved = store.save(fingerprint, TOKENS, snapshot_files.packed(Tier.Q4))
    assert isinstance(saved, Saved)
    snapshot_files.forge(saved.path, change)
    found = store.lookup(fingerprint, TOKENS, Tier.Q4)
    assert isinstance(found, Miss)
    assert found.reason.startswith(reason)
    assert saved.path.exists() == reason.startswith(LATER)


def test_stored_is_no_member_of_an_exact_file(
    store: SnapshotStore, fingerprint: Fingerprint, snapshot_files: Any
):
    """One spelling for one file: what tier `exact` says need not be said again."""
    saved = store.save(fingerprint, TOKENS, snapshot_files.state())
    assert isinstance(saved, Saved)
    snapshot_files.forge(saved.path, at(*SECTION, "stored", to="exact"))
    assert store.lookup(fingerprint, TOKENS) == Miss(
        "incompatible: a section: unknown field 'stored'", "incompatible"
    )


@pytest.mark.parametrize("tier", PACKED)
def test_a_scale_that_is_no_number_is_damage_with_right_checksums(
    store: SnapshotStore, fingerprint: Fingerprint, snapshot_files: Any, tier: Tier
):
    """A file made by somebody who can compute checksums gives no NaN to an engine."""
    packed = snapshot_files.packed(tier)
    section = packed.parts[1].sections[0]
    place = run_of(tier, "K", section.shape, packed.parts[1].first)
    place.scale.halves(section.run)[0, 0] = 0x7E00
    saved = store.save(fingerprint, TOKENS, packed)
    assert isinstance(saved, Saved)
    ((path, problem),) = [(f.path, f.problem) for f in store.check()]
    assert (path, problem[:17]) == (saved.path, "corrupt: layer 0 ")
    found = store.lookup(fingerprint, TOKENS, tier)
    assert isinstance(found, Miss)
    assert found.reason.startswith("corrupt: layer 0 K: a scale stands for")
    assert not saved.path.exists()


def test_the_header_survives_its_own_reader(snapshot_files: Any, store: SnapshotStore):
    """Parsed and encoded again it is the same text: the form is canonical with tiers as well."""
    for tier in PACKED:
        store.remove()
        saved = store.save(snapshot_files.FINGERPRINT, TOKENS, snapshot_files.packed(tier))
        assert isinstance(saved, Saved)
        header, _ = snapshot_files.split(saved.path.read_bytes())
        text = json.dumps(header, separators=(",", ":")).encode()
        parsed = parse_header(text)
        layout.check_layout(parsed)
        assert parsed.tier is tier
        assert parsed.encode() == text


def test_a_packed_snapshot_is_smaller(tmp_path: Path, snapshot_files: Any):
    """The point of it: each tier's file is smaller than the next finer one's."""
    rng = np.random.default_rng(5)
    rows = [rng.normal(size=(300, 128)).astype(np.float16).view(np.uint16) for _ in range(2)]
    sections = (Section(0, "K", "f16", rows[0]), Section(0, "V", "f16", rows[1]))
    state = KVState(300, (Part("dense", 0, 300, sections),))
    sizes = []
    for tier in FINEST_FIRST:
        store = SnapshotStore(tmp_path / tier.value)
        saved = store.save(snapshot_files.FINGERPRINT, range(300), pack_state(state, tier))
        assert isinstance(saved, Saved)
        sizes.append(saved.n_bytes)
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == len(sizes)
