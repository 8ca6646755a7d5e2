"""Where a store's key comes from: the caller, the keyring of the system, or a private file.

The environment is read here and nowhere else for this subject. Whoever asks for a key gets one or an
error with the next step; `None` comes back only to those who never asked.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from edgellm.errors import KeyUnavailable, MissingExtra, UsageError
from edgellm.fileio import lock_file, open_regular, private_dir
from edgellm.paths import ENCRYPT_VARIABLE, KEY_FILE_VARIABLE
from edgellm.store.disk import folder
from edgellm.store.sealed.chunks import MAGIC
from edgellm.store.sealed.envelope import is_encrypted
from edgellm.store.sealed.keys import KEY_BYTES, StoreKey

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

KeySource = str | bytes | Callable[[], bytes]
"""`keyring`, `file:PATH`, `off`; 32 bytes; or a function that returns them."""

SERVICE: Final = "edgellm"
SPELLINGS: Final = "keyring, file:PATH or off"
_FILE: Final = "file:"
_MAX_FILE_BYTES: Final = 1 << 10
_OPEN_TO_OTHERS: Final = 0o077
_WINDOWS: Final = "nt"
LOCK_WAIT_S: Final = 60.0
_POLL_S: Final = 0.02
_OTHER_WAY: Final = f"or keep the key in a file: {KEY_FILE_VARIABLE}=/path/to/key"


def open_key(
    source: KeySource | None, root: Path, environ: Mapping[str, str] = os.environ
) -> StoreKey | None:
    """Return the key of a store, or None where nobody asked for one.

    Args:
        source: what the caller said; None leaves it to `EDGELLM_SNAPSHOT_ENCRYPT` (the same
            words) and `EDGELLM_SNAPSHOT_KEY_FILE` (a path, which asks for encryption too).
        root: the folder of the store; the keyring has one entry for each, made at first use.
        environ: the environment.

    Raises:
        UsageError: the source is spelled wrong, a key is not 32 bytes, or its file is open to others.
        KeyUnavailable: there is no keyring, it is locked, or it or the file has no key.
        MissingExtra: `cryptography` or `keyring` is not installed.
    """
    chosen = _from_environment(environ) if source is None else source
    if callable(chosen):
        return StoreKey(chosen())
    if not isinstance(chosen, str):
        return None if chosen is None else StoreKey(chosen)
    if chosen == "off":
        return None
    if chosen == "keyring":
        return _from_keyring(root)
    if chosen.startswith(_FILE) and chosen != _FILE:
        return _from_file(Path(chosen[len(_FILE) :]).expanduser())
    raise UsageError(f"a snapshot key comes from {SPELLINGS}, not from {chosen[:80]!r}")


def forget_key(root: Path) -> bool:
    """Remove the store's key from the keyring; what is encrypted under it is lost for good.

    Returns:
        Whether there was one.

    Raises:
        KeyUnavailable: there is no keyring, or it is locked.
        MissingExtra: `keyring` is not installed.
    """
    keyring = _keyring()
    with _keyring_errors(keyring):
        if keyring.get_password(SERVICE, _entry(root)) is None:
            return False
        keyring.delete_password(SERVICE, _entry(root))
    return True


def _from_environment(environ: Mapping[str, str]) -> str | None:
    chosen, path = environ.get(ENCRYPT_VARIABLE, ""), environ.get(KEY_FILE_VARIABLE, "")
    if chosen and path and chosen != _FILE + path:
        raise UsageError(
            f"{ENCRYPT_VARIABLE}={chosen!r} and {KEY_FILE_VARIABLE} say different things",
            hint=f"unset one of them; {KEY_FILE_VARIABLE} alone asks for encryption",
        )
    if path:
        return _FILE + path
    if chosen and chosen not in ("keyring", "off") and not chosen.startswith(_FILE):
        raise UsageError(f"{ENCRYPT_VARIABLE}={chosen[:80]!r} is none of {SPELLINGS}")
    return chosen or None


def _from_file(path: Path) -> StoreKey:
    """Read a key file: 32 bytes, or 64 hex digits with white space around them."""
    make_one = f"make one: (umask 077; head -c {KEY_BYTES} /dev/urandom > {path})"
    try:
        with open_regular(path, follow=True) as (file, status):
            _refuse_open_file(path, status)
            content = file.read(_MAX_FILE_BYTES)
    except FileNotFoundError as err:
        raise KeyUnavailable(
            "the file of the snapshot key is not there", path=path, hint=make_one
        ) from err
    except OSError as err:
        why = err.strerror or type(err).__name__
        raise KeyUnavailable(
            f"the file of the snapshot key cannot be read: {why}", path=path
        ) from err
    if len(content) != KEY_BYTES:
        with contextlib.suppress(ValueError):
            text = content.decode("ascii").strip()
            if len(text) == 2 * KEY_BYTES and text.isalnum():
                return StoreKey(bytes.fromhex(text))
        raise UsageError(
            f"a key file holds {KEY_BYTES} bytes or {2 * KEY_BYTES} hex digits, not {status.st_size} "
            "bytes of something else",
            path=path,
            hint=make_one,
        )
    return StoreKey(content)


def _refuse_open_file(path: Path, status: os.stat_result) -> None:
    if os.name == _WINDOWS:
        return
    if status.st_mode & _OPEN_TO_OTHERS:
        raise UsageError(
            f"others may use this key (mode {status.st_mode & 0o7777:04o})",
            path=path,
            hint=f"chmod 600 {path}, and make a new key if they did",
        )
    if status.st_uid not in (os.geteuid(), 0):
        raise UsageError(f"the key belongs to user {status.st_uid}", path=path)


def _from_keyring(root: Path) -> StoreKey:
    keyring = _keyring()
    with _locked(root), _keyring_errors(keyring):
        kept = keyring.get_password(SERVICE, _entry(root))
        if kept is None:
            _refuse_lost_key(root)
            secret = os.urandom(KEY_BYTES)
            key = StoreKey(secret)
            keyring.set_password(SERVICE, _entry(root), secret.hex())
            kept = keyring.get_password(SERVICE, _entry(root))
            if kept != secret.hex():
                raise KeyUnavailable(
                    f"the keyring ({type(keyring.get_keyring()).__name__}) did not keep the key",
                    hint=f"set up another one, {_OTHER_WAY}",
                )
            return key
    try:
        return StoreKey(bytes.fromhex(kept))
    except ValueError as err:
        raise KeyUnavailable(
            f"what the keyring has for {SERVICE} {_entry(root)} is no key",
            hint="remove that entry, and `edgellm snapshots purge` what it encrypted",
        ) from err


def _refuse_lost_key(root: Path) -> None:
    """Refuse to make a new key where files wait for the old one."""
    n_encrypted = sum(_starts_encrypted(path) for path in folder.snapshots_in(root))
    if n_encrypted:
        raise KeyUnavailable(
            f"the keyring has no key for this store, which holds {n_encrypted} encrypted snapshots",
            path=root,
            hint="unlock or bring back the keyring that has it, name the file that has it, or begin "
            "anew with `edgellm snapshots purge`",
        )


def _starts_encrypted(path: Path) -> bool:
    try:
        with open_regular(path) as (file, _):
            return is_encrypted(file.read(len(MAGIC)))
    except OSError:
        return False


def _entry(root: Path) -> str:
    """Return the name of the store's entry: another folder is another store."""
    return f"snapshots in {root.resolve()}"


