"""llama.cpp's sequence state, read into a KVState and written back in either V layout.

Layout (little endian, no padding; `llama_kv_cache::state_write`, llama.cpp 0c1e570):
    u32 magic | i32 seq_id | memory, once for dense caches, twice (full layers, window layers) for iSWA
    memory = u32 n_stream | u32 n_cells | n_cells x (i32 pos, u32 n_seq, i32 seq) | u32 v_trans | u32 n_layer
             n_layer x K (i32 type, u64 row_bytes, n_cells rows)
             n_layer x V, the same, or when v_trans: (i32 type, u32 element_bytes, u32 n_channels, channel-major)
Cells come in the order in which they lie, which need not be the order of positions in a window
cache; the canonical rows are sorted by position. Nothing here is believed: every count is checked
against the bytes that are there, and all of them must be used up.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from edgellm.errors import SnapshotIncompatible
from edgellm.ggml_types import TYPES_BY_ID, TYPES_BY_NAME
from edgellm.kernels import transpose_f16
from edgellm.store.state import ELEMENT_BYTES, KVState, Part, Section

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

MAGIC: Final = 0xAF143CD8  # LLAMA_STATE_SEQ_MAGIC of the in-memory form
_CELL: Final = struct.Struct("<iIi")
_ROW_HEAD: Final = struct.Struct("<iQ")
_COLUMN_HEAD: Final = struct.Struct("<iII")
_MAX_LAYERS: Final = 4096
_DTYPES: Final = {2: np.uint16, 4: np.uint32}


@dataclass(frozen=True, slots=True)
class Layout:
    """How this context lays its memory out.

    Attributes:
        kinds: of each memory in order, `dense` or `window`.
        v_trans: values are channel-major, which is so when flash attention was not asked for.
        has_v: False for MLA, whose values are part of the keys.
    """

    kinds: tuple[Any, ...]
    v_trans: bool
    has_v: bool = True


class _Reader:
    """Takes values off the front of a blob; running out of bytes is an error, never a short read."""

    def __init__(self, blob: NDArray[np.uint8]) -> None:
        self._blob = blob
        self.at = 0

    def bytes(self, n: int) -> NDArray[np.uint8]:
        if n < 0 or n > self._blob.size - self.at:
            raise SnapshotIncompatible(
                f"the engine's state ends at byte {self._blob.size}, {n} more expected at {self.at}"
            )
        self.at += n
        return self._blob[self.at - n : self.at]

    def unpack(self, form: struct.Struct) -> tuple[int, ...]:
        return form.unpack(self.bytes(form.size).tobytes())

    def u32(self) -> int:
        return int.from_bytes(self.bytes(4).tobytes(), "little")


def parse(blob: NDArray[np.uint8], layout: Layout, n_tokens: int) -> KVState:
    """Read the engine's bytes as a KVState whose arrays are views of `blob` where they can be.

    Args:
        blob: shape (n_bytes,), as `llama_state_seq_get_data_ext` wrote it.
        layout: what this context should have written.
        n_tokens: how many tokens are in the memory.

    Raises:
        SnapshotIncompatible: the bytes are not of this layout.
    """
    reader = _Reader(blob)
    if reader.u32() != MAGIC:
        raise SnapshotIncompatible("the engine's state does not start with the known magic")
    reader.u32()  # the sequence id, which the engine ignores as well
    parts = tuple(_part(reader, layout, kind, n_tokens) for kind in layout.kinds)
    if reader.at != blob.size:
        raise SnapshotIncompatible(
            f"{blob.size - reader.at} bytes of the engine's state are not accounted for"
        )
    return KVState(n_tokens, parts)


def _part(reader: _Reader, layout: Layout, kind: Any, n_tokens: int) -> Part:
    n_stream, n_cells = reader.u32(), reader.u32()
    if n_stream != 1 or not 1 <= n_cells <= n_tokens:
        raise SnapshotIncompatible(f"{n_stream} streams with {n_cells} cells for {n_tokens} tokens")
    cells = reader.bytes(n_cells * _CELL.size).view(np.int32).reshape(n_cells, 3)
    if (cells[:, 1] != 1).any() or (cells[:, 2] != 0).any():
        raise SnapshotIncompatible("the engine's cells belong to more than one sequence")
    first, order = _positions(cells[:, 0], n_tokens)
    if kind == "dense" and first != 0:
        raise SnapshotIncompatible(f"a full cache starts at position {first}")
    v_trans, n_layers = reader.u32(), reader.u32()
    if v_trans != int(layout.v_trans) or n_layers > _MAX_LAYERS:
        raise SnapshotIncompatible(
            f"v_trans {v_trans} with {n_layers} layers is not this context's"
        )
    sections = [_rows(reader, n_cells, order, layer, "K") for layer in range(n_layers)]
    if layout.has_v:
        read = _columns if layout.v_trans else _rows
        sections += [read(reader, n_cells, order, layer, "V") for layer in range(n_layers)]
    return Part(kind, first, n_cells, tuple(sections))


def _positions(pos: NDArray[np.int32], n_tokens: int) -> tuple[int, NDArray[np.intp] | None]:
    """Return the first position and the order that sorts the cells, None when they are sorted."""
    first = n_tokens - pos.size
    wanted = np.arange(first, n_tokens, dtype=np.int32)
    if np.array_equal(pos, wanted):
        return first, None
    order = np.argsort(pos, kind="stable")
    if not np.array_equal(pos[order], wanted):
        raise SnapshotIncompatible(f"positions {pos.min()}..{pos.max()} of {n_tokens} have gaps")
    return first, order


def _type_name(type_id: int) -> str:
    known = TYPES_BY_ID.get(type_id)
    if known is None:
        raise SnapshotIncompatible(f"KV type {type_id} is not known")
    return known.name


def _rows(
    reader: _Reader, n_cells: int, order: NDArray[np.intp] | None, layer: int, role: Any
) -> Section:
    type_id, row_bytes = reader.unpack(_ROW_HEAD)
    name = _type_name(type_id)
    rows: NDArray[Any] = reader.bytes(n_cells * row_bytes).reshape(n_cells, row_bytes)
    element = ELEMENT_BYTES.get(name)
    if element is not None:
        rows = _elements(rows, element)
    return Section(layer, role, name, rows if order is None else rows[order])


def _columns(
    reader: _Reader, n_cells: int, order: NDArray[np.intp] | None, layer: int, role: Any
) -> Section:
    type_id, element, n_channels = reader.unpack(_COLUMN_HEAD)
    name = _type_name(type_id)
    if ELEMENT_BYTES.get(name) != element:
        raise SnapshotIncompatible(f"{name} values of {element} bytes cannot be channel-major")
    data = reader.bytes(n_channels * n_cells * element).reshape(n_channels, n_cells * element)
    rows = _elements(data, element).T
    return Section(layer, role, name, rows if order is None else rows[order])


def _elements(data: NDArray[np.uint8], element: int) -> NDArray[Any]:
    """View rows of bytes as rows of elements; copies only when the bytes lie at an odd address."""
    dtype = _DTYPES[element]
    if data.shape[1] % element:
        raise SnapshotIncompatible(
            f"rows of {data.shape[1]} bytes do not hold {element}-byte values"
        )
    if data.ctypes.data % element:
        data = data.copy()
    return data.view(dtype)


def build(state: KVState, layout: Layout) -> NDArray[np.uint8]:
    """Write a KVState as the bytes that `llama_state_seq_set_data_ext` reads.

    Raises:
        SnapshotIncompatible: its parts are not those of this layout.
    """
    if tuple(part.kind for part in state.parts) != layout.kinds:
        raise SnapshotIncompatible("the snapshot's memories are not this engine's")
    pieces: list[bytes | NDArray[Any]] = [struct.pack("<Ii", MAGIC, 0)]
    for part in state.parts:
        pieces += _part_pieces(part, layout)
    blob = np.empty(sum(_n_bytes(piece) for piece in pieces), np.uint8)
    at = 0
    for piece in pieces:
        n = _n_bytes(piece)
        _copy(piece, blob[at : at + n])
        at += n
    return blob


def _part_pieces(part: Part, layout: Layout) -> list[bytes | NDArray[Any]]:
    keys = [s for s in part.sections if s.role == "K"]
    values = [s for s in part.sections if s.role == "V"]
    if len(keys) + len(values) != len(part.sections) or len(values) != layout.has_v * len(keys):
        raise SnapshotIncompatible("the snapshot's layers are not this engine's")
    cells = np.zeros((part.n_tokens, 3), np.int32)
    cells[:, 0] = np.arange(part.first, part.first + part.n_tokens)
    cells[:, 1] = 1
    pieces: list[bytes | NDArray[Any]] = [
        struct.pack("<II", 1, part.n_tokens),
        cells,
        struct.pack("<II", layout.v_trans, len(keys)),
    ]
    for section in keys:
        pieces += _row_pieces(section)
    for section in values:
        pieces += _column_pieces(section) if layout.v_trans else _row_pieces(section)
    return pieces


def _row_pieces(section: Section) -> Sequence[bytes | NDArray[Any]]:
    row_bytes = section.rows.shape[1] * section.rows.itemsize
    return _ROW_HEAD.pack(TYPES_BY_NAME[section.type].id, row_bytes), section.rows


def _column_pieces(section: Section) -> Sequence[bytes | NDArray[Any]]:
    if section.type not in ELEMENT_BYTES:
        raise SnapshotIncompatible(f"{section.type} values cannot be laid out channel-major")
    n_channels, size = section.rows.shape[1], section.rows.itemsize
    head = _COLUMN_HEAD.pack(TYPES_BY_NAME[section.type].id, size, n_channels)
    rows = section.rows
    return head, transpose_f16(rows) if size == 2 else np.ascontiguousarray(rows.T)


def _n_bytes(piece: bytes | NDArray[Any]) -> int:
    return len(piece) if isinstance(piece, bytes) else int(piece.nbytes)


def _copy(piece: bytes | NDArray[Any], into: NDArray[np.uint8]) -> None:
    if isinstance(piece, bytes):
        into[:] = np.frombuffer(piece, np.uint8)
    else:
        into[:] = np.ascontiguousarray(piece).reshape(-1).view(np.uint8)
