"""Reading one snapshot file: nothing of it is given out before all of it has been checked.

The file is read into memory of our own, never mapped: a file that is cut under a map kills the
process. Memory is taken only after header and file agree on the length to the byte.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Final

import numpy as np
import xxhash

from edgellm.errors import SnapshotCorrupt, SnapshotError, SnapshotIncompatible
from edgellm.fileio import open_regular, read_exactly
from edgellm.store import layout
from edgellm.store.codec import unpack_state
from edgellm.store.header import parse_header
from edgellm.store.runs import aligned
from edgellm.store.state import PackedPart, PackedSection, PackedState, Section

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from edgellm.store.header import Extent, SectionRow, SnapshotHeader
    from edgellm.store.state import KVState

_DTYPES: Final = {1: "<u1", 2: "<u2", 4: "<u4"}
_WRITABLE_BY_OTHERS: Final = 0o022


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot file that passed every check.

    Attributes:
        header: what it says of itself.
        n_bytes: length of the file.
        token_ids: the prefix as little-endian int32.
        state: the memory; its arrays are views into one buffer of this object, and another where
            sections were packed.
    """

    header: SnapshotHeader
    n_bytes: int
    token_ids: bytes
    state: KVState


def read_snapshot(
    path: Path, accept: Callable[[SnapshotHeader], None] = lambda _: None
) -> Snapshot:
    """Read a whole snapshot.

    Args:
        path: the file; links are not followed.
        accept: is given the header before the arrays are read, and raises to stop.

    Raises:
        SnapshotCorrupt: the file fails a check.
        SnapshotIncompatible: it asks for something this version cannot do.
        OSError: it cannot be opened or read.
    """
    try:
        with open_regular(path) as (file, status):
            header, digest = _read_header(file, status)
            accept(header)
            data = _read_data(file, status, header, digest)
        state = _state(header, data)
    except SnapshotError as err:
        err.path = str(path)
        raise
    except EOFError as err:
        raise SnapshotCorrupt(f"the file ends early, {err}", path=path) from err
    token_ids = _cut(data, header.tokens).tobytes()
    return Snapshot(header, status.st_size, token_ids, state)


def read_info(path: Path) -> tuple[SnapshotHeader, int]:
    """Read and check a snapshot's header and length, not its arrays.

    Returns:
        The header and the length of the file in bytes.

    Raises:
        SnapshotCorrupt, SnapshotIncompatible, OSError: as `read_snapshot`.
    """
    try:
        with open_regular(path) as (file, status):
            return _read_header(file, status)[0], status.st_size
    except SnapshotError as err:
        err.path = str(path)
        raise
    except EOFError as err:
        raise SnapshotCorrupt(f"the file ends early, {err}", path=path) from err


def read_tokens(path: Path) -> tuple[SnapshotHeader, bytes]:
    """Read and check a snapshot's header, length and token ids, not its arrays.

    Returns:
        The header and the prefix as little-endian int32.

    Raises:
        SnapshotCorrupt, SnapshotIncompatible, OSError: as `read_snapshot`.
    """
    try:
        with open_regular(path) as (file, status):
            header = _read_header(file, status)[0]
            token_ids = bytearray(header.tokens.n_bytes)  # the first run, right behind the header
            read_exactly(file, token_ids)
        if xxhash.xxh3_128_hexdigest(token_ids) != header.tokens.xxh3:
            raise SnapshotCorrupt("the token ids: the checksum is wrong")
    except SnapshotError as err:
        err.path = str(path)
        raise
    except EOFError as err:
        raise SnapshotCorrupt(f"the file ends early, {err}", path=path) from err
    return header, bytes(token_ids)


def refuse_foreign_folders(path: Path) -> None:
    """Refuse a snapshot whose two folders in the store are not real ones of our own.

    Raises:
        SnapshotIncompatible: one is a link or belongs to somebody else.
        OSError: one is not there or cannot be looked at.
    """
    for folder in (path.parent.parent, path.parent):
        status = folder.lstat()
        if stat.S_ISLNK(status.st_mode):
            raise SnapshotIncompatible(f"the folder {folder} is a link")
        _refuse_owner(status, f"the folder {folder}")


