"""The same tokens cut elsewhere are another snapshot: rows depend on where decoding began anew."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edgellm.core import Tier
from edgellm.store.disk import names
from edgellm.store.packs.importing import add_pack
from edgellm.store.packs.imports import Imports
from edgellm.store.packs.pack import digest_of, write_pack
from edgellm.store.packs.pack_format import Manifest, PackedFile
from edgellm.store.packs.probe import take_probe
from edgellm.store.sealed.keys import StoreKey
from edgellm.store.shared.remote import Seals
from edgellm.store.shared.sharing import SharedTier
from edgellm.store.snapshots import Hit, Miss, Saved, Skipped, SnapshotStore

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from edgellm.store.state import Fingerprint

TOKENS = list(range(100, 140))
CUTS = (4, 12, 20)
TEXT = "ab" * 32
KEYS = [None, StoreKey(bytes(range(32)))]


class Place:
    """A shared place in memory."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def size(self, name: str) -> int | None:
        """Return the length of a value."""
        return len(self.values[name]) if name in self.values else None

    def read(self, name: str, start: int, n_bytes: int) -> bytes:
        """Return a piece of a value."""
        return self.values[name][start : start + n_bytes]

    def write(self, name: str, pieces: Sequence[bytes]) -> None:
        """Keep a value."""
        self.values[name] = b"".join(pieces)

    def close(self) -> None:
        """Do nothing."""


@pytest.fixture
def family(store: SnapshotStore, fingerprint: Fingerprint, snapshot_files: Any) -> dict[int, Saved]:
    """Save what a prompt of three cuts leaves: each longer one leans on the one before."""
    saved: dict[int, Saved] = {}
    state, base = snapshot_files.hybrid(12), None
    for n in (12, 20, 40):
        state = state if n == 12 else snapshot_files.grown(state, n, seed=n)
        outcome = store.save(fingerprint, TOKENS[:n], state, base=base, cuts=CUTS)
        assert isinstance(outcome, Saved)
        saved[n], base = outcome, outcome.anchor
    return saved


@pytest.mark.parametrize("key", KEYS, ids=["plain", "encrypted"])
def test_each_way_of_cutting_has_a_snapshot_of_its_own(
    tmp_path: Path, fingerprint: Fingerprint, snapshot_files: Any, key: StoreKey | None
):
    """Both are kept side by side, and neither is ever given for the other."""
    store = SnapshotStore(tmp_path, key=key)
    states = {cuts: snapshot_files.state(seed=len(cuts)) for cuts in ((), (4,), (5,), (4, 5))}
    for cuts, state in states.items():
        assert isinstance(store.lookup(fingerprint, TOKENS[:12], cuts=cuts), Miss)
        assert isinstance(store.save(fingerprint, TOKENS[:12], state, cuts=cuts), Saved)
    for cuts, state in states.items():
        found = store.lookup(fingerprint, TOKENS[:12], cuts=cuts)
        assert isinstance(found, Hit)
        assert snapshot_files.same(state, found.state)
        assert cuts == found.info.cuts
        assert store.key(fingerprint, TOKENS[:12], cuts=cuts) == found.info.key
    assert Miss("not stored", "not_stored") == store.lookup(fingerprint, TOKENS[:12], cuts=(6,))
    assert store.check() == []


def test_cuts_at_the_end_and_behind_it_belong_to_longer_prefixes(
    store: SnapshotStore, fingerprint: Fingerprint, snapshot_files: Any
):
    """What comes after a prefix does not change it."""
    store.save(fingerprint, TOKENS[:12], snapshot_files.state(), cuts=(4, 12, 20))
    assert isinstance(store.lookup(fingerprint, TOKENS[:12], cuts=(4,)), Hit)
    assert isinstance(store.lookup(fingerprint, TOKENS[:12], cuts=(4, 13)), Hit)
    assert isinstance(store.lookup(fingerprint, TOKENS[:12], cuts=(4, 11)), Miss)


