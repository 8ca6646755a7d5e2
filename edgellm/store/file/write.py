"""Writing one snapshot file: arrays are put in order, summed, and written behind their header.

The header holds the checksums, so every exact array is put in order twice, once to sum and once to
write: that is cheaper than a second copy of the whole state in memory. What is packed is written
as it was packed.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from edgellm.core import Tier
from edgellm.errors import SnapshotIncompatible
from edgellm.kernels import transpose_f16
from edgellm.store.format import layout
from edgellm.store.format.header import Extent, PartRow, SectionRow, SnapshotHeader
from edgellm.store.format.parse import parse_header
from edgellm.store.format.runs import ALIGN_BYTES, aligned
from edgellm.store.state import PackedSection, PackedState, PlaneSection, Section

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from edgellm.store.disk.files import Files
    from edgellm.store.format.header import Stored
    from edgellm.store.state import Anchor, Fingerprint, KVState, PlaneState

    AnyState = KVState | PackedState | PlaneState
    AnySection = Section | PackedSection | PlaneSection

_DTYPES = {1: np.dtype(np.uint8), 2: np.dtype(np.uint16), 4: np.dtype(np.uint32)}


def plan(
    fingerprint: Fingerprint,
    token_ids: bytes,
    state: AnyState,
    created_s: int,
    parent: Anchor | None = None,
    cuts: tuple[int, ...] = (),
) -> SnapshotHeader:
    """Return the header under which `state` is written.

    Args:
        fingerprint: of the engine that made the state.
        token_ids: the prefix as little-endian int32.
        state: the memory after exactly these tokens, as its file keeps it: cut where it leans on
            another, and packed.
        created_s: the time to write down.
        parent: what the file leans on, or None.
        cuts: all places strictly inside the prefix where it was cut, ascending.

    Raises:
        SnapshotError: the state cannot be kept, and why.
    """
    if state.n_tokens * layout.TOKEN_BYTES != len(token_ids):
        n = len(token_ids) // layout.TOKEN_BYTES
        raise SnapshotIncompatible(f"the state holds {state.n_tokens} tokens, the prefix {n}")
    tokens = Extent(0, len(token_ids), xxhash.xxh3_128_hexdigest(token_ids))
    end, tier = len(token_ids), tier_of(state)
    says_how = tier is not Tier.EXACT or has_planes(state)
    parts = []
    for part in state.parts:
        rows = []
        for section in part.sections:
            row = _row(section, aligned(end), says_how=says_how)
            end = row.extent.offset + row.extent.n_bytes
            rows.append(row)
        parts.append(PartRow(part.kind, part.first, part.n_tokens, tuple(rows)))
    header = SnapshotHeader(
        fingerprint=fingerprint,
        n_tokens=state.n_tokens,
        tokens_sha256=hashlib.sha256(token_ids).hexdigest(),
        created_s=created_s,
        tokens=tokens,
        parts=tuple(parts),
        tier=tier,
        parent=parent,
        cuts=cuts,
    )
    # What a reader would refuse is not written in the first place.
    layout.check_layout(parse_header(header.encode()))
    return header


def tier_of(state: AnyState) -> Tier:
    """Return the tier under which a state is written."""
    return state.tier if isinstance(state, PackedState) else Tier.EXACT


def write_snapshot(
    files: Files, path: Path, header: SnapshotHeader, token_ids: bytes, state: AnyState
) -> tuple[int, str]:
    """Write a snapshot under its final name, whole or not at all.

    Returns:
        The length of the file in bytes, and 32 hex digits: the checksum of its header.

    Raises:
        SnapshotIncompatible: the header is too long.
        DoesNotFit: the disk is full.
        OSError: the system refused.
    """
    encoded = header.encode()
    if len(encoded) > layout.MAX_HEADER_BYTES:
        raise SnapshotIncompatible(f"a header of {len(encoded)} bytes")
    head = layout.PREAMBLE.pack(layout.MAGIC, len(encoded)) + encoded
    digest = xxhash.xxh3_128_digest(head)
    n_bytes = layout.file_bytes(header, len(encoded))
    with files.writer(path) as out:
        out.write(_padded(head + digest))
        out.write(_padded(token_ids))
        for part in state.parts:
            for section in part.sections:
                content = _content(section)
                out.write(content.data)
                if rest := -content.nbytes % ALIGN_BYTES:
                    out.write(bytes(rest))
        out.write(layout.FOOTER.pack(layout.END_MAGIC, n_bytes, digest))
    return out.n_bytes, digest.hex()


def has_planes(state: AnyState) -> bool:
    """Return whether a section of the state is kept as byte planes."""
    return any(isinstance(s, PlaneSection) for part in state.parts for s in part.sections)


def _row(section: AnySection, offset: int, *, says_how: bool) -> SectionRow:
    shape = _shape(section) if isinstance(section, Section) else section.shape
    content = _content(section)
    extent = Extent(offset, content.nbytes, xxhash.xxh3_128_hexdigest(content.data))
    stored = _stored(section) if says_how else None
    return SectionRow(section.layer, section.role, section.type, shape, extent, stored)


def _stored(section: AnySection) -> Stored:
    if isinstance(section, Section):
        return "exact"
    return "packed" if isinstance(section, PackedSection) else "planes"


def _shape(section: Section) -> tuple[int, int]:
    rows, expected = section.rows, _DTYPES[layout.item_bytes(section.type)]
    if rows.ndim != 2 or rows.dtype != expected or not rows.size:
        raise SnapshotIncompatible(
            f"layer {section.layer} {section.role}: {section.type} as {rows.dtype} {rows.shape}"
        )
    return rows.shape[0], rows.shape[1]


def _content(section: AnySection) -> NDArray[np.uint8]:
    """Return the bytes of a run: a 2-D array in row order, without a copy where it is."""
    if not isinstance(section, Section):
        return section.run
    rows: NDArray[np.unsignedinteger[Any]] = section.rows
    if not rows.flags.c_contiguous:
        if rows.dtype == np.uint16 and rows.strides[0] < rows.strides[1]:
            rows = transpose_f16(rows.T)
        else:
            rows = np.ascontiguousarray(rows)
    return rows.reshape(-1).view(np.uint8)


def _padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % ALIGN_BYTES)
