"""Byte planes: sections whose high bytes are compressed and whose low bytes are as they were.

The high byte of a float holds its sign and most of its exponent, which repeat; the low bytes are
noise that nothing makes smaller. A run is the low bytes of every element in order (one of f16 and
bf16, three of f32), zeros up to a multiple of 64, then one Zstandard frame of all the high bytes.
So no run stands for more than about twice its length, whatever it says, and the memory that it is
unpacked into has its size before the first byte is unpacked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from edgellm.errors import SnapshotCorrupt, SnapshotIncompatible
from edgellm.store.format.runs import aligned
from edgellm.store.state import ELEMENT_BYTES, PlanePart, PlaneSection, PlaneState

if TYPE_CHECKING:
    from types import ModuleType

    from numpy.typing import NDArray

    from edgellm.store.state import KVState, Section

LEVEL: Final = 1
"""Of Zstandard: higher ones take longer and save less than a thousandth of f16 keys and values."""


def library() -> ModuleType | None:
    """Return the module that compresses, or None where it is not installed."""
    try:
        import zstandard
    except ImportError:
        return None
    return zstandard


def has_length(type_name: str, n_elements: int, n_bytes: int) -> bool:
    """Return whether a run of `n_bytes` can hold so many elements, and is shorter than plain rows.

    Args:
        type_name: of the elements, one of `ELEMENT_BYTES`.
        n_elements: a Python integer, of any size.
        n_bytes: of the run.
    """
    item_bytes = ELEMENT_BYTES[type_name]
    return aligned(n_elements * (item_bytes - 1)) < n_bytes < n_elements * item_bytes


def plane_state(state: KVState) -> KVState | PlaneState:
    """Return a state with the sections that this makes smaller as byte planes, or as it was.

    The runs are fresh memory; the other sections are those of `state`.
    """
    if library() is None:
        return state
    parts = tuple(
        PlanePart(part.kind, part.first, part.n_tokens, tuple(_plane(s) for s in part.sections))
        for part in state.parts
    )
    if any(isinstance(section, PlaneSection) for part in parts for section in part.sections):
        return PlaneState(state.n_tokens, parts)
    return state


def _plane(section: Section) -> Section | PlaneSection:
    if section.type not in ELEMENT_BYTES or section.rows.ndim != 2:
        return section
    run = split(section.rows)
    if run is None:
        return section
    shape = (section.rows.shape[0], section.rows.shape[1])
    return PlaneSection(section.layer, section.role, section.type, shape, run)


def split(rows: NDArray[np.unsignedinteger[Any]]) -> NDArray[np.uint8] | None:
    """Return the run of an array, or None where it would not be shorter than plain rows.

    Args:
        rows: shape (n, m), dtype uint16 or uint32, little-endian, any strides.
    """
    zstandard = library()
    if zstandard is None:
        return None
    item_bytes = rows.itemsize
    items = np.ascontiguousarray(rows).reshape(-1).view(np.uint8).reshape(-1, item_bytes)
    high = np.ascontiguousarray(items[:, -1])
    frame = zstandard.ZstdCompressor(level=LEVEL).compress(high.data)
    low_bytes = high.size * (item_bytes - 1)
    run = np.zeros(aligned(low_bytes) + len(frame), np.uint8)
    if run.size >= rows.nbytes:
        return None
    run[:low_bytes].reshape(-1, item_bytes - 1)[...] = items[:, :-1]
    run[aligned(low_bytes) :] = np.frombuffer(frame, np.uint8)
    return run


def join(run: NDArray[np.uint8], out: NDArray[np.unsignedinteger[Any]], where: str) -> None:
    """Write the elements of a run to `out`.

    Args:
        run: shape (n_bytes,); its length was held against `has_length`.
        out: shape (n, m), dtype uint16 or uint32, any strides.
        where: names the section in errors.

    Raises:
        SnapshotCorrupt: it is not the run of so many elements.
        SnapshotIncompatible: `zstandard` is not installed.
    """
    item_bytes = out.itemsize
    low_bytes = out.size * (item_bytes - 1)
    start = aligned(low_bytes)
    if run[low_bytes:start].any():
        raise SnapshotCorrupt(f"{where}: the padding in it is not zero")
    high = _unpacked(run[start:], out.size, where)
    is_plain = out.flags.c_contiguous
    items = np.empty((out.size, item_bytes), np.uint8)
    if is_plain:
        items = out.reshape(-1).view(np.uint8).reshape(-1, item_bytes)
    items[:, :-1] = run[:low_bytes].reshape(-1, item_bytes - 1)
    items[:, -1] = high
    if not is_plain:
        out[...] = items.reshape(-1).view(out.dtype).reshape(out.shape)


def _unpacked(frame: NDArray[np.uint8], n_bytes: int, where: str) -> NDArray[np.uint8]:
    """Unpack a frame that says it holds exactly `n_bytes`; what says otherwise is not unpacked."""
    zstandard = library()
    if zstandard is None:
        raise SnapshotIncompatible(f"{where}: the package zstandard is not installed")
    try:
        found = zstandard.frame_content_size(frame.data)
        if found != n_bytes:
            raise SnapshotCorrupt(f"{where}: {found} high bytes, expected {n_bytes}")
        unpacker = zstandard.ZstdDecompressor()
        high = unpacker.decompress(frame.data, allow_extra_data=False)
    except zstandard.ZstdError as err:
        raise SnapshotCorrupt(f"{where}: the high bytes cannot be unpacked ({err})") from err
    if len(high) != n_bytes:
        raise SnapshotCorrupt(f"{where}: {len(high)} high bytes, expected {n_bytes}")
    return np.frombuffer(high, np.uint8)
