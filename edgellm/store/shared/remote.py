r"""RemoteTier: a place for snapshots that several machines share, and how a value in it is sealed.

A value is one snapshot file behind a seal:
    magic `EDGERT1\0` | HMAC-SHA256(value key, name | content), 32 bytes | content
Its name is an HMAC as well, over the fingerprint's digest and the prefix's identity, so that whoever can list the
names of the place, but has not the secret, can neither tell which prompts lie there nor put one there.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from edgellm.errors import SnapshotCorrupt, UsageError
from edgellm.store.disk.names import identity_of
from edgellm.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

MAGIC: Final = b"EDGERT1\0"
_DIGEST_BYTES: Final = 32
SEAL_BYTES: Final = len(MAGIC) + _DIGEST_BYTES
MIN_SECRET_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Exchanged:
    """What went over the wire so far.

    Attributes:
        n_asked: how often the place was asked for a snapshot.
        n_fetched: how many came and were good.
        n_refused: how many came, or would have, and were not used: broken, foreign, too large, slow.
        n_sent: how many were put there.
        bytes_in, bytes_out: of values, whether they were good or not.
    """

    n_asked: int = 0
    n_fetched: int = 0
    n_refused: int = 0
    n_sent: int = 0
    bytes_in: int = 0
    bytes_out: int = 0

    def __str__(self) -> str:
        """Return one line for `--stats`."""
        came = f"{self.n_fetched} came ({format_bytes(self.bytes_in)})"
        sent = f"{self.n_sent} sent ({format_bytes(self.bytes_out)})"
        return f"asked {self.n_asked}, {came}, {self.n_refused} refused, {sent}"


class RemoteTier(Protocol):
    """A place that keeps byte strings under names. Every failure, of any kind, is a `FetchError`."""

    def size(self, name: str) -> int | None:
        """Return the length of a value in bytes, or None without one.

        Raises:
            FetchError: the place cannot be asked.
        """

    def read(self, name: str, start: int, n_bytes: int) -> bytes:
        """Return a piece of a value; shorter where it ends, empty where it is gone.

        Raises:
            FetchError: the place cannot be asked.
        """

    def write(self, name: str, pieces: Sequence[bytes | bytearray]) -> None:
        """Keep a value, whole or not at all, in place of one of that name.

        Raises:
            FetchError: the place did not take it.
        """

    def close(self) -> None:
        """Give the connection back. Calling it again does nothing."""


class Seals:
    """Names and seals under one shared secret.

    Args:
        secret: what all machines that share the place know, at least 16 bytes.

    Raises:
        UsageError: the secret is too short to be one.
    """

    def __init__(self, secret: bytes) -> None:
        if len(secret) < MIN_SECRET_BYTES:
            raise UsageError(
                f"the shared secret has {len(secret)} bytes, {MIN_SECRET_BYTES} are needed",
                hint="`openssl rand -hex 32` makes a good one",
            )
        # Two keys, so that no name can pass for a seal.
        self._name_key = _mac(secret, b"edgellm remote name 1")
        self._value_key = _mac(secret, b"edgellm remote value 1")

    def name(self, digest: str, token_ids: bytes, cuts: Sequence[int] = ()) -> str:
        """Return the name of a snapshot, 64 hex digits.

        Args:
            digest: of the fingerprint, 64 hex digits.
            token_ids: the prefix as little-endian int32.
            cuts: all places strictly inside it where it was cut, ascending.
        """
        return _mac(self._name_key, bytes.fromhex(digest), identity_of(token_ids, cuts)).hex()

    def seal(self, name: str, content: bytes | bytearray) -> tuple[bytes, bytes | bytearray]:
        """Return a value in two pieces: the seal and the content itself."""
        return MAGIC + _mac(self._value_key, name.encode(), content), content

    def open(self, name: str, value: memoryview) -> memoryview:
        """Return the content of a value, a view of it.

        Raises:
            SnapshotCorrupt: it was not sealed under this name with this secret.
        """
        if bytes(value[: len(MAGIC)]) != MAGIC:
            raise SnapshotCorrupt("the shared value is no sealed snapshot")
        content = value[SEAL_BYTES:]
        expected = _mac(self._value_key, name.encode(), content)
        if not hmac.compare_digest(expected, bytes(value[len(MAGIC) : SEAL_BYTES])):
            raise SnapshotCorrupt("the seal of the shared value is wrong")
        return content


def _mac(key: bytes, *pieces: bytes | bytearray | memoryview) -> bytes:
    mac = hmac.new(key, digestmod=hashlib.sha256)
    for piece in pieces:
        mac.update(piece)
    return mac.digest()
