"""Which memories a context has, and how each lies in the engine's state bytes.

The state of an empty sequence shows the library's own word, before anything is decoded: an attention
memory is `u32 1 stream, u32 0 cells`, a recurrent one `u32 0 cells`, then the heads of its rows. That
must be a sequence of memories that the model's header announces; where it is not, the state is kept
as bytes that only the library understands.
Source: `state_write` in llama-kv-cache.cpp, llama-memory-recurrent.cpp and those built of them,
llama.cpp 0c1e570.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from edgellm.engines.llamacpp.reader import Reader
from edgellm.errors import SnapshotIncompatible

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAGIC: Final = 0xAF143CD8  # LLAMA_STATE_SEQ_MAGIC of the in-memory form
EXTRA_BYTES: Final = 12  # llama_kv_cell_ext: two more positions of M-RoPE, and the token
ROW_HEAD: Final = struct.Struct("<iQ")  # element type, bytes of a row
_F32: Final = 0  # what recurrent memory is kept in, whatever the type of keys and values

# (what the header announces, what the library has: attention or recurrent) to what they are. The
# last attention memory of `ara` and the second of `indexer` hold the keys of the sparse indexer.
_PARTS: Final[dict[tuple[str, str], tuple[Literal["dense", "window", "recurrent"], ...]]] = {
    ("dense", "a"): ("dense",),
    ("mla", "a"): ("dense",),
    ("window", "a"): ("dense",),  # the library does not use the window that the header states
    ("window", "aa"): ("dense", "window"),
    ("indexer", "a"): ("dense",),
    ("indexer", "aa"): ("dense", "dense"),
    ("indexer", "aaa"): ("dense", "dense", "window"),
    ("recurrent", "r"): ("recurrent",),
    ("hybrid", "ar"): ("dense", "recurrent"),
    ("hybrid", "aar"): ("dense", "window", "recurrent"),
    ("hybrid", "ara"): ("dense", "recurrent", "dense"),
}


@dataclass(frozen=True, slots=True)
class Announced:
    """What is known of a model's memory without asking for its state.

    Attributes:
        kind: `ModelInfo.memory`.
        keys_only: values are part of the keys (MLA).
        extra_cells: cells hold `EXTRA_BYTES` more, as with M-RoPE.
        n_layers: of the model.
    """

    kind: str
    keys_only: bool
    extra_cells: bool
    n_layers: int


@dataclass(frozen=True, slots=True)
class AttentionLayout:
    """A memory with one cell for each position.

    Attributes:
        kind: whether all positions are kept.
        has_v: False where values are part of the keys, or there are none.
        n_extra_bytes: what a cell holds beside position and sequence.
    """

    kind: Literal["dense", "window"]
    has_v: bool = True
    n_extra_bytes: int = 0


@dataclass(frozen=True, slots=True)
class RecurrentLayout:
    """A memory with one cell for the sequence.

    Attributes:
        n_layers: of the model, which is what the library writes.
        r_bytes, s_bytes: of each recurrent layer, the bytes of its two states; 0 where it has none.
    """

    n_layers: int
    r_bytes: tuple[int, ...]
    s_bytes: tuple[int, ...]
    kind: Literal["recurrent"] = "recurrent"


@dataclass(frozen=True, slots=True)
class Layout:
    """How a context lays its memory out.

    Attributes:
        parts: its memories in order; none when only the library understands them.
        v_trans: values are channel-major, which is so when flash attention was not asked for.
    """

    parts: tuple[AttentionLayout | RecurrentLayout, ...]
    v_trans: bool

    @property
    def kinds(self) -> tuple[str, ...]:
        """Return the kind of each part."""
        return tuple(part.kind for part in self.parts) or ("opaque",)

    @property
    def moves(self) -> bool:
        """Return whether a restored memory lies differently from one that was decoded.

        Windows are rings, and a restore starts the ring anew; of what is not understood, it is
        assumed.
        """
        return not self.parts or "window" in self.kinds


def read_layout(empty: NDArray[np.uint8], announced: Announced, *, v_trans: bool) -> Layout:
    """Return the layout of a context.

    Args:
        empty: its state while its sequence is empty, shape (n_bytes,).
        announced: what the model's header and the library say beforehand.
        v_trans: see `Layout`.
    """
    try:
        found = _read_shape(empty, announced.n_layers)
    except SnapshotIncompatible:
        return Layout((), v_trans)
    shape = "".join("r" if part else "a" for part in found)
    kinds = _PARTS.get((announced.kind, shape), ())
    parts: list[AttentionLayout | RecurrentLayout] = []
    for i, kind in enumerate(kinds):
        recurrent = found[i]
        if kind == "recurrent":
            parts += [recurrent] if recurrent else []
            continue
        is_indexer = kind == "dense" and i > 0
        parts.append(
            AttentionLayout(
                kind,
                # The indexer beside a recurrent memory has keys only, others are as the main one.
                has_v=not announced.keys_only and not (is_indexer and "r" in shape),
                n_extra_bytes=EXTRA_BYTES * (announced.extra_cells and not is_indexer),
            )
        )
    return Layout(tuple(parts), v_trans)


def _read_shape(empty: NDArray[np.uint8], n_layers: int) -> list[RecurrentLayout | None]:
    """Return the memories of an empty sequence in order, None for those with a cell a position.

    Raises:
        SnapshotIncompatible: they are of no known form.
    """
    reader = Reader(empty)
    if reader.u32() != MAGIC:
        raise SnapshotIncompatible("the engine's state does not start with the known magic")
    reader.u32()
    found: list[RecurrentLayout | None] = []
    while reader.n_left:
        n = reader.u32()
        if n == 0:
            found.append(_read_recurrent(reader, n_layers))
        elif n == 1 and reader.u32() == 0:
            found.append(None)
        else:
            raise SnapshotIncompatible("not an empty memory of one stream")
    return found


def _read_recurrent(reader: Reader, n_layers: int) -> RecurrentLayout:
    s_trans, n_announced = reader.u32(), reader.u32()
    row_bytes: list[int] = []
    while reader.peek_u32() == _F32:
        row_bytes.append(reader.unpack(ROW_HEAD)[1])
    n = len(row_bytes) // 2
    if s_trans or n_announced != n_layers or not 0 < len(row_bytes) == 2 * n <= 2 * n_layers:
        raise SnapshotIncompatible(f"{len(row_bytes)} states of {n_announced} layers")
    r_bytes, s_bytes = tuple(row_bytes[:n]), tuple(row_bytes[n:])
    if len(set(r_bytes)) + len(set(s_bytes)) != 2:  # one size each
        raise SnapshotIncompatible("the states of the layers differ in size")
    return RecurrentLayout(n_layers, r_bytes, s_bytes)
