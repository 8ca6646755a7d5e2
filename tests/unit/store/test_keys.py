"""Keys: where they come from, what is refused, and that nothing ever shows one."""

from __future__ import annotations

import copy
import logging
import os
import pickle
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Any

import keyring
import pytest
from keyring import errors
from keyring.backend import KeyringBackend

from edgellm.errors import EdgeLLMError, KeyUnavailable, MissingExtra, UsageError
from edgellm.runtime.session import SessionOptions
from edgellm.store import key_sources
from edgellm.store.key_sources import SERVICE, forget_key, open_key
from edgellm.store.sealed.keys import StoreKey
from edgellm.store.snapshots import Saved, SnapshotStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SECRET = bytes(range(100, 132))


class MemoryKeyring(KeyringBackend):
    """A keyring that lasts as long as a test; `trouble` is raised by whatever it is asked."""

    priority = 1

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[tuple[str, str], str] = {}
        self.trouble: Exception | None = None
        self.forgetful = False

    def get_password(self, service: str, username: str) -> str | None:
        """Return what is kept."""
        if self.trouble is not None:
            raise self.trouble
        return self.kept.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        """Keep it, or not."""
        if not self.forgetful:
            self.kept[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        """Forget it."""
        del self.kept[service, username]


@pytest.fixture
def ring() -> Iterator[MemoryKeyring]:
    """Put a keyring in the place of the system's."""
    before = keyring.get_keyring()
    ring = MemoryKeyring()
    keyring.set_keyring(ring)
    yield ring
    keyring.set_keyring(before)


def key_file(path: Path, content: bytes, mode: int = 0o600) -> str:
    """Write a key file and return how it is named."""
    path.write_bytes(content)
    path.chmod(mode)
    return f"file:{path}"


def test_a_key_of_bytes_or_of_a_function_is_taken(tmp_path: Path):
    """Both are the same key; another one is not."""
    key = open_key(SECRET, tmp_path)
    assert key == open_key(lambda: SECRET, tmp_path) == StoreKey(bytearray(SECRET))
    assert key != StoreKey(SECRET[::-1])
    assert key is not None
    assert len({key, StoreKey(SECRET)}) == 1


@pytest.mark.parametrize(
    "bad", [b"", b"short", SECRET + b"x", bytes(32), b"\xff" * 32, lambda: b"short", lambda: "text"]
)
def test_what_is_no_key_is_refused(tmp_path: Path, bad: Any):
    """Of another length, of one byte, or not bytes."""
    with pytest.raises(UsageError):
        open_key(bad, tmp_path)


def test_nobody_who_did_not_ask_gets_one(tmp_path: Path):
    """Without a word from the caller or the environment, and where the caller says off."""
    assert open_key(None, tmp_path, {}) is None
    assert open_key("off", tmp_path, {"EDGELLM_SNAPSHOT_ENCRYPT": "keyring"}) is None
    assert open_key(None, tmp_path, {"EDGELLM_SNAPSHOT_ENCRYPT": "off"}) is None


@pytest.mark.parametrize(
    "content", [SECRET, SECRET.hex().encode(), SECRET.hex().upper().encode() + b"\n"]
)
def test_a_key_file_is_read_in_each_form(tmp_path: Path, content: bytes):
    """32 raw bytes, or 64 hex digits and a line end."""
    named = key_file(tmp_path / "key", content)
    path = named.removeprefix("file:")
    assert StoreKey(SECRET) == open_key(named, tmp_path, {})
    assert StoreKey(SECRET) == open_key(None, tmp_path, {"EDGELLM_SNAPSHOT_KEY_FILE": path})
    assert StoreKey(SECRET) == open_key(None, tmp_path, {"EDGELLM_SNAPSHOT_ENCRYPT": named})


@pytest.mark.parametrize(
    "content",
    [b"", SECRET[:-1], SECRET + b"\n", SECRET.hex()[:-1].encode(), b"g" * 64, bytes(9999)],
)
def test_a_file_that_is_no_key_is_refused(tmp_path: Path, content: bytes):
    """The message says what a key file holds, and shows nothing of this one."""
    with pytest.raises(UsageError, match="32 bytes or 64 hex digits") as caught:
        open_key(key_file(tmp_path / "key", content), tmp_path)
    assert caught.value.exit_code == 2
    assert "g" * 9 not in str(caught.value)


@pytest.mark.skipif(os.name == "nt", reason="Windows keeps no modes")
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o620, 0o602, 0o666])
def test_a_key_that_others_could_use_is_refused(tmp_path: Path, mode: int):
    """With the command that closes it."""
    with pytest.raises(UsageError, match="others may use this key") as caught:
        open_key(key_file(tmp_path / "key", SECRET, mode), tmp_path)
    assert "chmod 600" in caught.value.hint


