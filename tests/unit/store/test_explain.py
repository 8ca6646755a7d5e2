"""Why the store has nothing: the nearest snapshot, and in what it differs."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from edgellm.core import Tier
from edgellm.store import explain as explain_module
from edgellm.store.explain import FieldChange
from edgellm.store.state import Fingerprint

if TYPE_CHECKING:
    from edgellm.store.snapshots import Saved, SnapshotStore

TOKENS = list(range(100, 112))


def _with_field(fingerprint: Fingerprint, **values: str) -> Fingerprint:
    return replace(fingerprint, hard=tuple(sorted({**dict(fingerprint.hard), **values}.items())))


def test_a_good_file_is_a_hit(store: SnapshotStore, saved: Saved, fingerprint: Fingerprint):
    """A file that a lookup would use is one here, with its header."""
    found = store.explain(fingerprint, TOKENS)
    assert ("hit", saved.path) == (found.code, found.path)
    assert found.info is not None
    assert 12 == found.info.n_tokens


def test_an_empty_or_missing_store_has_nothing_near(store: SnapshotStore, fingerprint: Fingerprint):
    """Nothing stored is said without anything to compare with."""
    found = store.explain(fingerprint, TOKENS)
    assert ("not_stored", None, 0) == (found.code, found.near, found.n_files)


def test_the_same_tokens_under_another_fingerprint(
    store: SnapshotStore, saved: Saved, fingerprint: Fingerprint
):
    """The fields that differ are named, with what is stored and what is now."""
    found = store.explain(_with_field(fingerprint, kv_type="q8_0"), TOKENS)
    assert found.near is not None
    assert (FieldChange("kv_type", "f16", "q8_0"),) == found.near.changes
    assert found.near.first_differing is None
    assert saved.path == found.near.path


def test_fewest_changes_are_nearest(
    store: SnapshotStore, saved: Saved, fingerprint: Fingerprint, snapshot_files: Any
):
    """Of several fingerprints the one with the fewest differing fields is told."""
    far = _with_field(fingerprint, kv_type="q4_0", arch="gemma")
    store.save(far, TOKENS, snapshot_files.state())
    found = store.explain(_with_field(fingerprint, kv_type="q8_0"), TOKENS)
    assert found.near is not None
    assert saved.path == found.near.path


@pytest.mark.parametrize(
    ("asked", "first"),
    [
        ([*TOKENS[:5], 7, *TOKENS[6:]], 5),
        ([7, *TOKENS[1:]], 0),
        ([*TOKENS, 7], 12),
        (TOKENS[:9], 9),
    ],
)
def test_other_tokens_under_the_same_fingerprint(
    store: SnapshotStore, saved: Saved, fingerprint: Fingerprint, asked: list[int], first: int
):
    """The first differing token is found, also where one prefix begins with the other."""
    found = store.explain(fingerprint, asked)
    assert found.near is not None
    assert ((), first, True) == (
        found.near.changes,
        found.near.first_differing,
        found.near.alike,
    )
    assert tuple(TOKENS) == found.near.tokens


def test_another_prompt_is_not_an_older_form(
    store: SnapshotStore, saved: Saved, fingerprint: Fingerprint
):
    """A prompt that shares its first tokens alone is told apart from an edited one."""
    found = store.explain(fingerprint, [*TOKENS[:3], *range(500, 540)])
    assert found.near is not None
    assert (3, False) == (found.near.first_differing, found.near.alike)


def test_damage_is_told_and_left_alone(
    store: SnapshotStore, saved: Saved, fingerprint: Fingerprint
):
    """A flipped bit anywhere in the file is damage; the file stays for whoever asks again."""
    content = bytearray(saved.path.read_bytes())
    content[-100] ^= 1
    saved.path.write_bytes(content)
    assert "corrupt" == store.explain(fingerprint, TOKENS).code
    assert saved.path.exists()


def test_a_coarser_file_does_not_serve(
    store: SnapshotStore, fingerprint: Fingerprint, snapshot_files: Any
):
    """A rounded state is told where exact is asked, and is a hit where it is not."""
    store.save(fingerprint, TOKENS, snapshot_files.packed(Tier.Q4))
    assert "too_coarse" == store.explain(fingerprint, TOKENS).code
    assert "hit" == store.explain(fingerprint, TOKENS, Tier.Q4).code


def test_a_linked_file_is_told(store: SnapshotStore, saved: Saved, fingerprint: Fingerprint):
    """What a lookup refuses for safety is incompatible here as well."""
    os.link(saved.path, saved.path.with_name("f" * 32 + ".ekv"))
    assert "incompatible" == store.explain(fingerprint, TOKENS).code


def test_work_is_bounded_newest_first(
    store: SnapshotStore,
    fingerprint: Fingerprint,
    snapshot_files: Any,
    monkeypatch: pytest.MonkeyPatch,
):
    """Only the newest files are looked at."""
    for n in range(6):
        outcome = store.save(fingerprint, [*TOKENS[:-1], n], snapshot_files.state())
        os.utime(outcome.path, ns=(n, n))
    monkeypatch.setattr(explain_module, "MAX_FILES", 2)
    found = store.explain(fingerprint, TOKENS)
    assert found.near is not None
    assert (2, 5) == (found.n_files, found.near.tokens[-1])
