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
from edgellm.store.format import planes
from edgellm.store.format.runs import aligned, run_of
from edgellm.store.format.tiers import PACKED_TYPE
from edgellm.store.state import ELEMENT_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgellm.core import Tier
    from edgellm.store.format.header import PartRow, SectionRow, SnapshotHeader
    from edgellm.store.state import PackedPart, Part

MAGIC: Final = b"EDGEKV1\0"
END_MAGIC: Final = b"EDGEKVE\0"
PREAMBLE: Final = struct.Struct("<8sI")
"""Magic and the header's length; the header's JSON follows."""

FOOTER: Final = struct.Struct("<8sQ16s")
"""End magic, length of the whole file, and the header's checksum again."""

DIGEST_BYTES: Final = 16
MAX_HEADER_BYTES: Final = 1 << 20
TOKEN_BYTES: Final = 4

MAX_LINKS: Final = 32
"""Files that a state may be spread over: each one costs an open descriptor and its header."""

BLOB_TYPE: Final = "u8"
_BYTE_ROLES: Final = ("blob", "X")
_ROLES: Final[Mapping[str, tuple[str, ...]]] = {
    "dense": ("K", "V", "X"),
    "window": ("K", "V", "X"),
    "recurrent": ("R", "S"),
    "opaque": ("blob",),
}
"""The roles that a part of each kind may have, in their order."""


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
    if header.cuts and header.cuts[-1] >= header.n_tokens:
        raise SnapshotCorrupt(f"a cut at {header.cuts[-1]} of {header.n_tokens} tokens")
    parent = header.parent
    base_tokens = parent.n_tokens if parent is not None else 0
    if base_tokens >= header.n_tokens:
        raise SnapshotCorrupt(f"{header.n_tokens} tokens lean on {base_tokens}")
    if parent is not None and not any(is_cut(part) for part in header.parts):
        raise SnapshotCorrupt("it leans on another file and takes nothing from it")
    end = 0
    for extent in header.extents():
        if extent.offset != aligned(end):
            raise SnapshotCorrupt(f"a section at {extent.offset}, expected at {aligned(end)}")
        end = extent.offset + extent.n_bytes
    for part in header.parts:
        _check_part(part, header, base_tokens)


def is_cut(part: PartRow | Part | PackedPart) -> bool:
    """Return whether a file that leans on another leaves the first rows of this part to it."""
    return part.kind == "dense" and bool(part.sections)


def _check_part(part: PartRow, header: SnapshotHeader, base_tokens: int) -> None:
    last = part.first + part.n_tokens
    first = base_tokens if is_cut(part) else 0
    is_at_its_place = part.kind in ("window", "recurrent") or part.first == first
    if last != header.n_tokens or part.n_tokens < 1 or not is_at_its_place:
        raise SnapshotCorrupt(
            f"a {part.kind} part holds positions {part.first} to {last} of {header.n_tokens}"
        )
    if part.kind == "recurrent" and part.n_tokens != 1:
        raise SnapshotCorrupt(f"a recurrent part of {part.n_tokens} positions")
    for row in part.sections:
        _check_section(row, part, header.tier)
    _check_order(part)


def _check_order(part: PartRow) -> None:
    """Demand layers 0, 1, ... of each role in turn: engines go by the order alone."""
    found = [(row.layer, row.role) for row in part.sections]
    counts = {role: sum(other == role for _, other in found) for role in _ROLES[part.kind]}
    n_keys, n_values, n_more = (counts.get(role, 0) for role in ("K", "V", "X"))
    if n_values not in (0, n_keys) or n_more > 1:
        raise SnapshotCorrupt(f"{n_keys} layers of K and {n_values} of V, {n_more} of X")
    expected = [(layer, role) for role, n in counts.items() for layer in range(n)]
    for (layer, role), (wanted, wanted_role) in zip(found, expected, strict=True):
        if (layer, role) != (wanted, wanted_role):
            raise SnapshotCorrupt(
                f"layer {layer} {role} where layer {wanted} {wanted_role} belongs"
            )


def _check_section(row: SectionRow, part: PartRow, tier: Tier) -> None:
    n_rows, width = row.shape
    where = f"layer {row.layer} {row.role}"
    if not _has_length(row, part, tier):
        raise SnapshotCorrupt(f"{where}: {row.extent.n_bytes} bytes for shape {row.shape}")
    opaque = part.kind == "opaque"
    if n_rows != (1 if opaque else part.n_tokens):
        raise SnapshotCorrupt(f"{where}: {n_rows} rows for {part.n_tokens} positions")
    is_bytes = row.type == BLOB_TYPE
    if row.role not in _ROLES[part.kind] or is_bytes != (row.role in _BYTE_ROLES):
        raise SnapshotCorrupt(f"{where}: {row.type} in a part of kind {part.kind}")
    if is_bytes:
        return
    tensor_type = TYPES_BY_NAME.get(row.type)
    if tensor_type is None:
        raise SnapshotIncompatible(f"{where}: unknown element type {row.type[:40]!r}")
    if row.type not in ELEMENT_BYTES and width % tensor_type.block_bytes:
        raise SnapshotCorrupt(f"{where}: rows of {width} bytes are not whole {row.type} blocks")


def _has_length(row: SectionRow, part: PartRow, tier: Tier) -> bool:
    """Return whether the run of a section has a length that its shape allows."""
    n_bytes = row.extent.n_bytes
    n_elements = row.shape[0] * row.shape[1]
    if row.stored == "planes":
        return row.type in ELEMENT_BYTES and planes.has_length(row.type, n_elements, n_bytes)
    if row.stored == "packed":
        run = run_of(tier, row.role, row.shape, part.first)
        return run is not None and row.type == PACKED_TYPE and run.n_bytes == n_bytes
    return n_elements * item_bytes(row.type) == n_bytes