def test_a_key_file_that_is_not_there_is_an_error(tmp_path: Path):
    """And none is made: it may be that a disk is not mounted."""
    with pytest.raises(KeyUnavailable, match="not there") as caught:
        open_key(f"file:{tmp_path / 'key'}", tmp_path)
    assert "make one" in caught.value.hint
    assert not list(tmp_path.iterdir())


def test_no_folder_or_pipe_is_read_as_a_key(tmp_path: Path):
    """A pipe would wait for ever."""
    os.mkfifo(tmp_path / "pipe")
    for name in (".", "pipe"):
        with pytest.raises(KeyUnavailable):
            open_key(f"file:{tmp_path / name}", tmp_path)


@pytest.mark.parametrize(
    "environ",
    [
        {"EDGELLM_SNAPSHOT_ENCRYPT": "yes"},
        {"EDGELLM_SNAPSHOT_ENCRYPT": "file:"},
        {"EDGELLM_SNAPSHOT_ENCRYPT": "keyring", "EDGELLM_SNAPSHOT_KEY_FILE": "/k"},
        {"EDGELLM_SNAPSHOT_ENCRYPT": "off", "EDGELLM_SNAPSHOT_KEY_FILE": "/k"},
    ],
)
def test_an_environment_that_is_wrong_is_refused(tmp_path: Path, environ: dict[str, str]):
    """A guess could keep plain files."""
    with pytest.raises(UsageError):
        open_key(None, tmp_path, environ)


def test_the_keyring_makes_one_key_for_each_store(tmp_path: Path, ring: MemoryKeyring):
    """At first use; then it is that one, and that of another folder is another."""
    first = open_key("keyring", tmp_path / "a")
    assert first == open_key("keyring", tmp_path / "a")
    assert first != open_key("keyring", tmp_path / "b")
    assert [SERVICE, SERVICE] == [service for service, _ in ring.kept]


def test_two_that_come_first_together_get_one_key(tmp_path: Path, ring: MemoryKeyring):
    """Or what one of them encrypts would be lost."""
    keys: list[StoreKey | None] = []
    barrier = threading.Barrier(4)

    def come() -> None:
        barrier.wait()
        keys.append(open_key("keyring", tmp_path / "store"))

    threads = [threading.Thread(target=come) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(keys) == 4
    assert len(set(keys)) == len(ring.kept) == 1


def test_nobody_waits_for_ever_for_a_key(
    tmp_path: Path, ring: MemoryKeyring, monkeypatch: pytest.MonkeyPatch
):
    """Another program that asks for a password, and gets none, stops this one with a word of it."""
    monkeypatch.setattr(key_sources._locked.__wrapped__, "__defaults__", (0.05,))
    with key_sources._locked(tmp_path), pytest.raises(KeyUnavailable, match="another program"):
        open_key("keyring", tmp_path)
    assert not ring.kept
    assert open_key("keyring", tmp_path) is not None


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        (errors.NoKeyringError("none"), "has no keyring"),
        (errors.KeyringLocked("locked"), "is locked"),
        (errors.InitError("no bus"), "failed: InitError"),
        (ConnectionRefusedError(), "failed: ConnectionRefusedError"),
    ],
)
def test_a_keyring_that_cannot_be_used_is_an_error(
    tmp_path: Path, ring: MemoryKeyring, trouble: Exception, said: str
):
    """With the other way to keep a key as the next step."""
    ring.trouble = trouble
    with pytest.raises(KeyUnavailable, match=said) as caught:
        open_key("keyring", tmp_path)
    assert "EDGELLM_SNAPSHOT_KEY_FILE" in caught.value.hint
    with pytest.raises(KeyUnavailable, match=said):
        forget_key(tmp_path)


