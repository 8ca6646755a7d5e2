"""Answers that came packed though nobody asked for it: unpacked in bounded pieces.

A few hundred bytes can stand for gigabytes, and packed twice for a million times that. So a piece is
unpacked as far as it is handed on, one packing at most, and of the two kinds that Python itself knows.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

from edgellm.errors import EndpointError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MAX_PIECE_BYTES: Final = 1 << 16
_PLAIN: Final = ("", "identity")
_PACKED: Final = ("gzip", "x-gzip", "deflate")
_GZIP_OR_ZLIB: Final = 32 + zlib.MAX_WBITS  # told apart by their first bytes


def unpacked(pieces: Iterable[bytes], encoding: str, where: str) -> Iterator[bytes]:
    """Yield the bytes of an answer, at most `MAX_PIECE_BYTES` at once where it was packed.

    Args:
        pieces: as they came.
        encoding: the answer's `Content-Encoding`, or "".
        where: the endpoint, in messages.

    Raises:
        EndpointError: it is packed in a way nobody asked for, or what came cannot be unpacked.
    """
    kind = encoding.strip().lower()
    if kind in _PLAIN:
        yield from pieces
        return
    if kind not in _PACKED:
        raise EndpointError(
            f"{where} packs its answer in a way that nobody asked for", kind="protocol", status=200
        )
    unpacker = zlib.decompressobj(_GZIP_OR_ZLIB)
    try:
        for packed in pieces:
            rest = packed
            while rest and not unpacker.eof:
                if piece := unpacker.decompress(rest, MAX_PIECE_BYTES):
                    yield piece
                rest = unpacker.unconsumed_tail
        while piece := unpacker.decompress(unpacker.unconsumed_tail, MAX_PIECE_BYTES):
            yield piece
    except zlib.error as err:
        raise EndpointError(f"{where} sent what cannot be unpacked", kind="protocol") from err
    if not unpacker.eof:
        raise EndpointError(f"{where} sent only a part of a packed answer", kind="incomplete")
