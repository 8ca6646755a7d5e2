"""`edgellm snapshots`: list, check, remove."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from edgellm.cli.snapshots import full_keys
from edgellm.core import Tier
from edgellm.errors import UsageError
from edgellm.runtime.session import SessionOptions
from edgellm.runtime.storing import make_storing
from edgellm.store.sealed.keys import StoreKey
from edgellm.store.snapshots import Saved, SnapshotStore
from edgellm.store.state import Fingerprint, KVState, Part, Section

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any


@pytest.fixture
def store(edgellm_home: Path) -> SnapshotStore:
    """Give a store with three snapshots, each a minute younger than the one before."""
    clock = iter((60, 120, 180))
    store = SnapshotStore(edgellm_home / "snapshots", clock=lambda: next(clock))
    fingerprint = Fingerprint(hard=(("model", "tiny"),), soft=())
    for n_tokens in (1, 2, 3):
        rows = np.zeros((n_tokens, 4), np.uint16)
        part = Part("dense", 0, n_tokens, (Section(0, "K", "f16", rows),))
        saved = store.save(fingerprint, list(range(n_tokens)), KVState(n_tokens, (part,)))
        assert isinstance(saved, Saved), saved
    return store


def test_ls_shows_the_newest_first(cli: Any, store: SnapshotStore) -> None:
    """The table has a line for each snapshot, with its size in tokens and its model."""
    result = cli("snapshots", "ls")
    heading, *rows = [line.split() for line in result.out.splitlines()]
    assert heading == ["KEY", "TOKENS", "SIZE", "CREATED", "USED", "BASE", "TIER", "MODEL"]
    assert [row[1] for row in rows] == ["3", "2", "1"]
    assert all(row[-2:] == ["exact", "tiny"] for row in rows)


def test_ls_tells_the_tier(cli: Any, edgellm_home: Path, snapshot_files: Any) -> None:
    """A rounded snapshot is listed as what it is, in the table and as JSON."""
    store = SnapshotStore(edgellm_home / "snapshots")
    packed = snapshot_files.packed(Tier.Q4)
    assert isinstance(store.save(snapshot_files.FINGERPRINT, range(12), packed), Saved)
    assert cli("snapshots", "ls").out.splitlines()[1].split()[-2] == "q4"
    assert [line["tier"] for line in cli("snapshots", "ls", "--json").lines] == ["q4"]


def test_ls_tells_bases_and_turns(cli: Any, edgellm_home: Path, snapshot_files: Any) -> None:
    """What leans on another one is listed with its own tokens, and a turn as one."""
    store = SnapshotStore(edgellm_home / "snapshots")
    fingerprint, first = snapshot_files.FINGERPRINT, snapshot_files.hybrid(8, 1)
    base = store.save(fingerprint, range(8), first)
    grown = snapshot_files.grown(first, 13, 2)
    turn = store.save(fingerprint, range(13), grown, base=base.anchor, text_sha256="ab" * 32)
    rows = {row[0]: row for row in map(str.split, cli("snapshots", "ls").out.splitlines())}
    assert ["8"] == rows[base.path.stem[:12]][1:2]
    assert ["13", "+5", "turn"] == rows[turn.path.stem[:12]][1:4]
    assert base.path.stem[:12] in rows[turn.path.stem[:12]][4:]
    lines = {line["key"]: line for line in cli("snapshots", "ls", "--json").lines}
    assert (base.path.stem, True) == tuple(
        lines[turn.path.stem][name] for name in ("leans_on", "is_turn")
    )
    assert (None, False) == tuple(lines[base.path.stem][name] for name in ("leans_on", "is_turn"))


def test_ls_of_nothing(cli: Any) -> None:
    """An empty store is said on stderr; stdout stays empty and no folder is made."""
    result = cli("snapshots", "ls")
    assert (result.code, result.out, result.err) == (0, "", "no snapshots\n")


def test_ls_as_json(cli: Any, store: SnapshotStore) -> None:
    """Each line has the whole key."""
    lines = cli("snapshots", "ls", "--json").lines
    assert {line["key"] for line in lines} == {entry.key for entry in store.entries()}
    assert lines[0]["fields"] == {"model": "tiny"}


def test_check_of_a_clean_store(cli: Any, store: SnapshotStore) -> None:
    """Nothing wrong: exit 0."""
    result = cli("snapshots", "check")
    assert (result.code, result.out) == (0, "problems: 0, left: 0\n")


def test_check_finds_and_fixes(cli: Any, store: SnapshotStore) -> None:
    """A damaged file makes check exit 1, names it, and --fix removes it."""
    path = next(iter(store.entries())).path
    path.write_bytes(path.read_bytes()[:-1])
    result = cli("snapshots", "check")
    assert result.code == 1
    assert str(path) in result.out
    assert "edgellm snapshots check --fix" in result.err
    assert [line["fixed"] for line in cli("snapshots", "check", "--json").lines] == [False]
    assert cli("snapshots", "check", "--fix").code == 0
    assert not path.exists()
    assert cli("snapshots", "check").code == 0


def test_check_says_what_it_did(cli: Any, store: SnapshotStore) -> None:
    """A mended mode is no removal, and what nothing can fix gets no hint to fix it."""
    kept, gone, _ = (entry.path for entry in store.entries())
    kept.chmod(0o644)
    gone.write_bytes(gone.read_bytes()[:-1])
    stray = gone.with_name("notes.txt")
    stray.touch(mode=0o600)
    assert "hint: run `edgellm snapshots check --fix`" in cli("snapshots", "check").err
    result = cli("snapshots", "check", "--fix")
    endings = {line.partition(": ")[0]: line.rpartition(" ")[2] for line in result.out.splitlines()}
    assert (endings[str(kept)], endings[str(gone)]) == ("(mended)", "(removed)")
    assert kept.exists()
    for flags in ([], ["--fix"]):
        left = cli("snapshots", "check", *flags)
        assert (left.code, left.err) == (1, "error: problems left: 1\n")


def test_rm_by_the_start_of_a_key(cli: Any, store: SnapshotStore) -> None:
    """A unique start names a snapshot."""
    keys = [entry.key for entry in store.entries()]
    assert cli("snapshots", "rm", keys[0][:8]).out == "removed: 1\n"
    assert [entry.key for entry in store.entries()] == keys[1:]


def test_rm_all(cli: Any, store: SnapshotStore) -> None:
    """--all removes the rest."""
    assert cli("snapshots", "rm", "--all", "--json").lines == [
        {"type": "removed", "n": 3, "left": []}
    ]
    assert list(store.entries()) == []


def test_rm_goes_on_behind_what_cannot_be_removed(cli: Any, store: SnapshotStore) -> None:
    """All else is gone; what is left is named, and exit 1."""
    stuck = next(iter(store.entries())).path.with_name("0" * 32 + ".ekv")
    stuck.mkdir()
    result = cli("snapshots", "rm", "--all")
    assert (result.code, list(store.entries()), stuck.exists()) == (1, [], True)
    assert f"{stuck}: cannot be deleted: " in result.out
    assert result.out.endswith("removed: 3\n")
    assert "error: left: 1" in result.err
    again = cli("snapshots", "rm", "--all", "--json")
    assert (again.code, again.lines[0]["left"]) == (1, [str(stuck)])


@pytest.mark.parametrize("command", ["check", "purge"])
def test_names_of_files_are_one_line(cli: Any, store: SnapshotStore, command: str) -> None:
    """A name with control characters does nothing to the terminal."""
    next(iter(store.entries())).path.with_name("a\nb\x1b[31m").touch(mode=0o600)
    result = cli("snapshots", command)
    assert result.code == 1
    assert "\x1b" not in result.out
    assert r"a\nb\x1b[31m: not " in result.out


@pytest.mark.parametrize(("answer", "left"), [(b"y\n", 0), (b"n\n", 3), (b"\n", 3), (b"", 3)])
def test_rm_asks_on_a_terminal(cli: Any, store: SnapshotStore, answer: bytes, left: int) -> None:
    """Only yes removes."""
    result = cli("snapshots", "rm", "--all", stdin=answer, terminal=True)
    assert result.err.startswith("remove 3 snapshots? [y/N] ")
    assert (result.code, len(list(store.entries()))) == (0 if left == 0 else 1, left)


def test_rm_with_yes_does_not_ask(cli: Any, store: SnapshotStore) -> None:
    """--yes is the answer."""
    assert cli("snapshots", "rm", "--all", "--yes", terminal=True).err == ""


def test_rm_of_what_is_not_encrypted(cli: Any, store: SnapshotStore) -> None:
    """What was written before there was a key goes by itself; the rest stays."""
    secret = StoreKey(bytes(range(32)))
    private = SnapshotStore(store.root, key=secret)
    assert (store.n_plain, private.n_plain) == (0, 3)
    rows = np.zeros((4, 4), np.uint16)
    state = KVState(4, (Part("dense", 0, 4, (Section(0, "K", "f16", rows),)),))
    saved = private.save(Fingerprint(hard=(("model", "tiny"),), soft=()), range(4), state)
    assert isinstance(saved, Saved)
    noted = make_storing(private, SessionOptions()).notes
    assert ["`edgellm snapshots rm --plain`" in note for note in noted] == [True]
    assert cli("snapshots", "rm", "--plain", "--yes").out == "removed: 3\n"
    assert (list(store.entries()), private.n_plain) == ([], 0)
    assert [entry.path for entry in private.entries()] == [saved.path]
    assert make_storing(private, SessionOptions()).notes == []


@pytest.mark.parametrize("arguments", [[], ["--all", "abc"], ["--all", "--plain"], ["no-such-key"]])
def test_rm_needs_to_know_what(cli: Any, store: SnapshotStore, arguments: list[str]) -> None:
    """No key, a key and --all, or a key that is not there: exit 2, nothing removed."""
    assert cli("snapshots", "rm", *arguments).code == 2
    assert len(list(store.entries())) == 3


def test_an_empty_key_is_no_key() -> None:
    """A script's empty variable names nothing, and is told so."""
    with pytest.raises(UsageError, match="an empty key"):
        full_keys([""], ["ab12"])


