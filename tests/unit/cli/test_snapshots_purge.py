"""`edgellm snapshots purge`, and what the other commands say of an encrypted store."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keyring
import pytest
from keyring.backends import fail

from edgellm.store.sealed.keys import StoreKey
from edgellm.store.snapshots import Saved, SnapshotStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SECRET = bytes(range(7, 39))


@pytest.fixture
def fill(edgellm_home: Path, snapshot_files: Any) -> Callable[[StoreKey | None], Path]:
    """Give a function that puts a snapshot into the store, and returns its path."""

    def put(key: StoreKey | None = None) -> Path:
        store = SnapshotStore(edgellm_home / "snapshots", key=key)
        saved = store.save(snapshot_files.FINGERPRINT, range(12), snapshot_files.state())
        assert isinstance(saved, Saved)
        return saved.path

    return put


@pytest.fixture
def no_keyring() -> Iterator[None]:
    """Be on a machine without a keyring."""
    before = keyring.get_keyring()
    keyring.set_keyring(fail.Keyring())
    yield
    keyring.set_keyring(before)


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    """Write a key file."""
    path = tmp_path / "key"
    path.write_bytes(SECRET)
    path.chmod(0o600)
    return f"file:{path}"


def left(home: Path) -> list[Path]:
    """Return every file below the home."""
    return [path for path in home.rglob("*") if not path.is_dir()]


def test_purge_removes_all_and_says_how_much(cli: Any, edgellm_home: Path, fill: Any) -> None:
    """Plain and encrypted; in words, and as JSON the second time."""
    sizes = [fill(key).stat().st_size for key in (None, StoreKey(SECRET))]
    n_files = len(left(edgellm_home))
    result = cli("snapshots", "purge", "--yes")
    assert result.code == 0
    assert result.out.startswith(f"files removed: {n_files} (")
    assert left(edgellm_home) == []
    assert min(sizes) > 0
    assert cli("snapshots", "purge", "--json").lines == [
        {"type": "purged", "n_files": 0, "n_bytes": 0, "key_forgotten": False, "left": []}
    ]


@pytest.mark.parametrize(("answer", "goes"), [(b"y\n", True), (b"n\n", False), (b"", False)])
def test_purge_asks_on_a_terminal(
    cli: Any, edgellm_home: Path, fill: Any, answer: bytes, goes: bool
) -> None:
    """Only yes removes."""
    path = fill()
    result = cli("snapshots", "purge", stdin=answer, terminal=True)
    assert result.err.startswith("remove everything that the store has written? [y/N] ")
    assert (result.code, path.exists()) == ((0, False) if goes else (1, True))


def test_purge_names_what_it_leaves(cli: Any, edgellm_home: Path, fill: Any) -> None:
    """And exits 1."""
    stray = fill().with_name("notes.txt")
    stray.touch()
    result = cli("snapshots", "purge", "--yes")
    assert result.code == 1
    assert f"{stray}: not of this store" in result.out
    assert "error: left: 1" in result.err
    assert left(edgellm_home) == [stray]


def test_purge_needs_no_key(
    cli: Any,
    edgellm_home: Path,
    fill: Any,
    no_keyring: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is what is left to do when the key is lost; forgetting the key is another thing."""
    fill(StoreKey(SECRET))
    monkeypatch.setenv("EDGELLM_SNAPSHOT_ENCRYPT", "keyring")
    refused = cli("snapshots", "ls")
    assert refused.code == 1
    assert "this machine has no keyring" in refused.err
    assert cli("snapshots", "purge", "--yes", "--forget-key").code == 1
    assert left(edgellm_home) == []
    assert cli("snapshots", "purge", "--yes").code == 0


def test_the_key_is_forgotten_on_request(
    cli: Any, edgellm_home: Path, monkeypatch: pytest.MonkeyPatch, no_keyring: None
) -> None:
    """And only the one of this store."""
    kept = {("edgellm", f"snapshots in {edgellm_home / 'snapshots'}"): "k", ("edgellm", "x"): "k"}
    monkeypatch.setattr(keyring, "get_password", lambda *entry: kept.get(entry))
    monkeypatch.setattr(keyring, "delete_password", lambda *entry: kept.pop(entry))
    assert cli("snapshots", "purge", "--yes").out == "files removed: 0 (0 B)\n"
    assert len(kept) == 2
    assert cli("snapshots", "purge", "--forget-key").out.endswith("key forgotten: yes\n")
    assert list(kept) == [("edgellm", "x")]
    assert cli("snapshots", "purge", "--forget-key").out.endswith("key forgotten: there was none\n")


def test_ls_and_check_need_the_key(
    cli: Any, edgellm_home: Path, fill: Any, key_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it they say what they do not know; with it they are as for plain files."""
    path = fill(StoreKey(SECRET))
    result = cli("snapshots", "ls")
    assert (result.code, result.out) == (0, "")
    assert "not listed: 1; `edgellm snapshots check` says why" in result.err
    result = cli("snapshots", "check", "--fix")
    assert result.code == 1
    assert f"{path}: incompatible: encrypted, and no key was given" in result.out
    assert path.exists()
    monkeypatch.setenv("EDGELLM_SNAPSHOT_ENCRYPT", key_file)
    assert path.stem[:12] in cli("snapshots", "ls").out
    assert cli("snapshots", "check").code == 0
    monkeypatch.setenv("EDGELLM_SNAPSHOT_ENCRYPT", "file:" + os.devnull)
    assert cli("snapshots", "check").code == 1
    monkeypatch.delenv("EDGELLM_SNAPSHOT_ENCRYPT")
    assert path.stem[:12] in cli("snapshots", "ls", "--snapshot-encrypt", key_file).out
