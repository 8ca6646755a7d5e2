"""Snapshots that lean on shorter ones: the same bits as whole ones, or a miss that says why."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edgellm.core import Tier
from edgellm.store.file import chain
from edgellm.store.format.codec import pack_state, unpack_state
from edgellm.store.snapshots import Hit, Miss, Saved, Skipped, SnapshotStore
from edgellm.store.state import Anchor, Fingerprint, KVState, PackedState

if TYPE_CHECKING:
    from collections.abc import Callable

TOKENS = list(range(100, 140))
CUTS = (8, 12, 20, 33)


class Family:
    """A store with a chain of snapshots, each leaning on the one before."""

    def __init__(self, store: SnapshotStore, files: Any, cuts: tuple[int, ...] = CUTS) -> None:
        self.store = store
        self.fingerprint = files.FINGERPRINT
        self.states: dict[int, KVState] = {}
        self.saved: dict[int, Saved] = {}
        state, base = None, None
        for seed, n in enumerate(cuts):
            state = files.hybrid(n, seed) if state is None else files.grown(state, n, seed)
            outcome = store.save(files.FINGERPRINT, TOKENS[:n], state, base=base)
            assert isinstance(outcome, Saved), outcome
            self.states[n], self.saved[n], base = state, outcome, outcome.anchor

    def lookup(self, n: int) -> Hit | Miss:
        """Look the snapshot of the first `n` tokens up."""
        return self.store.lookup(self.fingerprint, TOKENS[:n])


@pytest.fixture
def family(store: SnapshotStore, snapshot_files: Any) -> Family:
    """Save a chain of four."""
    return Family(store, snapshot_files)


def test_each_of_a_chain_comes_back_whole(family: Family, snapshot_files: Any):
    """Rows of all files land in one state, windows and recurrent parts are the last one's own."""
    for n in CUTS:
        found = family.lookup(n)
        assert isinstance(found, Hit), found
        assert snapshot_files.same(family.states[n], found.state)
        assert family.saved[n].anchor == found.anchor
        assert found.anchor.n_tokens == n
    assert [entry.parent for entry in sorted(family.store.entries(), key=lambda e: e.n_tokens)] == [
        None,
        *(family.saved[n].anchor for n in CUTS[:-1]),
    ]
    assert family.store.check() == []


def test_a_file_that_leans_keeps_only_its_own_rows(family: Family, snapshot_files: Any):
    """The point of it: what the base holds is not written again."""
    header, _ = snapshot_files.split(family.saved[20].path.read_bytes())
    assert header["required_features"] == ["kinds-2", "delta-1"]
    anchor = family.saved[12].anchor
    assert header["parent"] == {
        "key": anchor.key,
        "n_tokens": 12,
        "identity": anchor.identity,
    }
    dense, window, recurrent, opaque = header["parts"]
    assert (dense["first"], dense["n_tokens"]) == (12, 8)
    assert {row["shape"][0] for row in dense["sections"]} == {8}
    assert (window["first"], window["n_tokens"]) == (15, 5)
    assert (recurrent["first"], recurrent["n_tokens"]) == (19, 1)
    assert (opaque["first"], opaque["n_tokens"]) == (0, 20)


def test_a_base_that_is_gone_is_a_miss_and_so_is_all_above(family: Family):
    """What leans on nothing is removed when it is asked for; what does not lean stays."""
    family.saved[12].path.unlink()
    found = family.lookup(33)
    key = family.saved[12].anchor.key
    assert found == Miss(f"incomplete: leans on {key}, which is gone", "base_missing")
    assert not family.saved[33].path.exists()
    assert isinstance(family.lookup(20), Miss)
    assert isinstance(family.lookup(8), Hit)