def test_no_tokens_pass_for_cuts(fingerprint: Fingerprint):
    """Ids and cuts are told apart in what is hashed."""
    ids = names.token_ids([7, 8, 9])
    found = {names.identity_of(ids), names.identity_of(ids, (1,)), names.identity_of(ids, (1, 2))}
    found |= {names.identity_of(names.token_ids([7, 8, 9, n]), ()) for n in (0, 1, 2)}
    assert 6 == len(found)
    assert names.identity_of(ids) == ids  # stores from before stay valid


@pytest.mark.parametrize("cuts", [(0,), (-1, 4), (5, 4), (4, 4)])
def test_cuts_that_do_not_ascend_are_a_mistake_of_the_caller(
    store: SnapshotStore, fingerprint: Fingerprint, snapshot_files: Any, cuts: tuple[int, ...]
):
    """They are refused at once, by every question."""
    for ask in (store.lookup, store.lease, store.key, store.explain):
        with pytest.raises(ValueError, match="cuts"):
            ask(fingerprint, TOKENS[:12], cuts=cuts)
    with pytest.raises(ValueError, match="cuts"):
        store.longest(fingerprint, TOKENS, {12: cuts})
    with pytest.raises(ValueError, match="cuts"):
        store.save(fingerprint, TOKENS[:12], snapshot_files.state(), cuts=cuts)


def test_the_longest_is_asked_for_with_its_own_cuts(
    store: SnapshotStore, fingerprint: Fingerprint, family: dict[int, Saved]
):
    """Which lengths are looked for and where each was cut are two things."""
    found = store.longest(fingerprint, TOKENS, dict.fromkeys((12, 20, 40), CUTS))
    assert isinstance(found, Hit)
    assert (40, CUTS) == (found.info.n_tokens, found.info.cuts)
    found = store.longest(fingerprint, TOKENS, {12: (4,), 20: (4,), 40: (4, 12, 21)})
    assert isinstance(found, Hit)
    assert (12, (4,)) == (found.info.n_tokens, found.info.cuts)
    assert isinstance(store.longest(fingerprint, TOKENS, [12, 20, 40]), Miss)


def test_a_base_has_the_first_cuts_of_what_leans_on_it(
    store: SnapshotStore, fingerprint: Fingerprint, family: dict[int, Saved], snapshot_files: Any
):
    """A file that was cut elsewhere before is written whole, and so can be read."""
    assert [None, 12, 20] == [
        entry.parent and entry.parent.n_tokens
        for entry in sorted(store.entries(), key=lambda entry: entry.n_tokens)
    ]
    state = snapshot_files.state(40)
    other = store.save(fingerprint, TOKENS, state, base=family[20].anchor, cuts=(5, 12, 20))
    assert isinstance(other, Saved)
    found = store.lookup(fingerprint, TOKENS, cuts=(5, 12, 20))
    assert isinstance(found, Hit)
    assert found.info.parent is None
    assert snapshot_files.same(state, found.state)


def test_a_file_that_leans_on_one_cut_elsewhere_is_damaged(
    store: SnapshotStore, fingerprint: Fingerprint, family: dict[int, Saved], snapshot_files: Any
):
    """Its key cannot say so, its header can."""
    path = family[20].path
    snapshot_files.forge(path, lambda header: header | {"cuts": [5, 12]})
    wrong = store.files.path(fingerprint.digest(), names.token_ids(TOKENS[:20]), (5, 12))
    path.rename(wrong)
    found = store.lookup(fingerprint, TOKENS[:20], cuts=(5, 12))
    assert Miss("corrupt: its base was cut elsewhere", "corrupt") == found


