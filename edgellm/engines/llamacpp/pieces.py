"""What a state's bytes are made of: known bytes, and room for the rows of each section, in order.

The layout is that of `blob.py`; what is laid out comes from a file and must be this context's.
"""

from __future__ import annotations

import functools
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from edgellm.engines.llamacpp.blob import COLUMN_HEAD, RECURRENT_HEAD
from edgellm.engines.llamacpp.cells import extra_of, make_cells
from edgellm.engines.llamacpp.memory import MAGIC, ROW_HEAD, RecurrentLayout
from edgellm.engines.llamacpp.reader import dtype_of
from edgellm.errors import SnapshotIncompatible
from edgellm.ggml_types import TYPES_BY_NAME
from edgellm.store.state import ELEMENT_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from edgellm.engines.llamacpp.memory import AttentionLayout, Layout
    from edgellm.store.state import PartOutline, SectionOutline


def _as_it_is(room: NDArray[np.uint8]) -> NDArray[Any]:
    return room


@dataclass(frozen=True, slots=True)
class Piece:
    """Some of a state's bytes.

    Attributes:
        n_bytes: how many.
        fixed: what the first of them are, as far as that is known.
        section: whose rows belong there, or None.
        view: shows the bytes as those rows, of any strides.
    """

    n_bytes: int
    fixed: bytes = b""
    section: SectionOutline | None = None
    view: Callable[[NDArray[np.uint8]], NDArray[Any]] = _as_it_is


@functools.lru_cache(maxsize=4)  # a session restores the same prefixes again and again
def state_pieces(parts: tuple[PartOutline, ...], layout: Layout) -> tuple[tuple[Piece, ...], ...]:
    """Return what a state of these shapes is made of, in order, for each part.

    Raises:
        SnapshotIncompatible: a state of this layout has other parts or sections.
    """
    if tuple(part.kind for part in parts) != layout.kinds:
        raise SnapshotIncompatible("the snapshot's memories are not this engine's")
    ends = {part.first + part.n_tokens for part in parts}
    if len(ends) != 1 or any(
        part.n_tokens < 1 or part.first < 0 or (part.kind == "dense" and part.first)
        for part in parts
    ):
        held = ", ".join(f"{part.n_tokens} from {part.first}" for part in parts)
        raise SnapshotIncompatible(f"memories that hold {held} are not of one moment")
    if not layout.parts:
        return (tuple(_opaque_pieces(parts[0])),)
    pieces = [
        _recurrent_pieces(part, its)
        if isinstance(its, RecurrentLayout)
        else _attention_pieces(part, its, v_trans=layout.v_trans)
        for part, its in zip(parts, layout.parts, strict=True)
    ]
    pieces[0].insert(0, _fixed(struct.pack("<Ii", MAGIC, 0)))
    return tuple(tuple(of_part) for of_part in pieces)


def _opaque_pieces(part: PartOutline) -> list[Piece]:
    if len(part.sections) != 1 or part.sections[0].shape[0] != 1:
        raise SnapshotIncompatible("a state that only the engine understands is one blob")
    section = part.sections[0]
    _expect(section, (0, "blob", "u8", 1))
    return [Piece(section.shape[1], b"", section, lambda room: room.reshape(1, room.size))]


def _attention_pieces(part: PartOutline, layout: AttentionLayout, *, v_trans: bool) -> list[Piece]:
    n_extra = layout.n_extra_bytes
    n_layers, rest = divmod(len(part.sections) - bool(n_extra), 1 + layout.has_v)
    if rest or n_layers < 0:
        raise SnapshotIncompatible("the snapshot's layers are not this engine's")
    keys, others = part.sections[:n_layers], part.sections[n_layers:]
    values, extra = others[: n_layers * layout.has_v], others[n_layers * layout.has_v :]
    n = part.n_tokens
    pieces = [_fixed(struct.pack("<II", 1, n)), _cell_piece(part, layout, extra)]
    pieces.append(_fixed(struct.pack("<II", v_trans, n_layers)))
    for layer, section in enumerate(keys):
        _expect(section, (layer, "K", section.type, n))
        pieces.append(_rows(section))
    for layer, section in enumerate(values):
        _expect(section, (layer, "V", section.type, n))
        pieces.append(_columns(section) if v_trans else _rows(section))
    return pieces


def _cell_piece(
    part: PartOutline, layout: AttentionLayout, extra: tuple[SectionOutline, ...]
) -> Piece:
    cells = make_cells(part.first, part.n_tokens, layout).tobytes()
    if not extra:
        return _fixed(cells)
    _expect(extra[0], (0, "X", "u8", part.n_tokens))
    if extra[0].shape[1] != layout.n_extra_bytes:
        raise SnapshotIncompatible(
            f"cells hold {layout.n_extra_bytes} bytes more: {extra[0].shape}"
        )
    return Piece(len(cells), cells, extra[0], lambda room: extra_of(room, part.n_tokens))


def _recurrent_pieces(part: PartOutline, layout: RecurrentLayout) -> list[Piece]:
    if part.n_tokens != 1:
        raise SnapshotIncompatible(f"a recurrent memory of {part.n_tokens} rows")
    pieces = [_fixed(RECURRENT_HEAD.pack(1, part.first, 0, 0, layout.n_layers))]
    left = list(part.sections)
    for role, widths in (("R", layout.r_bytes), ("S", layout.s_bytes)):
        for layer, row_bytes in enumerate(widths):
            if not row_bytes:
                pieces.append(_fixed(ROW_HEAD.pack(TYPES_BY_NAME["f32"].id, 0)))
                continue
            if not left:
                raise SnapshotIncompatible("the snapshot's layers are not this engine's")
            section = left.pop(0)
            _expect(section, (layer, role, "f32", 1))
            if section.shape[1] * ELEMENT_BYTES["f32"] != row_bytes:
                raise SnapshotIncompatible(f"state {role} of {section.shape[1]} values")
            pieces.append(_rows(section))
    if left:
        raise SnapshotIncompatible("the snapshot's layers are not this engine's")
    return pieces


def _expect(section: SectionOutline, wanted: tuple[int, str, str, int]) -> None:
    found = (section.layer, section.role, section.type, section.shape[0])
    if found != wanted:
        raise SnapshotIncompatible(f"a section is {found}, expected {wanted}")


def _rows(section: SectionOutline) -> Piece:
    dtype = np.dtype(dtype_of(section.type))
    n, width = section.shape
    head = ROW_HEAD.pack(_type_id(section), width * dtype.itemsize)
    start = len(head)

    def view(room: NDArray[np.uint8]) -> NDArray[Any]:
        return room[start:].view(dtype).reshape(n, width)

    return Piece(start + n * width * dtype.itemsize, head, section, view)


def _columns(section: SectionOutline) -> Piece:
    if section.type not in ELEMENT_BYTES:
        raise SnapshotIncompatible(f"{section.type} values cannot be laid out channel-major")
    dtype = np.dtype(dtype_of(section.type))
    n, width = section.shape
    head = COLUMN_HEAD.pack(_type_id(section), dtype.itemsize, width)
    start = len(head)

    def view(room: NDArray[np.uint8]) -> NDArray[Any]:
        return room[start:].view(dtype).reshape(width, n).T

    return Piece(start + n * width * dtype.itemsize, head, section, view)


def _type_id(section: SectionOutline) -> int:
    known = TYPES_BY_NAME.get(section.type)
    if known is None:
        raise SnapshotIncompatible(f"{section.type!r} is no type of keys and values")
    return known.id


def _fixed(data: bytes) -> Piece:
    return Piece(len(data), data)