def test_a_base_that_was_replaced_is_another_one(family: Family, snapshot_files: Any):
    """The same tokens with other bits under the same name: identity tells."""
    family.saved[8].path.unlink()
    again = family.store.save(family.fingerprint, TOKENS[:8], snapshot_files.hybrid(8, 99))
    assert isinstance(again, Saved)
    assert again.anchor.key == family.saved[8].anchor.key
    assert again.anchor.identity != family.saved[8].anchor.identity
    found = family.lookup(12)
    assert isinstance(found, Miss)
    assert (found.code, found.reason.endswith("which is another by now")) == ("base_missing", True)
    assert not family.saved[12].path.exists()
    assert isinstance(family.lookup(8), Hit)


def test_damage_in_a_base_is_its_own_fault_and_everybodys_miss(family: Family):
    """The damaged file is removed with the one that was asked for; others go when asked for."""
    path = family.saved[8].path
    content = bytearray(path.read_bytes())
    content[-200] ^= 1  # in its own opaque part, which nobody above needs
    path.write_bytes(content)
    assert isinstance(family.lookup(33), Hit)
    header_bytes = int.from_bytes(content[8:12], "little")
    content[header_bytes + 64 + 200] ^= 1  # in the rows of the dense part
    path.write_bytes(content)
    found = family.lookup(33)
    assert isinstance(found, Miss)
    assert found.code == "corrupt"
    assert found.reason.startswith(f"corrupt: in {path.stem}, which it leans on: section ")
    assert not path.exists()
    assert not family.saved[33].path.exists()
    assert family.saved[20].path.exists()


def test_damage_in_a_base_has_the_number_it_has_there(store: SnapshotStore, snapshot_files: Any):
    """Sections that nobody reads are counted: here those of a window before the dense part."""

    def turned(state: KVState) -> KVState:
        dense, window, *others = state.parts
        return KVState(state.n_tokens, (window, dense, *others))

    short = snapshot_files.hybrid(8, 1)
    base = store.save(snapshot_files.FINGERPRINT, TOKENS[:8], turned(short))
    assert isinstance(base, Saved)
    state = turned(snapshot_files.grown(short, 12, 2))
    store.save(snapshot_files.FINGERPRINT, TOKENS[:12], state, base=base.anchor)
    content = bytearray(base.path.read_bytes())
    first_of_dense, _ = snapshot_files.extents(content)[3]  # after the tokens, K and V
    content[first_of_dense] ^= 1
    base.path.write_bytes(content)
    found = store.lookup(snapshot_files.FINGERPRINT, TOKENS[:12])
    assert isinstance(found, Miss)
    assert "which it leans on: section 3 at" in found.reason


def test_check_names_what_leans_on_nothing_and_mends_it(family: Family):
    """One pass of `fix` leaves a store in which everything can be used."""
    family.saved[8].path.unlink()
    problems = {f.path: f.problem for f in family.store.check()}
    assert problems.keys() == {family.saved[n].path for n in CUTS[1:]}
    assert all(text.startswith("incomplete: leans on ") for text in problems.values())
    assert all(finding.fixed for finding in family.store.check(fix=True))
    assert family.store.check() == []
    assert list(family.store.entries()) == []


def test_check_mends_a_chain_with_a_damaged_middle(family: Family):
    """The damaged file and what leans on it go; what it leans on stays."""
    path = family.saved[12].path
    content = bytearray(path.read_bytes())
    content[int.from_bytes(content[8:12], "little") + 300] ^= 1
    path.write_bytes(content)
    family.store.check(fix=True)
    assert family.store.check() == []
    assert [entry.n_tokens for entry in family.store.entries()] == [8]


def _gone(family: Family, anchor: Anchor) -> Anchor:
    family.saved[anchor.n_tokens].path.unlink()
    return anchor