def test_a_file_under_the_name_of_other_cuts_is_not_used(
    store: SnapshotStore, fingerprint: Fingerprint, snapshot_files: Any
):
    """Not in either direction; it is left alone, and `check` finds it."""
    cut = store.save(fingerprint, TOKENS[:12], snapshot_files.state(seed=1), cuts=(4,))
    plain = store.save(fingerprint, TOKENS[:12], snapshot_files.state(seed=2))
    assert isinstance(cut, Saved)
    assert isinstance(plain, Saved)
    shutil.copyfile(plain.path, aside := plain.path.with_name("aside"))
    shutil.copyfile(cut.path, plain.path)
    shutil.copyfile(aside, cut.path)
    aside.unlink()
    for cuts in ((), (4,)):
        found = store.lookup(fingerprint, TOKENS[:12], cuts=cuts)
        assert isinstance(found, Miss)
        assert "foreign_tokens" == found.code
    assert 2 == len(store.check())


@pytest.mark.parametrize(
    "cuts", [[], [0], [-4], [4, 4], [5, 4], [12], [4, 12], [True], [4.0], ["4"], [[4]], {}, None, 4]
)
def test_a_list_of_cuts_that_cannot_be_is_a_miss(
    store: SnapshotStore, fingerprint: Fingerprint, snapshot_files: Any, cuts: object
):
    """Whoever wrote it: the header's own checksum is right."""
    saved = store.save(fingerprint, TOKENS[:12], snapshot_files.state(), cuts=(4, 8))
    assert isinstance(saved, Saved)
    snapshot_files.forge(saved.path, lambda header: header | {"cuts": cuts})
    found = store.lookup(fingerprint, TOKENS[:12], cuts=(4, 8))
    assert isinstance(found, Miss)
    assert "corrupt" == found.code


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda h: {name: h[name] for name in h if name != "cuts"}, "corrupt"),
        (lambda h: h | {"required_features": []}, "incompatible"),
        (lambda h: h | {"required_features": ["cuts-1", "cuts-1"]}, "corrupt"),
        (lambda h: h | {"required_features": ["cuts-2"]}, "incompatible"),
        (lambda h: {"cuts": h.pop("cuts"), **h}, "corrupt"),
        (lambda h: h | {"cuts": [4, 9]}, "foreign_tokens"),
        (lambda h: h | {"cuts": [4]}, "foreign_tokens"),
    ],
)
def test_the_feature_and_its_member_belong_together(
    store: SnapshotStore, fingerprint: Fingerprint, snapshot_files: Any, change: Any, code: str
):
    """One without the other, elsewhere, or with other cuts than asked for is a miss."""
    saved = store.save(fingerprint, TOKENS[:12], snapshot_files.state(), cuts=(4, 8))
    assert isinstance(saved, Saved)
    snapshot_files.forge(saved.path, change)
    found = store.lookup(fingerprint, TOKENS[:12], cuts=(4, 8))
    assert isinstance(found, Miss)
    assert code == found.code


def test_a_text_leads_to_the_cuts_too(
    store: SnapshotStore, fingerprint: Fingerprint, snapshot_files: Any
):
    """Nobody can tell from a text where the conversation was cut."""
    store.save(fingerprint, TOKENS[:12], snapshot_files.state(), text_sha256=TEXT, cuts=(4, 7))
    assert tuple(TOKENS[:12]) == store.by_text(fingerprint, TEXT)
    assert (4, 7) == store.cuts_by_text(fingerprint, TEXT)
    assert store.cuts_by_text(fingerprint, "cd" * 32) is None


def test_who_cuts_elsewhere_reads_for_himself(store: SnapshotStore, fingerprint: Fingerprint):
    """A lease keeps away only those who wait for the same snapshot."""
    with store.lease(fingerprint, TOKENS[:12], cuts=(4,)) or pytest.fail("taken"):
        assert store.lease(fingerprint, TOKENS[:12], cuts=(4,)) is None
        assert not store.await_other(fingerprint, TOKENS[:12], 0.01, cuts=(4,))
        assert store.await_other(fingerprint, TOKENS[:12], 0.01, cuts=(5,))
        with store.lease(fingerprint, TOKENS[:12]) or pytest.fail("taken"):
            pass


