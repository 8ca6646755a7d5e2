"""llama.cpp's sequence state, read into a KVState; `frame.py` writes it back.

Layout (little endian, no padding): u32 magic | i32 sequence | the memories, one after the other.
An attention memory (`cells.py`), one row a cell:
    u32 n_stream | u32 n_cells | cells | u32 v_trans | u32 n_layers
    n_layers x K (i32 type, u64 row_bytes, n_cells rows)
    n_layers x V, the same, or when v_trans: (i32 type, u32 element_bytes, u32 n_channels, channel-major)
A recurrent memory, one row for the sequence:
    u32 1 cell | i32 pos, u32 0 | u32 0 | u32 n_layers | R, then S, of each recurrent layer, as K above
Cells come in the order in which they lie, which need not be the order of positions in a window
memory; the canonical rows are sorted by position. Nothing here is believed: every count is checked
against the bytes that are there and against what the context showed when it was empty, and all
bytes must be used up.
Source: `state_write` in llama-kv-cache.cpp and llama-memory-recurrent.cpp, llama.cpp 0c1e570.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

from edgellm.engines.llamacpp.cells import read_cells
from edgellm.engines.llamacpp.memory import MAGIC, ROW_HEAD, RecurrentLayout
from edgellm.engines.llamacpp.reader import Reader, as_elements, type_name
from edgellm.errors import SnapshotIncompatible
from edgellm.store.state import ELEMENT_BYTES, KVState, Part, Section

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from edgellm.engines.llamacpp.memory import AttentionLayout, Layout
    from edgellm.store.state import Role

COLUMN_HEAD: Final = struct.Struct("<iII")
RECURRENT_HEAD: Final = struct.Struct("<IiIII")
_MAX_LAYERS: Final = 4096


def parse(blob: NDArray[np.uint8], layout: Layout, n_tokens: int) -> KVState:
    """Read the engine's bytes as a KVState whose arrays are views of `blob` where they can be.

    Args:
        blob: shape (n_bytes,), as `llama_state_seq_get_data_ext` wrote it.
        layout: what this context should have written.
        n_tokens: how many tokens are in the memory.

    Raises:
        SnapshotIncompatible: the bytes are not of this layout.
    """
    reader = Reader(blob)
    if reader.u32() != MAGIC:
        raise SnapshotIncompatible("the engine's state does not start with the known magic")
    if not layout.parts:
        section = Section(0, "blob", "u8", blob.reshape(1, -1))
        return KVState(n_tokens, (Part("opaque", 0, n_tokens, (section,)),))
    reader.u32()  # the sequence id, which the engine ignores as well
    parts = tuple(
        _recurrent(reader, part, n_tokens)
        if isinstance(part, RecurrentLayout)
        else _attention(reader, part, n_tokens, v_trans=layout.v_trans)
        for part in layout.parts
    )
    if reader.n_left:
        raise SnapshotIncompatible(
            f"{reader.n_left} bytes of the engine's state are not accounted for"
        )
    return KVState(n_tokens, parts)


def _attention(reader: Reader, layout: AttentionLayout, n_tokens: int, *, v_trans: bool) -> Part:
    cells = read_cells(reader, layout, n_tokens)
    found, n_layers = reader.u32(), reader.u32()
    if found != int(v_trans) or n_layers > _MAX_LAYERS:
        raise SnapshotIncompatible(f"v_trans {found} with {n_layers} layers is not this context's")
    n, order = cells.n, cells.order
    sections = [_rows(reader, n, order, layer, "K") for layer in range(n_layers)]
    if layout.has_v:
        read = _columns if v_trans else _rows
        sections += [read(reader, n, order, layer, "V") for layer in range(n_layers)]
    if cells.extra is not None:
        sections.append(Section(0, "X", "u8", cells.extra))
    return Part(layout.kind, cells.first, n, tuple(sections))


def _rows(
    reader: Reader, n_cells: int, order: NDArray[np.intp] | None, layer: int, role: Role
) -> Section:
    type_id, row_bytes = reader.unpack(ROW_HEAD)
    name = type_name(type_id)
    data = reader.bytes(n_cells * row_bytes).reshape(n_cells, row_bytes)
    return _section(as_elements(data, name), order, layer, role, name)


def _columns(
    reader: Reader, n_cells: int, order: NDArray[np.intp] | None, layer: int, role: Role
) -> Section:
    type_id, element, n_channels = reader.unpack(COLUMN_HEAD)
    name = type_name(type_id)
    if ELEMENT_BYTES.get(name) != element:
        raise SnapshotIncompatible(f"{name} values of {element} bytes cannot be channel-major")
    data = reader.bytes(n_channels * n_cells * element).reshape(n_channels, n_cells * element)
    return _section(as_elements(data, name).T, order, layer, role, name)


def _section(
    rows: NDArray[Any], order: NDArray[np.intp] | None, layer: int, role: Role, name: str
) -> Section:
    return Section(layer, role, name, rows if order is None else rows[order])


def _recurrent(reader: Reader, layout: RecurrentLayout, n_tokens: int) -> Part:
    head = reader.unpack(RECURRENT_HEAD)
    if head != (1, n_tokens - 1, 0, 0, layout.n_layers):
        raise SnapshotIncompatible(f"a recurrent memory of {head} after {n_tokens} tokens")
    sections: list[Section] = []
    states: tuple[tuple[Role, tuple[int, ...]], ...] = (
        ("R", layout.r_bytes),
        ("S", layout.s_bytes),
    )
    for role, widths in states:
        for layer, row_bytes in enumerate(widths):
            found = reader.unpack(ROW_HEAD)
            if found != (0, row_bytes):
                raise SnapshotIncompatible(f"state {role} of layer {layer} is {found}")
            if row_bytes:
                rows = as_elements(reader.bytes(row_bytes).reshape(1, row_bytes), "f32")
                sections.append(Section(layer, role, "f32", rows))
    return Part("recurrent", n_tokens - 1, 1, tuple(sections))
