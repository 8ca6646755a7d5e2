"""The arrays that a snapshot is read into: where the engine wants them, or in fresh memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from edgellm.store.format import layout
from edgellm.store.format.runs import aligned
from edgellm.store.state import KVState, Part, PartOutline, Section, SectionOutline

if TYPE_CHECKING:
    from edgellm.store.format.header import PartRow, SnapshotHeader
    from edgellm.store.state import Landing

    Outline = tuple[PartOutline, ...]

DTYPES: Final[dict[int, np.dtype[Any]]] = {
    1: np.dtype("<u1"),
    2: np.dtype("<u2"),
    4: np.dtype("<u4"),
}
"""Of rows, by the bytes of an element; see `layout.item_bytes`."""


def outline_of(header: SnapshotHeader) -> Outline:
    """Return the parts of the whole state, with the rows that the file leaves to others."""
    return tuple(_whole(part, header.n_tokens) for part in header.parts)


def state_for(header: SnapshotHeader, landing: Landing | None) -> KVState:
    """Return the state that a header describes, whose rows are to be filled.

    Args:
        header: held against the files that it leans on, which bounds the memory that is taken.
        landing: asked first; what it gives is taken if it is of this outline and writable.

    Raises:
        MemoryError: there is not enough for fresh arrays.
    """
    outline = outline_of(header)
    given = landing(outline) if landing is not None else None
    if given is not None and given.n_tokens == header.n_tokens and _fits(given, outline):
        return given
    return KVState(header.n_tokens, _fresh(outline))


def _whole(part: PartRow, n_tokens: int) -> PartOutline:
    is_cut = layout.is_cut(part)
    sections = tuple(
        SectionOutline(s.layer, s.role, s.type, (n_tokens if is_cut else s.shape[0], s.shape[1]))
        for s in part.sections
    )
    if is_cut:
        return PartOutline(part.kind, 0, n_tokens, sections)
    return PartOutline(part.kind, part.first, part.n_tokens, sections)


def _fits(state: KVState, outline: Outline) -> bool:
    found = [
        (part.kind, part.first, part.n_tokens, [_given(section) for section in part.sections])
        for part in state.parts
    ]
    return found == [
        (part.kind, part.first, part.n_tokens, [_wanted(section) for section in part.sections])
        for part in outline
    ]


def _given(section: Section) -> tuple[object, ...]:
    rows = section.rows
    own = (section.layer, section.role, section.type, rows.shape, rows.dtype)
    return (*own, rows.flags.writeable)


def _wanted(section: SectionOutline) -> tuple[object, ...]:
    dtype = DTYPES[layout.item_bytes(section.type)]
    return (section.layer, section.role, section.type, section.shape, dtype, True)


def _fresh(outline: Outline) -> tuple[Part, ...]:
    """Take one piece of memory for all rows: many small ones cost more page faults."""
    sizes = [_n_bytes(section) for part in outline for section in part.sections]
    free = np.empty(sum(aligned(n_bytes) for n_bytes in sizes), np.uint8)
    parts = []
    for part in outline:
        sections = []
        for section in part.sections:
            n_bytes = _n_bytes(section)
            items = free[:n_bytes].view(DTYPES[layout.item_bytes(section.type)])
            rows = items.reshape(section.shape)
            sections.append(Section(section.layer, section.role, section.type, rows))
            free = free[aligned(n_bytes) :]
        parts.append(Part(part.kind, part.first, part.n_tokens, tuple(sections)))
    return tuple(parts)


def _n_bytes(section: SectionOutline) -> int:
    return section.shape[0] * section.shape[1] * layout.item_bytes(section.type)