@pytest.mark.parametrize(
    "spoil",
    [
        _gone,
        lambda _, anchor: dataclasses.replace(anchor, identity="0" * 32),
        lambda _, anchor: dataclasses.replace(anchor, key="0" * 32),
        lambda _, anchor: dataclasses.replace(anchor, n_tokens=anchor.n_tokens - 1),
        lambda _, anchor: dataclasses.replace(anchor, n_tokens=33),
        lambda _, anchor: dataclasses.replace(anchor, n_tokens=1000),
    ],
)
def test_a_base_that_cannot_be_leant_on_is_left_alone(
    family: Family, snapshot_files: Any, spoil: Callable[[Family, Anchor], Anchor]
):
    """The state is kept whole instead: saving never fails for that."""
    base = spoil(family, family.saved[20].anchor)
    family.store.remove([family.saved[33].anchor.key])
    state = family.states[33]
    saved = family.store.save(family.fingerprint, TOKENS[:33], state, base=base)
    assert isinstance(saved, Saved)
    found = family.lookup(33)
    assert isinstance(found, Hit)
    assert found.info.parent is None
    assert snapshot_files.same(state, found.state)


@pytest.mark.parametrize("tier", [Tier.EXACT, Tier.Q4])
def test_a_state_without_dense_parts_is_written_whole(
    store: SnapshotStore, snapshot_files: Any, tier: Tier
):
    """There is nothing that its base could keep for it, packed or not."""
    states = []
    for n in (12, 20):
        window = snapshot_files.finite(snapshot_files.state(n)).parts[1]
        state = KVState(n, (window,))
        states.append(state if tier is Tier.EXACT else pack_state(state, tier))
    base = store.save(snapshot_files.FINGERPRINT, TOKENS[:12], states[0])
    assert isinstance(base, Saved)
    saved = store.save(snapshot_files.FINGERPRINT, TOKENS[:20], states[1], base=base.anchor)
    assert isinstance(saved, Saved), saved
    found = store.lookup(snapshot_files.FINGERPRINT, TOKENS[:20], tier)
    assert isinstance(found, Hit), found
    assert (found.info.parent, found.info.tier) == (None, tier)


def test_a_chain_ends_after_32_files(store: SnapshotStore, snapshot_files: Any):
    """The 33rd is whole again, and the chain starts anew from there."""
    cuts = tuple(range(2, 2 + chain.MAX_LINKS + 2))
    family = Family(store, snapshot_files, cuts)
    whole = [entry.n_tokens for entry in store.entries() if entry.parent is None]
    assert sorted(whole) == [cuts[0], cuts[chain.MAX_LINKS]]
    for n in (cuts[chain.MAX_LINKS - 1], cuts[-1]):
        found = family.lookup(n)
        assert isinstance(found, Hit), found
        assert snapshot_files.same(family.states[n], found.state)


def test_longer_chains_than_any_writer_makes_are_damage(
    family: Family, monkeypatch: pytest.MonkeyPatch
):
    """A file that was made to lean on too many opens no more of them than allowed."""
    monkeypatch.setattr(chain, "MAX_LINKS", 3)
    found = family.lookup(33)
    assert found == Miss("corrupt: more than 3 files in a row", "corrupt")


def test_a_file_that_leans_on_itself_is_refused(family: Family, snapshot_files: Any):
    """Nothing can name its own checksum; a forged name is another identity."""
    path = family.saved[12].path
    snapshot_files.forge(path, lambda h: h["parent"].update(key=path.stem) or None)
    found = family.lookup(12)
    assert isinstance(found, Miss)
    assert found.code == "base_missing"


