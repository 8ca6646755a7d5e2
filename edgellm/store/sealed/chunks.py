"""The chunks of an encrypted file, sealed one by one, and the head that binds them to each other.

Layout (little endian): magic 8s | algorithm u16 | 0 u16 | chunk_bytes u32 | key id 16s | salt 32s |
nonce prefix 7s | 0 u8 | chunks. A chunk is `chunk_bytes` of the inner file, the last one what is left
(1 at least), encrypted with AES-256-GCM, and its tag of 16 bytes. This is the STREAM construction
(Hoang, Reyhanitabar, Rogaway, Vizar 2015): the nonce is prefix | number of the chunk, u32 big endian |
1 for the last chunk, else 0; the associated data of each chunk is the whole head; the cipher's key is
derived from the store's key and the salt, so that no key ever sees a nonce twice.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Any, Final

from edgellm.errors import SnapshotCorrupt, SnapshotIncompatible
from edgellm.store.sealed.keys import KEY_ID_BYTES, SALT_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgellm.store.sealed.keys import StoreKey

MAGIC: Final = b"EDGEKX1\0"
AES_256_GCM_STREAM: Final = 1
CHUNK_BYTES: Final = 1 << 17
MIN_CHUNK_BYTES: Final = 1 << 12
MAX_CHUNK_BYTES: Final = 1 << 20
PREFIX_BYTES: Final = 7
TAG_BYTES: Final = 16
HEADER: Final = struct.Struct(f"<8sHHI{KEY_ID_BYTES}s{SALT_BYTES}s{PREFIX_BYTES}sB")
_NONCE_TAIL: Final = struct.Struct(">IB")


def outer_bytes(n_bytes: int, chunk_bytes: int = CHUNK_BYTES) -> int:
    """Return the length of an encrypted file whose inner one has `n_bytes`, 1 at least."""
    return HEADER.size + n_bytes + -(-n_bytes // chunk_bytes) * TAG_BYTES


def new_header(
    key: StoreKey, chunk_bytes: int, random: Callable[[int], bytes] = os.urandom
) -> bytes:
    """Return the head of a new file: no other has its salt and prefix."""
    salt, prefix = random(SALT_BYTES), random(PREFIX_BYTES)
    return HEADER.pack(MAGIC, AES_256_GCM_STREAM, 0, chunk_bytes, key.id, salt, prefix, 0)


def chunk_bytes_of(header: bytes, key: StoreKey) -> int:
    """Return how long the chunks are, from the head of a file that is encrypted under this key.

    Raises:
        SnapshotIncompatible: it is encrypted under another key, or in another way.
        SnapshotCorrupt: no writer writes such a head.
    """
    magic, algorithm, reserved, chunk_bytes, key_id, _, _, zero = HEADER.unpack(header)
    if magic != MAGIC:
        raise SnapshotCorrupt("not an encrypted snapshot")
    if algorithm != AES_256_GCM_STREAM or reserved or zero:
        raise SnapshotIncompatible(f"encrypted in a way ({algorithm}) that is not known here")
    if key_id != key.id:
        raise SnapshotIncompatible("encrypted under another key")
    if not MIN_CHUNK_BYTES <= chunk_bytes <= MAX_CHUNK_BYTES:
        raise SnapshotCorrupt(f"encrypted chunks of {chunk_bytes} bytes")
    return int(chunk_bytes)


class Chunks:
    """The cipher of one file, its nonces, and what every chunk is bound to."""

    def __init__(self, key: StoreKey, header: bytes) -> None:
        fields = HEADER.unpack(header)
        salt: bytes = fields[-3]
        self._prefix: bytes = fields[-2]
        self._header = header
        self._cipher: Any = key.cipher(salt)  # the methods `..._into` are those of newer versions

    def seal(self, index: int, plain: memoryview, out: memoryview, *, last: bool) -> None:
        """Encrypt a chunk into `out`, which is longer by the tag."""
        nonce = self._nonce(index, last=last)
        if hasattr(self._cipher, "encrypt_into"):
            self._cipher.encrypt_into(nonce, plain, self._header, out)
        else:
            out[:] = self._cipher.encrypt(nonce, plain, self._header)

    def open(self, index: int, sealed: memoryview, out: memoryview, *, last: bool) -> None:
        """Check and decrypt a chunk into `out`, which is shorter by the tag.

        Raises:
            SnapshotCorrupt: it is not the chunk that was sealed here; `out` means nothing then.
        """
        from cryptography.exceptions import InvalidTag

        nonce = self._nonce(index, last=last)
        try:
            if hasattr(self._cipher, "decrypt_into"):
                self._cipher.decrypt_into(nonce, sealed, self._header, out)
            else:
                out[:] = self._cipher.decrypt(nonce, sealed, self._header)
        except InvalidTag as err:
            raise SnapshotCorrupt(f"encrypted chunk {index} was changed or is not of here") from err

    def _nonce(self, index: int, *, last: bool) -> bytes:
        return self._prefix + _NONCE_TAIL.pack(index, last)
