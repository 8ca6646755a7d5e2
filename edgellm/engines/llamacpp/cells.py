"""The cells of an attention memory: which position each row is of, and what M-RoPE adds.

A cell is i32 pos | u32 n_seq, 1 here | [i32 x, y, token with M-RoPE] | i32 sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from edgellm.errors import SnapshotIncompatible

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edgellm.engines.llamacpp.memory import AttentionLayout
    from edgellm.engines.llamacpp.reader import Reader

_WORD_BYTES: Final = 4
_PLAIN_WORDS: Final = 3


@dataclass(frozen=True, slots=True)
class Cells:
    """The checked cells of one memory.

    Attributes:
        first: position of the first one.
        n: how many there are; they hold the positions `first` to `first + n - 1`.
        order: sorts the rows by position; None where they are sorted.
        extra: what the cells hold beside, sorted, shape (n, n_extra_bytes); None without.
    """

    first: int
    n: int
    order: NDArray[np.intp] | None
    extra: NDArray[np.uint8] | None


def read_cells(reader: Reader, layout: AttentionLayout, n_tokens: int) -> Cells:
    """Take the cells of a memory that ends with token `n_tokens`.

    Raises:
        SnapshotIncompatible: they are not those of one sequence without gaps.
    """
    n_stream, n = reader.u32(), reader.u32()
    if n_stream != 1 or not 1 <= n <= n_tokens:
        raise SnapshotIncompatible(f"{n_stream} streams with {n} cells for {n_tokens} tokens")
    n_words = _PLAIN_WORDS + layout.n_extra_bytes // _WORD_BYTES
    data = reader.bytes(n * n_words * _WORD_BYTES)
    cells = data.view(np.int32).reshape(n, n_words)
    if (cells[:, 1] != 1).any() or cells[:, -1].any():
        raise SnapshotIncompatible("the engine's cells belong to more than one sequence")
    first, order = _positions(cells[:, 0], n_tokens)
    if layout.kind == "dense" and first != 0:
        raise SnapshotIncompatible(f"a full cache starts at position {first}")
    if not layout.n_extra_bytes:
        return Cells(first, n, order, None)
    extra = extra_of(data, n)
    return Cells(first, n, order, extra if order is None else extra[order])


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


def extra_of(cells: NDArray[np.uint8], n: int) -> NDArray[np.uint8]:
    """Return what `n` cells hold between the number of sequences and the sequence, as a view.

    Args:
        cells: all bytes of them.
        n: how many there are.
    """
    return cells.reshape(n, -1)[:, 2 * _WORD_BYTES : -_WORD_BYTES]


def make_cells(first: int, n: int, layout: AttentionLayout) -> NDArray[np.int32]:
    """Return sorted cells of one sequence, with zeros for the rest of them, shape (n, n_words)."""
    cells = np.zeros((n, _PLAIN_WORDS + layout.n_extra_bytes // _WORD_BYTES), np.int32)
    cells[:, 0] = np.arange(first, first + n)
    cells[:, 1] = 1
    return cells