HEADER_CHANGES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "null": (lambda h: h.update(parent=None), "corrupt: parent is not an object"),
    "text": (lambda h: h.update(parent="ab" * 16), "corrupt: parent is not an object"),
    "no_key": (lambda h: h["parent"].pop("key") and None, "corrupt: parent: 'key' is missing"),
    "more": (lambda h: h["parent"].update(x=1), "incompatible: parent: unknown field 'x'"),
    "key_upper": (lambda h: h["parent"].update(key="AB" * 16), "corrupt: parent: 'key'"),
    "longer": (lambda h: h["parent"].update(n_tokens=20), "corrupt: 20 tokens lean on 20"),
    "shorter": (lambda h: h["parent"].update(n_tokens=11), "corrupt: a dense part holds positions"),
    "zero": (lambda h: h["parent"].update(n_tokens=0), "corrupt: parent: 'n_tokens'"),
    "feature": (
        lambda h: h.update(required_features=["kinds-2"]),
        "incompatible: field 'parent' is set",
    ),
    "order": (
        lambda h: h.update(required_features=["delta-1", "kinds-2"]),
        "corrupt: tier 'exact' with",
    ),
    "unused": (
        lambda h: h.update(required_features=["kinds-2", "delta-1", "planes-1"]),
        "corrupt: a section: 'stored' is missing",
    ),
    "nothing_cut": (lambda h: h.update(parts=h["parts"][1:]), "corrupt: it leans on another file"),
    "later": (
        lambda h: h.update(required_features=["kinds-2", "delta-2"]),
        "incompatible: requires 'delta-2'",
    ),
}


@pytest.mark.parametrize("case", sorted(HEADER_CHANGES))
def test_a_wrong_parent_is_a_miss_with_its_reason(family: Family, snapshot_files: Any, case: str):
    """With checksums that are right, only the rules of the format can refuse it."""
    change, reason = HEADER_CHANGES[case]
    snapshot_files.forge(family.saved[20].path, lambda h: change(h) and None)
    found = family.lookup(20)
    assert isinstance(found, Miss)
    assert found.reason.startswith(reason)


def test_a_base_of_other_layers_is_damage(family: Family, snapshot_files: Any):
    """Identity and length agree, the rows do not follow each other: a forger's work."""
    path = family.saved[12].path
    base = family.store.save(
        family.fingerprint, TOKENS[5:13], snapshot_files.state(8), lossless=False
    )
    assert isinstance(base, Saved)
    forged = {"key": base.anchor.key, "identity": base.anchor.identity}
    snapshot_files.forge(path, lambda h: h["parent"].update(forged))
    found = family.lookup(12)
    assert found == Miss("corrupt: its base has other layers", "corrupt")


def test_windows_of_a_base_are_its_own(family: Family, snapshot_files: Any):
    """Nobody reads them, so nobody asks how many layers they have."""
    base = family.states[8]
    window = dataclasses.replace(base.parts[1], sections=base.parts[1].sections[:1])
    other = KVState(8, (base.parts[0], window, *base.parts[2:]))
    family.saved[8].path.unlink()
    saved = family.store.save(family.fingerprint, TOKENS[:8], other)
    assert isinstance(saved, Saved)
    forged = {"identity": saved.anchor.identity}
    snapshot_files.forge(family.saved[12].path, lambda h: h["parent"].update(forged))
    found = family.lookup(12)
    assert isinstance(found, Hit), found
    assert snapshot_files.same(family.states[12], found.state)


def test_a_base_of_other_tokens_is_damage(family: Family, snapshot_files: Any):
    """The tokens of a base are compared with the first of those that lean on it."""
    other = family.store.save(family.fingerprint, TOKENS[5:13], family.states[8])
    assert isinstance(other, Saved)
    forged = {"key": other.anchor.key, "identity": other.anchor.identity}
    snapshot_files.forge(family.saved[12].path, lambda h: h["parent"].update(forged))
    assert family.lookup(12) == Miss("corrupt: it leans on other tokens than its own", "corrupt")


def test_a_base_of_another_model_is_damage(family: Family, snapshot_files: Any):
    """A file taken over from another model's folder is no base."""
    model = Fingerprint((("model", "cd" * 32),))
    other = family.store.save(model, TOKENS[:8], family.states[8])
    assert isinstance(other, Saved)
    other.path.replace(family.saved[8].path)
    forged = {"identity": other.anchor.identity}
    snapshot_files.forge(family.saved[12].path, lambda h: h["parent"].update(forged))
    found = family.lookup(12)
    assert found == Miss("corrupt: its base is of another model or engine", "corrupt")


