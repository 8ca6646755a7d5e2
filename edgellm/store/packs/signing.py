"""Ed25519 keys that vouch for packs: files in PEM, as OpenSSL reads and writes them.

`cryptography` is imported where it is used: it is an extra. A private key never leaves this module
but into its own file.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any, Final

from edgellm.errors import MissingExtra, UsageError
from edgellm.fileio import PRIVATE_FILE_MODE, open_regular, write_atomic

if TYPE_CHECKING:
    from pathlib import Path

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

PUBLIC_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
PUBLIC_SUFFIX: Final = ".pub"
_PUBLIC_MODE: Final = 0o644
_MAX_PEM_BYTES: Final = 4096
_OPEN_TO_OTHERS: Final = 0o077


class Signer:
    """A private key.

    Attributes:
        public: the 32 bytes that verify what it signs.
    """

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public = key.public_key().public_bytes_raw()

    def sign(self, message: bytes) -> bytes:
        """Return 64 bytes."""
        return self._key.sign(message)

    def __repr__(self) -> str:
        return f"Signer({self.public.hex()[:16]})"


def make_keys(path: Path) -> bytes:
    """Write a new private key (mode 0600) and, beside it, `PATH.pub`; return the public key.

    Raises:
        MissingExtra: `cryptography` is not installed.
        UsageError: one of the files is there already: a lost key cannot be made again.
        OSError: they cannot be written.
    """
    ed25519, serialization = _library()
    public_path = path.with_name(path.name + PUBLIC_SUFFIX)
    for file in (path, public_path):  # who has trusted the lost key's packs would have to be told
        if os.path.lexists(file):
            raise UsageError("this file exists", path=file, hint="choose another name")
    key = ed25519.Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    write_atomic(path, private, mode=PRIVATE_FILE_MODE)
    write_atomic(public_path, public, mode=_PUBLIC_MODE)
    return bytes(key.public_key().public_bytes_raw())


def read_signer(path: Path) -> Signer:
    """Read a private key.

    Raises:
        MissingExtra: `cryptography` is not installed.
        UsageError: it is no such key, or others can read it.
        OSError: it cannot be read.
    """
    ed25519, serialization = _library()
    raw, status = _read_pem(path)
    # Whoever could read it could sign as its owner: better told now than after a forgery.
    if os.name != "nt" and status.st_mode & _OPEN_TO_OTHERS:
        raise UsageError(
            f"others can read this key (mode {stat.S_IMODE(status.st_mode):04o})",
            path=path,
            hint=f"chmod 600 {path}, or make a new one if somebody did",
        )
    try:
        key = serialization.load_pem_private_key(raw, None)
    except (ValueError, TypeError) as err:
        raise _no_key(path, "private") from err
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise _no_key(path, "private")
    return Signer(key)


def read_public(path: Path) -> bytes:
    """Read a public key; return its 32 bytes.

    Raises:
        MissingExtra: `cryptography` is not installed.
        UsageError: it is no such key.
        OSError: it cannot be read.
    """
    ed25519, serialization = _library()
    try:
        key = serialization.load_pem_public_key(_read_pem(path)[0])
    except ValueError as err:
        raise _no_key(path, "public") from err
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise _no_key(path, "public")
    return bytes(key.public_bytes_raw())


def is_signed(public: bytes, signature: bytes, message: bytes) -> bool:
    """Return whether the owner of a public key signed a message.

    Raises:
        MissingExtra: `cryptography` is not installed.
    """
    ed25519, _ = _library()
    from cryptography.exceptions import InvalidSignature

    try:
        ed25519.Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def _read_pem(path: Path) -> tuple[bytes, os.stat_result]:
    with open_regular(path, follow=True) as (file, status):
        raw = file.read(_MAX_PEM_BYTES + 1)
    if len(raw) > _MAX_PEM_BYTES:
        raise UsageError("too long for a key", path=path)
    return raw, status


def _no_key(path: Path, kind: str) -> UsageError:
    return UsageError(
        f"no {kind} Ed25519 key in PEM", path=path, hint="`edgellm snapshots keygen` makes a pair"
    )


def _library() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as err:
        raise MissingExtra(
            "signed packs need the package cryptography", hint="pip install 'edgellm[secure]'"
        ) from err
    return ed25519, serialization
