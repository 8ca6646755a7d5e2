"""The front of a snapshot file: its header, checked whole before anything else is read."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING

import xxhash

from edgellm.errors import SnapshotCorrupt, SnapshotError
from edgellm.store.format import layout
from edgellm.store.format.parse import parse_header

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from edgellm.store.disk.files import OpenFile
    from edgellm.store.format.header import SnapshotHeader


def read_header(file: OpenFile) -> tuple[SnapshotHeader, bytes]:
    """Read up to the first section; the file's length is checked against the header."""
    preamble = bytearray(layout.PREAMBLE.size)
    file.fill(preamble)
    magic, header_bytes = layout.PREAMBLE.unpack(preamble)
    if magic != layout.MAGIC:  # a later one would lie in a folder of its own
        raise SnapshotCorrupt("not a snapshot")
    if header_bytes > min(layout.MAX_HEADER_BYTES, file.n_bytes):
        raise SnapshotCorrupt(f"a header of {header_bytes} bytes in a file of {file.n_bytes}")
    rest = bytearray(layout.data_start(header_bytes) - len(preamble))
    file.fill(rest)
    encoded = bytes(rest[:header_bytes])
    digest = bytes(rest[header_bytes : header_bytes + layout.DIGEST_BYTES])
    if xxhash.xxh3_128_digest(bytes(preamble) + encoded) != digest:
        raise SnapshotCorrupt("the header's checksum is wrong")
    if any(rest[header_bytes + layout.DIGEST_BYTES :]):
        raise SnapshotCorrupt("the padding after the header is not zero")
    header = _understood(encoded)
    expected = layout.file_bytes(header, header_bytes)
    if file.n_bytes != expected:
        raise SnapshotCorrupt(f"the header says {expected} bytes, the file has {file.n_bytes}")
    return header, digest


@functools.lru_cache(maxsize=16)
def _understood(encoded: bytes) -> SnapshotHeader:
    """Parse a header and hold it against the rules.

    A program that answers one request after the other opens the same few files each time, and this
    takes as long as reading some megabytes. What is refused is not remembered.
    """
    header = parse_header(encoded)
    layout.check_layout(header)
    return header


@contextlib.contextmanager
def blamed(path: Path) -> Iterator[None]:
    """Name the file in what is wrong with it, a sudden end among that."""
    try:
        yield
    except SnapshotError as err:
        err.path = str(path)
        raise
    except EOFError as err:
        raise SnapshotCorrupt(f"the file ends early, {err}", path=path) from err
