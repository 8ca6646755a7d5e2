"""SnapshotStore: what is found, what is not and why, what is written and with which rights."""

from __future__ import annotations

import os
import stat
from typing import Any

import numpy as np
import pytest

from edgellm.errors import SnapshotError
from edgellm.store import finding
from edgellm.store.snapshots import Hit, Miss, Saved, Skipped, SnapshotStore
from edgellm.store.state import Fingerprint, KVState, Part, Section

TOKENS = list(range(100, 112))
NOW_S = 1_700_000_000.9


def test_only_exactly_these_tokens_are_found(
    store: SnapshotStore, fingerprint: Fingerprint, saved: Saved
):
    """A prefix of them, more of them, or one other token is not stored."""
    assert isinstance(store.lookup(fingerprint, TOKENS), Hit)
    assert isinstance(store.lookup(fingerprint, np.array(TOKENS, np.int32)), Hit)
    for other in (TOKENS[:-1], [*TOKENS, 1], [TOKENS[0] + 1, *TOKENS[1:]], TOKENS[::-1]):
        assert store.lookup(fingerprint, other) == Miss("not stored", "not_stored")


def test_every_hard_field_separates_and_soft_ones_are_told(
    store: SnapshotStore, fingerprint: Fingerprint, saved: Saved
):
    """Another value, name or number of hard fields is another snapshot; soft ones only warn."""
    hard = dict(fingerprint.hard)
    for changed in (hard | {"model": "cd" * 32}, hard | {"lora": "x"}, {"model": hard["model"]}):
        other = Fingerprint(tuple(sorted(changed.items())), fingerprint.soft)
        assert store.lookup(other, TOKENS) == Miss("not stored", "not_stored")
    soft = Fingerprint(fingerprint.hard, (("batch", "512"), ("threads", "4")))
    found = store.lookup(soft, TOKENS)
    assert isinstance(found, Hit)
    assert found.soft_changes == ("batch: unknown, now 512", "threads: 2, now 4")
    assert store.key(soft, TOKENS) == saved.path.stem


@pytest.mark.parametrize("tokens", [[], [-1], [1 << 31], [0.5], [[1]], ["a"]])
def test_what_is_no_token_is_the_callers_mistake(
    store: SnapshotStore, fingerprint: Fingerprint, tokens: list[Any], snapshot_files: Any
):
    """A wrong token id raises: it cannot come from the disk."""
    with pytest.raises(ValueError, match="token"):
        store.lookup(fingerprint, tokens)
    with pytest.raises(ValueError, match="token"):
        store.save(fingerprint, tokens, snapshot_files.state())


def test_the_file_is_private_and_its_name_computed(saved: Saved, fingerprint: Fingerprint):
    """0600 in 0700 folders, at ROOT/v1/FINGERPRINT/KEY.ekv, and nothing beside it."""
    folder = saved.path.parent
    assert folder.name == fingerprint.digest()[:16]
    assert folder.parent.name == "v1"
    assert [saved.path] == list(folder.iterdir())
    assert saved.path.stat().st_size == saved.n_bytes
    assert stat.S_IMODE(saved.path.stat().st_mode) == 0o600
    for level in (folder, folder.parent, folder.parent.parent):
        assert stat.S_IMODE(level.stat().st_mode) == 0o700


def test_folders_that_let_others_in_are_closed_on_saving(
    store: SnapshotStore, fingerprint: Fingerprint, saved: Saved, snapshot_files: Any
):
    """A home folder copied without its modes does not stay open."""
    saved.path.parent.chmod(0o755)
    assert isinstance(store.save(fingerprint, [1, 2], snapshot_files.state(2)), Saved)
    assert stat.S_IMODE(saved.path.parent.stat().st_mode) == 0o700


def test_a_snapshot_is_written_once(
    store: SnapshotStore, fingerprint: Fingerprint, saved: Saved, snapshot_files: Any
):
    """The second save leaves the file alone, and so spares the disk."""
    before = saved.path.stat()
    assert store.save(fingerprint, TOKENS, snapshot_files.state(seed=9)) == Skipped(
        "already stored"
    )
    assert saved.path.stat().st_mtime_ns == before.st_mtime_ns
    assert saved.path.stat().st_ino == before.st_ino


def test_a_damaged_file_is_replaced(
    store: SnapshotStore, fingerprint: Fingerprint, saved: Saved, snapshot_files: Any
):
    """A miss because of damage removes the file; a save also writes over a damaged header."""
    saved.path.write_bytes(saved.path.read_bytes()[:-1])
    found = store.lookup(fingerprint, TOKENS)
    assert isinstance(found, Miss)
    assert found.reason.startswith("corrupt: the header says")
    assert not saved.path.exists()
    saved.path.write_bytes(b"\0" * saved.n_bytes)
    assert store.save(fingerprint, TOKENS, snapshot_files.state()) == saved
    assert isinstance(store.lookup(fingerprint, TOKENS), Hit)