def _read_header(file: BinaryIO, status: os.stat_result) -> tuple[SnapshotHeader, bytes]:
    """Read up to the first section; the file's length is checked against the header."""
    _refuse_strangers(status)
    preamble = bytearray(layout.PREAMBLE.size)
    read_exactly(file, preamble)
    magic, header_bytes = layout.PREAMBLE.unpack(preamble)
    if magic != layout.MAGIC:  # a later one would lie in a folder of its own
        raise SnapshotCorrupt("not a snapshot")
    if header_bytes > min(layout.MAX_HEADER_BYTES, status.st_size):
        raise SnapshotCorrupt(f"a header of {header_bytes} bytes in a file of {status.st_size}")
    rest = bytearray(layout.data_start(header_bytes) - len(preamble))
    read_exactly(file, rest)
    encoded = bytes(rest[:header_bytes])
    digest = bytes(rest[header_bytes : header_bytes + layout.DIGEST_BYTES])
    if xxhash.xxh3_128_digest(bytes(preamble) + encoded) != digest:
        raise SnapshotCorrupt("the header's checksum is wrong")
    if any(rest[header_bytes + layout.DIGEST_BYTES :]):
        raise SnapshotCorrupt("the padding after the header is not zero")
    header = parse_header(encoded)
    layout.check_layout(header)
    expected = layout.file_bytes(header, header_bytes)
    if status.st_size != expected:
        raise SnapshotCorrupt(f"the header says {expected} bytes, the file has {status.st_size}")
    return header, digest


def _refuse_strangers(status: os.stat_result) -> None:
    """Refuse files that somebody else could change while they are in use."""
    if status.st_nlink > 1:
        raise SnapshotIncompatible(f"the file has {status.st_nlink} names")
    _refuse_owner(status, "the file")
    if os.name != "nt" and status.st_mode & _WRITABLE_BY_OTHERS:
        mode = stat.S_IMODE(status.st_mode)
        raise SnapshotIncompatible(f"others may change the file (mode {mode:04o})")


def _refuse_owner(status: os.stat_result, what: str) -> None:
    if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
        raise SnapshotIncompatible(f"{what} belongs to user {status.st_uid}")


def _read_data(
    file: BinaryIO, status: os.stat_result, header: SnapshotHeader, digest: bytes
) -> NDArray[np.uint8]:
    n_bytes = layout.data_bytes(header)
    data = np.empty(n_bytes, np.uint8)
    read_exactly(file, data.data)
    footer = bytearray(layout.FOOTER.size)
    read_exactly(file, footer)
    if footer != layout.FOOTER.pack(layout.END_MAGIC, status.st_size, digest):
        raise SnapshotCorrupt("the footer is wrong")
    for i, extent in enumerate(header.extents()):
        content = _cut(data, extent)
        if xxhash.xxh3_128_hexdigest(content.data) != extent.xxh3:
            raise SnapshotCorrupt(f"section {i} at {extent.offset}: the checksum is wrong")
        end = extent.offset + extent.n_bytes
        if data[end : aligned(end)].any():
            raise SnapshotCorrupt(f"section {i}: the padding after it is not zero")
    return data


def _cut(data: NDArray[np.uint8], extent: Extent) -> NDArray[np.uint8]:
    return data[extent.offset : extent.offset + extent.n_bytes]


def _state(header: SnapshotHeader, data: NDArray[np.uint8]) -> KVState:
    """Give the checked bytes their shapes, and unpack what was packed.

    Raises:
        SnapshotCorrupt: a packed section holds what no writer writes.
    """
    parts = tuple(
        PackedPart(
            kind=part.kind,
            first=part.first,
            n_tokens=part.n_tokens,
            sections=tuple(_section(row, data) for row in part.sections),
        )
        for part in header.parts
    )
    return unpack_state(PackedState(header.n_tokens, parts, header.tier))


def _section(row: SectionRow, data: NDArray[np.uint8]) -> Section | PackedSection:
    run = _cut(data, row.extent)
    if row.is_packed:
        return PackedSection(row.layer, row.role, row.type, row.shape, run)
    items = run.view(_DTYPES[layout.item_bytes(row.type)])
    return Section(row.layer, row.role, row.type, items.reshape(row.shape))