def test_a_keyring_that_does_not_keep_is_an_error(tmp_path: Path, ring: MemoryKeyring):
    """What is encrypted under a key that nobody keeps is lost."""
    ring.forgetful = True
    with pytest.raises(KeyUnavailable, match="did not keep"):
        open_key("keyring", tmp_path)


def test_what_the_keyring_has_must_be_a_key(tmp_path: Path, ring: MemoryKeyring):
    """An entry that somebody edited is not replaced, and not shown."""
    open_key("keyring", tmp_path)
    for service, entry in list(ring.kept):
        ring.kept[service, entry] = "hunter2"
    with pytest.raises(KeyUnavailable, match="is no key") as caught:
        open_key("keyring", tmp_path)
    assert "hunter2" not in str(caught.value)


def test_a_lost_key_is_an_error_while_its_files_exist(
    tmp_path: Path, ring: MemoryKeyring, snapshot_files: Any
):
    """A new one would hide the loss; after a purge there is nothing to lose."""
    store = SnapshotStore(tmp_path, key=open_key("keyring", tmp_path))
    assert isinstance(
        store.save(snapshot_files.FINGERPRINT, [1] * 12, snapshot_files.state()), Saved
    )
    ring.kept.clear()
    with pytest.raises(KeyUnavailable, match="holds 1 encrypted snapshots") as caught:
        open_key("keyring", tmp_path)
    assert "purge" in caught.value.hint
    assert not ring.kept
    store.remove()
    assert open_key("keyring", tmp_path) is not None


def test_a_key_is_forgotten_on_request(tmp_path: Path, ring: MemoryKeyring):
    """And it is said whether there was one."""
    open_key("keyring", tmp_path)
    assert forget_key(tmp_path)
    assert not ring.kept
    assert not forget_key(tmp_path)


@pytest.mark.parametrize("missing", ["cryptography", "keyring"])
def test_a_missing_package_is_an_error(
    tmp_path: Path, ring: MemoryKeyring, monkeypatch: pytest.MonkeyPatch, missing: str
):
    """It names the extra, and no key is made that could not be used."""
    for name in [name for name in sys.modules if name.split(".")[0] == missing]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingExtra) as caught:
        open_key("keyring", tmp_path)
    assert "edgellm[secure]" in caught.value.hint
    assert not ring.kept


def test_nothing_shows_a_key(tmp_path: Path, ring: MemoryKeyring, caplog: pytest.LogCaptureFixture):
    """No repr, message, log line, traceback or pickle; the id tells keys apart, not what they are."""
    caplog.set_level(logging.DEBUG)
    key = StoreKey(SECRET)
    shown = [repr(key), str(key), f"{[key]}", repr(SnapshotStore(tmp_path, key=key))]
    shown.append(repr(SessionOptions(snapshot_key=SECRET)))
    assert key.id != StoreKey(SECRET[::-1]).id
    shown.append(key.id.hex())
    for source in (SECRET + b"x", lambda: SECRET + b"x", f"file:{tmp_path / 'none'}", "keyring"):
        ring.trouble = errors.KeyringError("no")
        with pytest.raises(EdgeLLMError) as caught:
            open_key(source, tmp_path)
        shown += ["".join(traceback.format_exception(caught.value)), repr(caught.value)]
    for how in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="not pickled"):
            how(key)
    text = "\n".join([*shown, caplog.text])
    for form in (SECRET.hex(), SECRET.decode("latin-1"), repr(SECRET), str(list(SECRET))):
        assert form[4:20] not in text