def test_the_same_tokens_cut_elsewhere_are_told(
    store: SnapshotStore, fingerprint: Fingerprint, snapshot_files: Any
):
    """Nearer than anything else, in both directions."""
    store.save(fingerprint, TOKENS[:12], snapshot_files.state(), cuts=(4,))
    store.save(fingerprint, TOKENS[:11], snapshot_files.state(11))
    for asked in ((), (5,)):
        near = store.explain(fingerprint, TOKENS[:12], cuts=asked).near
        assert near is not None
        assert (4,) == near.cuts
        assert (None, ()) == (near.first_differing, near.changes)
    assert "hit" == store.explain(fingerprint, TOKENS[:12], cuts=(4,)).code
    near = store.explain(fingerprint, TOKENS[:11], cuts=(3,)).near
    assert near is not None
    assert () == near.cuts


def test_a_shared_place_names_them_apart(
    tmp_path: Path, store: SnapshotStore, fingerprint: Fingerprint, family: dict[int, Saved]
):
    """What leans on others comes with them, and only to who cuts at the same places."""
    place, seals = Place(), Seals(b"a secret of some length")
    options: dict[str, Any] = {"refusal": lambda: "", "max_bytes": 1 << 20, "writes_back": True}
    for n, saved in family.items():
        tier = SharedTier(store.files, place, seals, **options)
        assert tier.offer(fingerprint, TOKENS[:n], saved.path, CUTS)
    assert 3 == len(place.values)
    there = SnapshotStore(tmp_path / "there")
    tier = SharedTier(there.files, place, seals, **options)
    for asked in ([40], {40: ()}, {40: (4, 12)}, {40: (5, 12, 20)}):
        assert not tier.fetch(fingerprint, TOKENS, asked, Tier.EXACT, lambda _: 60.0)
    assert tier.fetch(fingerprint, TOKENS, {40: CUTS}, Tier.EXACT, lambda _: 60.0)
    for n in family:
        assert isinstance(there.lookup(fingerprint, TOKENS[:n], cuts=CUTS), Hit)
        assert isinstance(there.lookup(fingerprint, TOKENS[:n]), Miss)


def test_a_pack_takes_the_cuts_along(
    tmp_path: Path, store: SnapshotStore, fingerprint: Fingerprint, family: dict[int, Saved]
):
    """They are in the key that the manifest names; what waits is found by who cuts there."""
    probe = take_probe(7, np.arange(5, dtype=np.float32))
    entries = sorted(store.entries(), key=lambda entry: entry.n_tokens)
    files = [
        PackedFile(
            entry.key,
            entry.n_tokens,
            *digest_of(store.files, entry.path),
            "" if entry.parent is None else entry.parent.key,
            probe,
        )
        for entry in entries
    ]
    manifest = Manifest(fingerprint.hard, 1_700_000_000, tuple(files))
    pack = tmp_path / "prefix.ekp"
    write_pack(pack, manifest, store.files, [entry.path for entry in entries])
    other = SnapshotStore(tmp_path / "other")
    add_pack(other.files, pack, [], allow_unsigned=True)
    imports, ids = Imports(other.files), names.token_ids(TOKENS)
    assert imports.waiting(fingerprint.digest(), ids) is None
    assert imports.waiting(fingerprint.digest(), ids, (4, 12)) is None
    waiting = imports.waiting(fingerprint.digest(), ids, CUTS)
    assert waiting is not None
    assert imports.admit(waiting)
    for n in family:
        assert isinstance(other.lookup(fingerprint, TOKENS[:n], cuts=CUTS), Hit)
        assert isinstance(other.lookup(fingerprint, TOKENS[:n]), Miss)


def test_what_is_stored_with_the_same_cuts_is_skipped(
    store: SnapshotStore, fingerprint: Fingerprint, family: dict[int, Saved], snapshot_files: Any
):
    """Saving again changes nothing, and the anchor is given where the bits are the same."""
    again = store.save(fingerprint, TOKENS[:12], snapshot_files.hybrid(12), cuts=CUTS)
    assert Skipped("already stored", anchor=family[12].anchor) == again
