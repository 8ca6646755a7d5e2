"""Reading one snapshot file: nothing of it is given out before all of it has been checked.

The file is read into memory of our own, never mapped: a file that is cut under a map kills the
process. Memory is taken only after header and file agree on the length to the byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import xxhash

from edgellm.errors import SnapshotCorrupt, SnapshotError
from edgellm.store import layout
from edgellm.store.codec import unpack_state
from edgellm.store.files import open_plain
from edgellm.store.header import parse_header
from edgellm.store.runs import aligned
from edgellm.store.state import Anchor, PackedPart, PackedSection, PackedState, Section

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from edgellm.store.files import Opener, OpenFile
    from edgellm.store.header import Extent, SectionRow, SnapshotHeader
    from edgellm.store.state import KVState, Landing

_DTYPES: Final = {1: "<u1", 2: "<u2", 4: "<u4"}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot file that passed every check.

    Attributes:
        header: what it says of itself.
        n_bytes: length of the file.
        token_ids: the prefix as little-endian int32.
        state: the memory; its arrays are views into one buffer of this object, and another where
            sections were packed.
        anchor: what a longer snapshot may lean on.
    """

    header: SnapshotHeader
    n_bytes: int
    token_ids: bytes
    state: KVState
    anchor: Anchor


def read_snapshot(
    path: Path,
    accept: Callable[[SnapshotHeader], None] = lambda _: None,
    *,
    open_file: Opener = open_plain,
    landing: Landing | None = None,
) -> Snapshot:
    """Read a whole snapshot.

    Args:
        path: the file; links are not followed.
        accept: is given the header before the arrays are read, and raises to stop.
        open_file: opens a file of the store.
        landing: gives the memory to read into, or None for fresh arrays.

    Raises:
        SnapshotCorrupt: the file fails a check.
        SnapshotIncompatible: it asks for something this version cannot do.
        OSError: it cannot be opened or read.
    """
    try:
        with open_file(path) as file:
            header, digest = _read_header(file)
            accept(header)
            data = _read_data(file, header, digest)
        state = _state(header, data)
    except SnapshotError as err:
        err.path = str(path)
        raise
    except EOFError as err:
        raise SnapshotCorrupt(f"the file ends early, {err}", path=path) from err
    token_ids = _cut(data, header.tokens).tobytes()
    anchor = Anchor(path.stem, header.n_tokens, digest.hex())
    return Snapshot(header, file.status.st_size, token_ids, state, anchor)


def read_info(path: Path, *, open_file: Opener = open_plain) -> tuple[SnapshotHeader, int]:
    """Read and check a snapshot's header and length, not its arrays.

    Returns:
        The header and the length of the file in bytes.

    Raises:
        SnapshotCorrupt, SnapshotIncompatible, OSError: as `read_snapshot`.
    """
    try:
        with open_file(path) as file:
            return _read_header(file)[0], file.status.st_size
    except SnapshotError as err:
        err.path = str(path)
        raise
    except EOFError as err:
        raise SnapshotCorrupt(f"the file ends early, {err}", path=path) from err


def read_tokens(path: Path, *, open_file: Opener = open_plain) -> tuple[SnapshotHeader, bytes]:
    """Read and check a snapshot's header, length and token ids, not its arrays.

    Returns:
        The header and the prefix as little-endian int32.

    Raises:
        SnapshotCorrupt, SnapshotIncompatible, OSError: as `read_snapshot`.
    """
    try:
        with open_file(path) as file:
            header = _read_header(file)[0]
            token_ids = bytearray(header.tokens.n_bytes)  # the first run, right behind the header
            file.fill(token_ids)
        if xxhash.xxh3_128_hexdigest(token_ids) != header.tokens.xxh3:
            raise SnapshotCorrupt("the token ids: the checksum is wrong")
    except SnapshotError as err:
        err.path = str(path)
        raise
    except EOFError as err:
        raise SnapshotCorrupt(f"the file ends early, {err}", path=path) from err
    return header, bytes(token_ids)


def _read_header(file: OpenFile) -> tuple[SnapshotHeader, bytes]:
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
    header = parse_header(encoded)
    layout.check_layout(header)
    expected = layout.file_bytes(header, header_bytes)
    if file.n_bytes != expected:
        raise SnapshotCorrupt(f"the header says {expected} bytes, the file has {file.n_bytes}")
    return header, digest


def _read_data(file: OpenFile, header: SnapshotHeader, digest: bytes) -> NDArray[np.uint8]:
    data = np.empty(layout.data_bytes(header), np.uint8)
    file.fill(data.data)
    footer = bytearray(layout.FOOTER.size)
    file.fill(footer)
    if footer != layout.FOOTER.pack(layout.END_MAGIC, file.n_bytes, digest):
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