def test_a_whole_file_under_another_name_is_a_miss(
    store: SnapshotStore, fingerprint: Fingerprint, saved: Saved, snapshot_files: Any
):
    """If two prefixes had one name, the tokens would decide; if two models had, their fields."""
    other = store.save(fingerprint, TOKENS[::-1], snapshot_files.state(seed=8))
    assert isinstance(other, Saved)
    other.path.rename(saved.path)
    assert store.lookup(fingerprint, TOKENS) == Miss(
        "incompatible: other tokens under this name", "foreign_tokens"
    )
    assert isinstance(store.save(fingerprint, TOKENS, snapshot_files.state()), Saved)
    model = Fingerprint((("model", "cd" * 32),))
    foreign = store.save(model, TOKENS, snapshot_files.state(seed=8))
    assert isinstance(foreign, Saved)
    foreign.path.rename(saved.path)
    assert store.lookup(fingerprint, TOKENS) == Miss(
        "incompatible: another model or engine under this name", "incompatible"
    )


def test_the_tokens_decide_even_if_their_hash_agrees(
    store: SnapshotStore,
    fingerprint: Fingerprint,
    saved: Saved,
    snapshot_files: Any,
    monkeypatch: pytest.MonkeyPatch,
):
    """With every hash comparison out of the way, the ids in the file are still compared."""
    other = store.save(fingerprint, TOKENS[::-1], snapshot_files.state(seed=8))
    assert isinstance(other, Saved)
    other.path.rename(saved.path)
    monkeypatch.setattr(finding, "refuse_others", lambda *_: None)
    assert store.lookup(fingerprint, TOKENS) == Miss(
        "incompatible: other tokens under this name", "foreign_tokens"
    )


def test_a_file_in_the_way_of_a_folder_is_no_error(
    store: SnapshotStore, fingerprint: Fingerprint, snapshot_files: Any
):
    """A store that cannot be made is a store without snapshots."""
    store.root.write_text("in the way")
    assert isinstance(store.lookup(fingerprint, TOKENS), Miss)
    outcome = store.save(fingerprint, TOKENS, snapshot_files.state())
    assert isinstance(outcome, Skipped)
    assert outcome.reason.startswith("cannot write: ")
    assert list(store.entries()) == []
    assert store.remove() == 0


_EIGHT = np.zeros((8, 4), np.uint16)
UNSAVABLE: dict[str, tuple[KVState, str]] = {
    "tokens": (KVState(7, ()), "the state holds 7 tokens, the prefix 8"),
    "late": (KVState(8, (Part("dense", 1, 7, ()),)), "a dense part holds positions 1 to 8"),
    "short": (KVState(8, (Part("window", 2, 5, ()),)), "a window part holds positions 2 to 7"),
    "empty": (KVState(8, (Part("window", 8, 0, ()),)), "a window part holds positions 8 to 8"),
    "rows": (
        KVState(8, (Part("dense", 0, 8, (Section(0, "K", "f16", _EIGHT[:7]),)),)),
        "layer 0 K: 7 rows for 8 positions",
    ),
    "dtype": (
        KVState(8, (Part("dense", 0, 8, (Section(0, "K", "f32", _EIGHT),)),)),
        "layer 0 K: f32 as uint16 (8, 4)",
    ),
    "big_endian": (
        KVState(8, (Part("dense", 0, 8, (Section(0, "K", "f16", _EIGHT.astype(">u2")),)),)),
        "layer 0 K: f16 as >u2 (8, 4)",
    ),
    "no_width": (
        KVState(8, (Part("dense", 0, 8, (Section(0, "K", "f16", _EIGHT[:, :0]),)),)),
        "layer 0 K: f16 as uint16 (8, 0)",
    ),
    "one_dim": (
        KVState(8, (Part("dense", 0, 8, (Section(0, "K", "f16", _EIGHT[:, 0]),)),)),
        "layer 0 K: f16 as uint16 (8,)",
    ),
    "blocks": (
        KVState(8, (Part("dense", 0, 8, (Section(0, "K", "q8_0", _EIGHT.view(np.uint8)),)),)),
        "layer 0 K: rows of 8 bytes are not whole q8_0 blocks",
    ),
    "type": (
        KVState(8, (Part("dense", 0, 8, (Section(0, "K", "q9", _EIGHT.view(np.uint8)),)),)),
        "layer 0 K: unknown element type 'q9'",
    ),
    "twice": (
        KVState(8, (Part("dense", 0, 8, (Section(0, "K", "f16", _EIGHT),) * 2),)),
        "layer 0 K where layer 1 K belongs",
    ),
}


