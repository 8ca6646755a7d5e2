"""Where every byte of a snapshot file lies: one place for each, none left over.

The layout follows from the arrays alone: each run starts at the next multiple of 64 after the one
before, in the order tokens, then sections. A header that says anything else is refused, so every
byte of a file is header, checksummed content, zero padding, or footer.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from edgellm.errors import SnapshotCorrupt, SnapshotIncompatible
from edgellm.ggml_types import TYPES_BY_NAME
from edgellm.store.runs import aligned, run_of
from edgellm.store.state import ELEMENT_BYTES
from edgellm.store.tiers import PACKED_TYPE

if TYPE_CHECKING:
    from edgellm.core import Tier
    from edgellm.store.header import PartRow, SectionRow, SnapshotHeader

MAGIC: Final = b"EDGEKV1\0"
END_MAGIC: Final = b"EDGEKVE\0"
PREAMBLE: Final = struct.Struct("<8sI")
"""Magic and the header's length; the header's JSON follows."""

FOOTER: Final = struct.Struct("<8sQ16s")
"""End magic, length of the whole file, and the header's checksum again."""

DIGEST_BYTES: Final = 16
MAX_HEADER_BYTES: Final = 1 << 20
TOKEN_BYTES: Final = 4
BLOB_TYPE: Final = "u8"


def data_start(header_bytes: int) -> int:
    """Return the offset of the first byte after a header of that length, checksum and padding."""
    return aligned(PREAMBLE.size + header_bytes + DIGEST_BYTES)


def data_bytes(header: SnapshotHeader) -> int:
    """Return the length of tokens, sections and their padding."""
    last = header.extents()[-1]
    return aligned(last.offset + last.n_bytes)


def file_bytes(header: SnapshotHeader, header_bytes: int) -> int:
    """Return the length of the whole file."""
    return data_start(header_bytes) + data_bytes(header) + FOOTER.size


def item_bytes(type_name: str) -> int:
    """Return the bytes of one array element as the store sees it: 1 for rows of bytes."""
    return ELEMENT_BYTES.get(type_name, 1)


def check_layout(header: SnapshotHeader) -> None:
    """Hold a header against the rules of the format.

    Raises:
        SnapshotCorrupt: sizes, offsets or positions contradict each other.
        SnapshotIncompatible: an element type is unknown.
    """
    if header.tokens.n_bytes != header.n_tokens * TOKEN_BYTES:
        raise SnapshotCorrupt(f"{header.n_tokens} tokens in {header.tokens.n_bytes} bytes")
    end = 0
    for extent in header.extents():
        if extent.offset != aligned(end):
            raise SnapshotCorrupt(f"a section at {extent.offset}, expected at {aligned(end)}")
        end = extent.offset + extent.n_bytes
    for part in header.parts:
        _check_part(part, header.n_tokens, header.tier)


def _check_part(part: PartRow, n_tokens: int, tier: Tier) -> None:
    last = part.first + part.n_tokens
    if last != n_tokens or part.n_tokens < 1 or (part.first and part.kind != "window"):
        raise SnapshotCorrupt(
            f"a {part.kind} part holds positions {part.first} to {last} of {n_tokens}"
        )
    for row in part.sections:
        _check_section(row, part, tier)
    _check_order(part)


def _check_order(part: PartRow) -> None:
    """Demand K of layers 0, 1, ..., then V of all of them or none: engines go by the order alone."""
    n_rows = len(part.sections)
    n_keys = sum(row.role == "K" for row in part.sections)
    if part.kind == "opaque":
        expected = [(layer, "blob") for layer in range(n_rows)]
    elif n_rows in (n_keys, 2 * n_keys):
        expected = [(row % n_keys, "K" if row < n_keys else "V") for row in range(n_rows)]
    else:
        raise SnapshotCorrupt(f"{n_keys} layers of K and {n_rows - n_keys} of V")
    for row, (layer, role) in zip(part.sections, expected):  # noqa: B905  (equally long)
        if (row.layer, row.role) != (layer, role):
            raise SnapshotCorrupt(
                f"layer {row.layer} {row.role} where layer {layer} {role} belongs"
            )


def _check_section(row: SectionRow, part: PartRow, tier: Tier) -> None:
    n_rows, width = row.shape
    where = f"layer {row.layer} {row.role}"
    if _run_bytes(row, part, tier) != row.extent.n_bytes:
        raise SnapshotCorrupt(f"{where}: {row.extent.n_bytes} bytes for shape {row.shape}")
    opaque = part.kind == "opaque"
    if n_rows != (1 if opaque else part.n_tokens):
        raise SnapshotCorrupt(f"{where}: {n_rows} rows for {part.n_tokens} positions")
    if opaque != (row.role == "blob") or opaque != (row.type == BLOB_TYPE):
        raise SnapshotCorrupt(f"{where}: {row.type} in a part of kind {part.kind}")
    if opaque:
        return
    tensor_type = TYPES_BY_NAME.get(row.type)
    if tensor_type is None:
        raise SnapshotIncompatible(f"{where}: unknown element type {row.type[:40]!r}")
    if row.type not in ELEMENT_BYTES and width % tensor_type.block_bytes:
        raise SnapshotCorrupt(f"{where}: rows of {width} bytes are not whole {row.type} blocks")


def _run_bytes(row: SectionRow, part: PartRow, tier: Tier) -> int:
    """Return the length that the run of a section must have; 0 where it cannot be packed."""
    if not row.is_packed:
        return row.shape[0] * row.shape[1] * item_bytes(row.type)
    run = run_of(tier, row.role, row.shape, part.first)
    return run.n_bytes if run is not None and row.type == PACKED_TYPE else 0