def test_soft_changes_of_a_base_are_told(store: SnapshotStore, snapshot_files: Any):
    """Rows that were computed with other threads stay so, in whatever leans on them."""
    before = snapshot_files.FINGERPRINT
    now = Fingerprint(before.hard, (("threads", "4"),))
    short = snapshot_files.hybrid(8, 1)
    base = store.save(before, TOKENS[:8], short)
    assert isinstance(base, Saved)
    state = snapshot_files.grown(short, 12, 2)
    assert isinstance(store.save(now, TOKENS[:12], state, base=base.anchor), Saved)
    found = store.lookup(now, TOKENS[:12])
    assert isinstance(found, Hit)
    assert found.soft_changes == ("threads: 2, now 4",)


def test_already_stored_gives_an_anchor_only_for_the_same_bits(family: Family, snapshot_files: Any):
    """Somebody else may have read the prompt with other threads: then nothing leans on it."""
    base = family.saved[8].anchor
    state = family.states[12]
    again = family.store.save(family.fingerprint, TOKENS[:12], state, base=base)
    assert again == Skipped("already stored", anchor=family.saved[12].anchor)
    other = snapshot_files.grown(family.states[8], 12, 77)
    again = family.store.save(family.fingerprint, TOKENS[:12], other, base=base)
    assert again == Skipped("already stored", anchor=None)
    again = family.store.save(family.fingerprint, TOKENS[:12], state)
    assert again == Skipped("already stored", anchor=None)
    again = family.store.save(family.fingerprint, TOKENS[:8], family.states[8])
    assert again == Skipped("already stored", anchor=base)


def test_what_leans_on_nothing_is_written_again(family: Family, snapshot_files: Any):
    """A file that can never be used does not count as stored."""
    family.saved[8].path.unlink()
    outcome = family.store.save(family.fingerprint, TOKENS[:12], family.states[12])
    assert isinstance(outcome, Saved)
    found = family.lookup(12)
    assert isinstance(found, Hit)
    assert snapshot_files.same(family.states[12], found.state)


def test_the_longest_stored_prefix_is_found(family: Family, snapshot_files: Any):
    """Cuts in any order; without any of them, the longest one's reason."""
    store, fingerprint = family.store, family.fingerprint
    found = store.longest(fingerprint, TOKENS, [8, 30, 12, 39, 12])
    assert isinstance(found, Hit)
    assert found.info.n_tokens == 12
    assert snapshot_files.same(family.states[12], found.state)
    assert store.longest(fingerprint, TOKENS, [9, 39]) == Miss("not stored", "not_stored")
    assert store.longest(fingerprint, TOKENS, []) == Miss("no prefix to look for", "not_stored")
    family.saved[20].path.unlink()
    found = store.longest(fingerprint, TOKENS, [33, 34])
    assert found == Miss("not stored", "not_stored")
    assert not family.saved[33].path.exists()
    for cuts in ([0], [41], [-1]):
        with pytest.raises(ValueError, match="cuts"):
            store.longest(fingerprint, TOKENS, cuts)


