"""StoreKey: the 32 bytes under which a store is encrypted, and where they come from.

Nothing here ever shows the bytes: not in a message, a `repr`, a log line or a pickle. Who asked for
a key and cannot have it gets an error, never a store of plain files.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING, Final, NoReturn

from edgellm.errors import MissingExtra, UsageError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES: Final = 32
KEY_ID_BYTES: Final = 16
SALT_BYTES: Final = 32
_FOR_ID: Final = b"edgellm snapshots 1: key id"
_FOR_NAMES: Final = b"edgellm snapshots 1: names"
_FOR_FILE: Final = b"edgellm snapshots 1: file"


class StoreKey:
    """A key of a snapshot store, and what is derived from it.

    Every use has a key of its own, by HKDF-SHA256 (RFC 5869) with another `info`: the id that files
    carry, the names of files, and the content of each single file.

    Args:
        secret: 32 bytes, from a good source of randomness.

    Attributes:
        id: 16 bytes that tell one key from another and nothing about either.

    Raises:
        UsageError: these are not 32 bytes, or all of them are the same.
        MissingExtra: `cryptography` is not installed.
    """

    __slots__ = ("_names", "_secret", "id")

    def __init__(self, secret: bytes) -> None:
        if not isinstance(secret, (bytes, bytearray, memoryview)) or len(secret) != KEY_BYTES:
            what = f"{len(secret)} bytes" if isinstance(secret, bytes) else type(secret).__name__
            raise UsageError(
                f"a snapshot key is {KEY_BYTES} bytes, not {what}",
                hint="make one with os.urandom(32)",
            )
        if len(set(bytes(secret))) == 1:
            raise UsageError(
                "a snapshot key of one byte repeated protects nothing",
                hint="make one with os.urandom(32)",
            )
        self._secret = bytes(secret)
        self.id = self._derived(b"", _FOR_ID, KEY_ID_BYTES)
        self._names = self._derived(b"", _FOR_NAMES, KEY_BYTES)

    def name(self, kind: str, content: bytes) -> str:
        """Return 64 hex digits that name some content, and mean nothing without the key.

        Args:
            kind: what is named, so that names of one kind say nothing about another.
            content: of any length.
        """
        message = kind.encode("ascii") + b"\0" + content
        return hmac.new(self._names, message, hashlib.sha256).hexdigest()

    def hand_over(self) -> bytes:
        """Return the secret itself, for the process that keeps snapshots in this one's name."""
        return self._secret

    def cipher(self, salt: bytes) -> AESGCM:
        """Return the cipher of the one file that has this salt."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        return AESGCM(self._derived(salt, _FOR_FILE, KEY_BYTES))

    def _derived(self, salt: bytes, info: bytes, n_bytes: int) -> bytes:
        try:
            from cryptography.hazmat.primitives.hashes import SHA256
            from cryptography.hazmat.primitives.kdf.hkdf import HKDF
        except ImportError as err:
            raise MissingExtra(
                "encrypted snapshots need the package cryptography",
                hint="pip install 'edgellm[secure]', or leave the key away",
            ) from err
        return HKDF(SHA256(), n_bytes, salt, info).derive(self._secret)

    def __repr__(self) -> str:
        return f"StoreKey(id={self.id.hex()[:8]})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a snapshot key is not pickled")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StoreKey):
            return NotImplemented
        return hmac.compare_digest(self._secret, other._secret)

    def __hash__(self) -> int:
        return hash(self.id)
