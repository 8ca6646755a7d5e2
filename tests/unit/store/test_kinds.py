"""Recurrent memories and extra rows: kept as they are, under a feature that older readers miss."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edgellm.core import Tier
from edgellm.store.format.codec import pack_state, unpack_state
from edgellm.store.snapshots import Hit, Miss, Saved, Skipped, SnapshotStore
from edgellm.store.state import Fingerprint, KVState, PackedState, Part, Section

if TYPE_CHECKING:
    from collections.abc import Callable

    Header = dict[str, Any]

TOKENS = list(range(12))


def recurrent(n: int, *roles: str) -> Part:
    """Return a recurrent part with one section for each role, numbered in each."""
    counts: dict[str, int] = {}
    sections = []
    for role in roles:
        layer = counts.setdefault(role, 0)
        counts[role] += 1
        sections.append(Section(layer, role, "f32", np.full((1, 6), layer, np.uint32)))
    return Part("recurrent", n - 1, 1, tuple(sections))


def test_every_kind_of_memory_comes_back(
    store: SnapshotStore, fingerprint: Fingerprint, snapshot_files: Any
):
    """Full with an extra, window, recurrent and opaque parts, bit for bit."""
    state = snapshot_files.hybrid()
    saved = store.save(fingerprint, TOKENS, state)
    assert isinstance(saved, Saved), saved
    found = store.lookup(fingerprint, TOKENS)
    assert isinstance(found, Hit), found
    assert snapshot_files.same(state, found.state)
    header, _ = snapshot_files.split(saved.path.read_bytes())
    assert header["required_features"] == ["kinds-2"]
    assert store.check() == []


@pytest.mark.parametrize(
    "roles", ["", "R", "S", "RS", "RRSS", "RRRS", "SS", "RRRRRRRRRRRRSSSSSSSSSSSS"]
)
def test_a_recurrent_memory_alone(
    store: SnapshotStore, fingerprint: Fingerprint, snapshot_files: Any, roles: str
):
    """Of either kind of state any number of layers."""
    state = KVState(12, (recurrent(12, *roles),))
    assert isinstance(store.save(fingerprint, TOKENS, state), Saved)
    found = store.lookup(fingerprint, TOKENS)
    assert isinstance(found, Hit), found
    assert snapshot_files.same(state, found.state)


def test_what_uses_nothing_new_says_nothing_new(
    store: SnapshotStore, fingerprint: Fingerprint, snapshot_files: Any
):
    """Files that the first version could read are those it wrote."""
    saved = store.save(fingerprint, TOKENS, snapshot_files.state())
    assert isinstance(saved, Saved)
    header, _ = snapshot_files.split(saved.path.read_bytes())
    assert header["required_features"] == []


def test_only_keys_and_values_are_packed(
    store: SnapshotStore, fingerprint: Fingerprint, snapshot_files: Any
):
    """Recurrent states and extra rows stay exact in every tier."""
    state = snapshot_files.finite(snapshot_files.hybrid())
    half = recurrent(12)
    rows = np.full((1, 600), 0x3C00, np.uint16)
    half = replace(half, sections=(Section(0, "R", "f16", rows), Section(0, "S", "f16", rows)))
    state = KVState(12, (*state.parts, half))
    packed = pack_state(state, Tier.Q4)
    assert isinstance(packed, PackedState)
    saved = store.save(fingerprint, TOKENS, packed)
    assert isinstance(saved, Saved)
    found = store.lookup(fingerprint, TOKENS, Tier.Q4)
    assert isinstance(found, Hit), found
    assert snapshot_files.same(unpack_state(packed), found.state)
    header, _ = snapshot_files.split(saved.path.read_bytes())
    assert header["required_features"] == ["kv-codec-1", "kinds-2"]
    stored = {(row["role"], row["stored"]) for p in header["parts"] for row in p["sections"]}
    assert stored == {
        ("K", "packed"),
        ("V", "packed"),
        ("X", "exact"),
        ("R", "exact"),
        ("S", "exact"),
        ("blob", "exact"),
    }


def _section(role: str, type_name: str, shape: tuple[int, int]) -> Section:
    dtype = {"f32": np.uint32, "f16": np.uint16}.get(type_name, np.uint8)
    return Section(0, role, type_name, np.zeros(shape, dtype))


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        (replace(recurrent(12, "R"), first=10), "a recurrent part holds positions 10 to 11 of 12"),
        (replace(recurrent(12, "R"), first=10, n_tokens=2), "a recurrent part of 2 positions"),
        (recurrent(12, "S", "R"), "layer 0 S where layer 0 R belongs"),
        (recurrent(12, "R", "S", "R"), "layer 0 S where layer 1 R belongs"),
        (Part("recurrent", 11, 1, (_section("K", "f16", (1, 8)),)), "layer 0 K: f16 in a part"),
        (Part("recurrent", 11, 1, (_section("R", "u8", (1, 8)),)), "layer 0 R: u8 in a part"),
        (Part("dense", 0, 12, (_section("R", "f32", (12, 8)),)), "layer 0 R: f32 in a part"),
        (Part("dense", 0, 12, (_section("X", "f32", (12, 8)),)), "layer 0 X: f32 in a part"),
        (Part("dense", 0, 12, (_section("X", "u8", (11, 8)),)), "layer 0 X: 11 rows for 12"),
        (Part("opaque", 0, 12, (_section("X", "u8", (1, 8)),)), "layer 0 X: u8 in a part"),
        (
            Part("window", 4, 8, (_section("X", "u8", (8, 8)), _section("K", "f16", (8, 8)))),
            "layer 0 X where layer 0 K belongs",
        ),
        (
            Part("dense", 0, 12, (_section("X", "u8", (12, 8)),) * 2),
            "0 layers of K and 0 of V, 2 of X",
        ),
    ],
)
def test_what_no_reader_would_take_is_not_written(
    store: SnapshotStore, fingerprint: Fingerprint, part: Part, reason: str
):
    """The rules for the new kinds hold for writers and readers alike."""
    outcome = store.save(fingerprint, TOKENS, KVState(12, (part,)))
    assert isinstance(outcome, Skipped)
    assert outcome.failed
    assert outcome.reason.startswith(reason)


CHANGES: dict[str, tuple[Callable[[Header], Any], str]] = {
    "no_feature": (
        lambda h: h.update(required_features=[]),
        "incompatible: a section: unknown role 'X'",
    ),
    "another_feature": (
        lambda h: h.update(required_features=["kinds-3"]),
        "incompatible: requires 'kinds-3'",
    ),
    "kind": (lambda h: h["parts"][2].update(kind="ring"), "incompatible: a part: unknown kind"),
    "as_window": (lambda h: h["parts"][2].update(kind="window"), "corrupt: layer 0 R: f32 in"),
    "as_dense": (lambda h: h["parts"][2].update(kind="dense"), "corrupt: a dense part holds"),
    "later": (lambda h: h["parts"][2].update(first=10), "corrupt: a recurrent part holds"),
    "role": (lambda h: h["parts"][2]["sections"][0].update(role="S"), "corrupt: layer 0 S where"),
    "rows": (lambda h: h["parts"][2]["sections"][0].update(shape=[2, 24]), "corrupt: layer 0 R: 2"),
    "width": (lambda h: h["parts"][0]["sections"][-1].update(shape=[12, 25]), "corrupt: layer 0 X"),
}


@pytest.mark.parametrize("case", sorted(CHANGES))
def test_a_wrong_field_is_a_miss_with_its_reason(
    store: SnapshotStore, fingerprint: Fingerprint, snapshot_files: Any, case: str
):
    """The checksums are right: only the rules of the format can refuse it."""
    change, reason = CHANGES[case]
    saved = store.save(fingerprint, TOKENS, snapshot_files.hybrid())
    assert isinstance(saved, Saved)
    snapshot_files.forge(saved.path, lambda h: change(h) and None)
    found = store.lookup(fingerprint, TOKENS)
    assert isinstance(found, Miss)
    assert found.reason.startswith(reason)
    assert saved.path.exists() == reason.startswith("incompatible")


def test_a_feature_that_is_not_used_is_damage(
    store: SnapshotStore, fingerprint: Fingerprint, snapshot_files: Any
):
    """One spelling for one file."""
    for feature in ("kinds-2", "planes-1"):
        saved = store.save(fingerprint, TOKENS, snapshot_files.state())
        assert isinstance(saved, Saved)
        snapshot_files.forge(
            saved.path,
            lambda h, name=feature: h.update(required_features=[name]),
        )
        found = store.lookup(fingerprint, TOKENS)
        assert isinstance(found, Miss)
        assert found.code == "corrupt"