@pytest.mark.parametrize("tier", [Tier.Q8, Tier.Q4])
def test_rounded_snapshots_lean_on_rounded_ones(
    store: SnapshotStore, snapshot_files: Any, tier: Tier
):
    """Only new rows are packed, and what comes back is what the saving run went on with."""
    fingerprint, tokens = snapshot_files.FINGERPRINT, list(range(600))
    whole = snapshot_files.smooth(600)
    rows = [np.array(s.rows[:300]) for s in whole.parts[0].sections]
    sections = tuple(
        dataclasses.replace(s, rows=r) for s, r in zip(whole.parts[0].sections, rows, strict=True)
    )
    first = dataclasses.replace(whole.parts[0], n_tokens=300, sections=sections)
    packed = pack_state(KVState(300, (first,)), tier)
    assert isinstance(packed, PackedState)
    base = store.save(fingerprint, tokens[:300], packed)
    assert isinstance(base, Saved)
    held = unpack_state(packed)
    longer = tuple(
        dataclasses.replace(s, rows=np.concatenate((h.rows, s.rows[300:])))
        for h, s in zip(held.parts[0].sections, whole.parts[0].sections, strict=True)
    )
    state = KVState(600, (dataclasses.replace(whole.parts[0], sections=longer),))
    more = pack_state(state, tier, base_tokens=300)
    assert isinstance(more, PackedState)
    assert (more.parts[0].first, more.parts[0].n_tokens) == (300, 300)
    expected = unpack_state(more, state)
    saved = store.save(fingerprint, tokens, more, base=base.anchor)
    assert isinstance(saved, Saved)
    assert saved.n_bytes < base.n_bytes * 1.1
    found = store.lookup(fingerprint, tokens, tier)
    assert isinstance(found, Hit), found
    assert snapshot_files.same(expected, found.state)
    with pytest.raises(ValueError, match="its base is not given"):
        unpack_state(more)
    base.path.unlink()
    saved.path.unlink()
    outcome = store.save(fingerprint, tokens, more, base=base.anchor)
    assert outcome == Skipped("what it leans on is gone", failed=True)


def test_a_finer_state_does_not_lean_on_a_coarser_one(store: SnapshotStore, snapshot_files: Any):
    """Who asks for the very bits would otherwise get rounded ones from below."""
    fingerprint = snapshot_files.FINGERPRINT
    packed = snapshot_files.packed(Tier.Q4)
    base = store.save(fingerprint, TOKENS[:12], packed)
    assert isinstance(base, Saved)
    state = snapshot_files.state(20)
    saved = store.save(fingerprint, TOKENS[:20], state, base=base.anchor)
    assert isinstance(saved, Saved)
    found = store.lookup(fingerprint, TOKENS[:20])
    assert isinstance(found, Hit)
    assert found.info.parent is None


def test_a_memory_without_full_layers_is_kept_whole(store: SnapshotStore, snapshot_files: Any):
    """Windows and recurrent states are nowhere in a shorter snapshot."""
    fingerprint = snapshot_files.FINGERPRINT
    parts = snapshot_files.hybrid(12).parts[1:]
    base = store.save(fingerprint, TOKENS[:8], KVState(8, snapshot_files.hybrid(8).parts[1:]))
    assert isinstance(base, Saved)
    saved = store.save(fingerprint, TOKENS[:12], KVState(12, parts), base=base.anchor)
    assert isinstance(saved, Saved)
    base.path.unlink()
    assert isinstance(store.lookup(fingerprint, TOKENS[:12]), Hit)


def test_what_is_removed_while_it_is_read_stays_readable(family: Family, snapshot_files: Any):
    """Eviction between opening and reading costs the next reader something, not this one."""
    opened = []

    def landing(outline: Any) -> None:
        opened.append(outline)
        assert family.store.remove() == len(CUTS)

    found = family.store.lookup(family.fingerprint, TOKENS[:33], landing=landing)
    assert isinstance(found, Hit), found
    assert len(opened) == 1
    assert snapshot_files.same(family.states[33], found.state)
    assert family.lookup(33) == Miss("not stored", "not_stored")


def test_what_is_replaced_while_it_is_read_is_what_was_opened(family: Family, snapshot_files: Any):
    """A writer puts another file in its place; the reader goes on with the one it has."""
    other = snapshot_files.hybrid(8, 50)

    def landing(_: Any) -> None:
        family.store.remove([family.saved[8].anchor.key])
        assert isinstance(family.store.save(family.fingerprint, TOKENS[:8], other), Saved)

    found = family.store.lookup(family.fingerprint, TOKENS[:12], landing=landing)
    assert isinstance(found, Hit), found
    assert snapshot_files.same(family.states[12], found.state)
    again = family.lookup(12)
    assert isinstance(again, Miss)
    assert again.code == "base_missing"
    replaced = family.lookup(8)
    assert isinstance(replaced, Hit)
    assert snapshot_files.same(other, replaced.state)