def test_ls_names_adapters_where_there_are_any(cli: Any, store: SnapshotStore) -> None:
    """Content and scale of each; without any there is no such column."""
    assert "LORA" not in cli("snapshots", "ls").out
    adapters = f"{'ab' * 32}*0.5 {'cd' * 32}*1"
    fingerprint = Fingerprint(hard=(("adapters", adapters), ("model", "tiny")), soft=())
    rows = np.zeros((4, 4), np.uint16)
    state = KVState(4, (Part("dense", 0, 4, (Section(0, "K", "f16", rows),)),))
    other = SnapshotStore(store.root)
    assert isinstance(other.save(fingerprint, range(4), state), Saved)
    heading, newest, *_ = cli("snapshots", "ls").out.splitlines()
    assert heading.split()[-1] == "LORA"
    assert newest.endswith("abababababab*0.5 cdcdcdcdcdcd*1")


def test_full_keys() -> None:
    """A start must fit one key; a whole key wins over those it starts."""
    known = ["ab12", "ab34", "ab"]
    assert full_keys(["ab1", "ab3", "ab1"], known) == ["ab12", "ab34"]
    assert full_keys(["ab"], known) == ["ab"]
    for start in ("a", "b", ""):
        with pytest.raises(UsageError):
            full_keys([start], known)