def _keyring() -> Any:
    try:
        import keyring
    except ImportError as err:
        raise MissingExtra(
            "a snapshot key in the keyring needs the package keyring",
            hint=f"pip install 'edgellm[secure]', {_OTHER_WAY}",
        ) from err
    return keyring


@contextlib.contextmanager
def _keyring_errors(keyring: Any) -> Iterator[None]:
    """Turn what keyrings raise into our error, without a word of what was to be kept."""
    from keyring import errors

    try:
        yield
    except errors.NoKeyringError as err:
        raise KeyUnavailable(
            "this machine has no keyring", hint=f"set one up, {_OTHER_WAY}"
        ) from err
    except errors.KeyringLocked as err:
        raise KeyUnavailable("the keyring is locked", hint=f"unlock it, {_OTHER_WAY}") from err
    except (errors.KeyringError, OSError, RuntimeError) as err:
        backend = type(keyring.get_keyring()).__name__
        raise KeyUnavailable(
            f"the keyring ({backend}) failed: {type(err).__name__}",
            hint=f"try `keyring diagnose`, {_OTHER_WAY}",
        ) from err


@contextlib.contextmanager
def _locked(root: Path, wait_s: float = LOCK_WAIT_S) -> Iterator[None]:
    """Let one process at a time make the key: of two, one would be lost with all it encrypted."""
    try:
        fd = os.open(private_dir(root), os.O_RDONLY)
    except OSError:  # no folder, or a system that opens none: the key is made without a lock
        yield
        return
    try:
        deadline_s = time.monotonic() + wait_s
        while not lock_file(fd, wait=False):
            if time.monotonic() > deadline_s:
                raise KeyUnavailable(
                    f"another program has been making the snapshot key for {wait_s:g} s",
                    path=root,
                    hint="look whether it asks for a password",
                )
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(fd)