@pytest.mark.parametrize("case", sorted(UNSAVABLE))
def test_a_state_that_could_not_be_read_back_is_not_written(
    store: SnapshotStore, fingerprint: Fingerprint, case: str
):
    """The rules for reading hold for writing, before a file is made."""
    state, reason = UNSAVABLE[case]
    outcome = store.save(fingerprint, list(range(8)), state)
    assert isinstance(outcome, Skipped)
    assert outcome.reason.startswith(reason)
    assert not store.root.exists()


def test_a_fingerprint_that_is_no_ascii_is_not_written(store: SnapshotStore, snapshot_files: Any):
    """Field values are ids and settings; text of another kind might be somebody's prompt."""
    outcome = store.save(Fingerprint((("model", "모델"),)), TOKENS, snapshot_files.state())
    assert outcome == Skipped("the header: 'hard' is not pairs of text", failed=True)


def test_entries_tell_what_is_there(
    store: SnapshotStore, fingerprint: Fingerprint, saved: Saved, snapshot_files: Any
):
    """Every good header is listed with its facts, anything else is left out."""
    store.save(Fingerprint((("arch", "gemma3"),)), TOKENS[:5], snapshot_files.state(5))
    (saved.path.parent / "note.txt").write_text("x")
    (saved.path.parent / ("0" * 32 + ".ekv")).write_bytes(b"junk")
    found = {entry.field("arch"): entry for entry in store.entries()}
    assert sorted(found) == ["gemma3", "llama"]
    entry = found["llama"]
    assert (entry.key, entry.path, entry.n_bytes) == (saved.path.stem, saved.path, saved.n_bytes)
    assert (entry.n_tokens, entry.created_s, entry.tier) == (12, int(NOW_S), "exact")
    assert entry.field("nothing") == ""


def test_remove_takes_what_is_asked_or_everything(
    store: SnapshotStore, fingerprint: Fingerprint, saved: Saved, snapshot_files: Any
):
    """Removing all leaves no file and no folder of ours, and no file of others is touched."""
    store.save(fingerprint, TOKENS[:5], snapshot_files.state(5))
    orphan = saved.path.with_name(f".{saved.path.name}.{os.getpid()}.abcd.tmp")
    orphan.write_bytes(b"x")
    assert store.remove(["0" * 32]) == 0
    assert store.remove([saved.path.stem]) == 1
    assert orphan.exists()
    assert store.remove() == 1
    assert store.remove() == 0
    assert list((store.root / "v1").iterdir()) == []


def test_a_removal_that_fails_is_said(store: SnapshotStore, fingerprint: Fingerprint, saved: Saved):
    """Somebody who wants private files gone must hear that they are not."""
    saved.path.unlink()
    saved.path.mkdir()
    with pytest.raises(SnapshotError, match="cannot be deleted"):
        store.remove()


@pytest.mark.parametrize("first_use", ["hit", "miss", "stored", "new"])
def test_the_first_use_sweeps_what_dead_writers_left(
    store: SnapshotStore,
    fingerprint: Fingerprint,
    saved: Saved,
    first_use: str,
    snapshot_files: Any,
    dead_pid: int,
):
    """A new process cleans up after one that was killed, but not after one that lives."""
    dead = saved.path.with_name(f".x.ekv.{dead_pid}.abcd.tmp")
    alive = saved.path.with_name(f".x.ekv.{os.getpid()}.abcd.tmp")
    dead.write_bytes(b"x")
    alive.write_bytes(b"x")
    opened = SnapshotStore(store.root)
    if first_use in {"hit", "miss"}:
        opened.lookup(fingerprint, TOKENS if first_use == "hit" else TOKENS[:5])
    else:
        n = 12 if first_use == "stored" else 5
        opened.save(fingerprint, TOKENS[:n], snapshot_files.state(n))
    assert not dead.exists()
    assert alive.exists()
    assert opened.check() == []


def test_no_file_holds_text_of_the_prompt(
    store: SnapshotStore, fingerprint: Fingerprint, snapshot_files: Any
):
    """Byte tokens are the worst case: no eight bytes of the text stand in any file or name."""
    prompt = "You are the confidential assistant of Dr. Kim; never mention project Aurora."
    raw = prompt.encode()
    state = snapshot_files.state(len(raw))
    assert isinstance(store.save(fingerprint, list(raw), state), Saved)
    for path in store.root.rglob("*"):
        content = path.name.encode() + (path.read_bytes() if path.is_file() else b"")
        assert not [i for i in range(len(raw) - 7) if raw[i : i + 8] in content]
