"""Turn snapshots found by the hash of their text: ids or nothing, and never a word of the text."""

from __future__ import annotations

import hashlib
import stat
from typing import TYPE_CHECKING, Any

import pytest

from edgellm.store.disk.place import Place
from edgellm.store.snapshots import Hit, Saved, Skipped, SnapshotStore
from edgellm.store.state import Fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TOKENS = tuple(range(12))
TEXT = hashlib.sha256(b"a conversation").hexdigest()


@pytest.fixture
def note(store: SnapshotStore, snapshot_files: Any) -> Path:
    """Save a snapshot with its text's hash; return the file that leads to it."""
    saved = store.save(snapshot_files.FINGERPRINT, TOKENS, snapshot_files.state(), text_sha256=TEXT)
    assert isinstance(saved, Saved)
    (path,) = saved.path.parent.glob("*.ekt")
    return path


def target(note: Path) -> Path:
    """Return the snapshot that it leads to."""
    (path,) = note.parent.glob("*.ekv")
    return path


def test_a_text_leads_to_its_tokens(store: SnapshotStore, fingerprint: Fingerprint, note: Path):
    """The ids as they were saved, for this model and this text only."""
    assert store.by_text(fingerprint, TEXT) == TOKENS
    assert store.by_text(fingerprint, hashlib.sha256(b"another").hexdigest()) is None
    assert store.by_text(Fingerprint((("model", "b"),)), TEXT) is None
    assert isinstance(store.lookup(fingerprint, TOKENS), Hit)
    assert store.check() == []
    assert [entry.n_tokens for entry in store.entries()] == [12]


def test_the_file_is_empty_private_and_says_nothing(note: Path):
    """Its name is a hash of hashes: neither the text nor its plain hash is in it."""
    assert note.stat().st_size == 0
    assert stat.S_IMODE(note.stat().st_mode) == 0o600
    assert TEXT[:8] not in note.name
    assert note.name.endswith(f"-{target(note).stem}.ekt")


def test_what_is_stored_already_can_be_found_by_another_text(
    store: SnapshotStore, fingerprint: Fingerprint, note: Path, snapshot_files: Any
):
    """Two texts may have the same tokens."""
    other = hashlib.sha256(b"other spelling").hexdigest()
    outcome = store.save(fingerprint, TOKENS, snapshot_files.state(), text_sha256=other)
    assert isinstance(outcome, Skipped)
    assert store.by_text(fingerprint, other) == TOKENS
    assert store.by_text(fingerprint, TEXT) == TOKENS


def test_one_text_may_have_been_sampled_in_several_ways(
    store: SnapshotStore, fingerprint: Fingerprint, note: Path, snapshot_files: Any
):
    """The one that is still there is found, whichever that is."""
    tokens = TOKENS[::-1]
    saved = store.save(fingerprint, tokens, snapshot_files.state(), text_sha256=TEXT)
    assert isinstance(saved, Saved)
    assert store.by_text(fingerprint, TEXT) in (TOKENS, tokens)
    target_path = saved.path
    target_path.unlink()
    assert store.by_text(fingerprint, TEXT) == TOKENS


def test_a_file_that_leads_nowhere_is_removed(
    store: SnapshotStore, fingerprint: Fingerprint, note: Path
):
    """When it is asked for."""
    target(note).unlink()
    assert store.by_text(fingerprint, TEXT) is None
    assert not note.exists()


def test_it_goes_with_its_snapshot(store: SnapshotStore, note: Path):
    """Removing a key removes what leads to it; removing everything leaves no folder."""
    key = target(note).stem
    assert store.remove(["0" * 32]) == 0
    assert note.exists()
    assert store.remove([key]) == 1
    assert not note.parent.exists()


def test_removing_everything_removes_it(store: SnapshotStore, note: Path):
    """A note is none of the snapshots that are counted."""
    assert store.remove() == 1
    assert not note.parent.exists()


def test_pruning_collects_it(store: SnapshotStore, note: Path):
    """What leads nowhere is an orphan like any other."""
    target(note).unlink()
    assert store.prune().n_orphans == 1
    assert not note.exists()


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda note: target(note).unlink(), "leads to a snapshot that is gone"),
        (lambda note: note.write_bytes(b"text"), "has 4 bytes and should have none"),
        (lambda note: note.chmod(0o644), "open to others (mode 0644)"),
    ],
)
def test_check_names_and_mends_it(
    store: SnapshotStore, note: Path, spoil: Callable[[Path], None], problem: str
):
    """Each thing that can be wrong with an empty file."""
    spoil(note)
    assert [(f.path, f.problem) for f in store.check()] == [(note, problem)]
    store.check(fix=True)
    assert store.check() == []


def test_damage_of_the_snapshot_is_no_error(
    store: SnapshotStore, fingerprint: Fingerprint, note: Path
):
    """A lookup says what is wrong with it; here it is only not found."""
    path = target(note)
    content = bytearray(path.read_bytes())
    content[30] ^= 1
    path.write_bytes(content)
    assert store.by_text(fingerprint, TEXT) is None
    assert path.exists()


def test_a_name_that_leads_to_foreign_tokens_is_not_followed(
    store: SnapshotStore, fingerprint: Fingerprint, note: Path
):
    """A snapshot under a wrong name gives no ids."""
    wrong = note.with_name("0" * 32 + ".ekv")
    target(note).rename(wrong)
    note.rename(note.with_name(f"{note.name[:32]}-{'0' * 32}.ekt"))
    assert store.by_text(fingerprint, TEXT) is None


@pytest.mark.parametrize("text", ["x", TEXT[:-1], TEXT.upper(), "a conversation"])
def test_what_is_no_hash_is_the_callers_mistake(
    store: SnapshotStore, fingerprint: Fingerprint, snapshot_files: Any, text: str
):
    """Above all the text itself must never be handed in."""
    with pytest.raises(ValueError, match="no SHA-256"):
        store.by_text(fingerprint, text)
    with pytest.raises(ValueError, match="no SHA-256"):
        store.save(fingerprint, TOKENS, snapshot_files.state(), text_sha256=text)


def test_a_store_that_is_off_or_only_read_is_left_alone(
    store: SnapshotStore, fingerprint: Fingerprint, note: Path, snapshot_files: Any
):
    """Where nothing is written no note is, and where nothing is read none is followed."""
    other = hashlib.sha256(b"other spelling").hexdigest()
    only_read = SnapshotStore(store.root)
    only_read._room.place = Place("it cannot be written", writable=False)
    state = snapshot_files.state()
    outcome = only_read.save(fingerprint, TOKENS, state, text_sha256=other)
    assert outcome == Skipped("prefix snapshots are not kept: it cannot be written")
    assert list(note.parent.glob("*.ekt")) == [note]
    assert only_read.by_text(fingerprint, TEXT) == TOKENS
    off = SnapshotStore(store.root)
    off._room.place = Place("it is elsewhere", readable=False, writable=False)
    assert off.by_text(fingerprint, TEXT) is None


def test_where_nothing_is_stored_nothing_is_found(store: SnapshotStore, fingerprint: Fingerprint):
    """No folder, no error."""
    assert store.by_text(fingerprint, TEXT) is None
