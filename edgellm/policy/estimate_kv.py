"""The memory of a sequence under given settings, exactly: keys, values, indexes, states.

Source: `GGML_PAD` of cells in llama-context.cpp, llama-kv-cache-iswa.cpp and llama-kv-cache-dsv4.cpp,
`n_embd_v_gqa_max` in llama-kv-cache.cpp, llama.cpp 0c1e57098.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from edgellm.formats.gguf_memory import CELLS
from edgellm.ggml_types import TYPES_BY_NAME

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgellm.formats.gguf_memory import Rows
    from edgellm.formats.gguf_shape import ModelShape
    from edgellm.ggml_types import TensorType

_STATE_BYTES: Final = 4  # states are of 32-bit floats, whatever the type of keys and values
LEAST_CTX: Final = 256
"""The smallest context that is made."""


def kv_bytes_by_layer(
    shape: ModelShape, *, n_ctx: int, n_batch: int, kv_type: str, transposed: bool
) -> Mapping[int, int]:
    """Return the bytes that each layer keeps for a context.

    Args:
        shape: the model's sizes.
        n_ctx: tokens of the context.
        n_batch: tokens of one decode call, which a window must hold as well.
        kv_type: ggml's name of the type of keys and values.
        transposed: whether values are kept by columns, as without flash attention: then all layers
            have as many as the widest.

    Raises:
        KeyError: a type that ggml does not have.
    """
    kind = TYPES_BY_NAME[kv_type]
    widest = max((row.values for row in shape.rows if row.kind != "indexer"), default=0)
    found: dict[int, int] = {}
    for row in shape.rows:
        values = widest if transposed and row.values and row.kind != "indexer" else row.values
        cells = row_cells(row, n_ctx, n_batch)
        n_bytes = cells * (_row_bytes(kind, row.keys) + _row_bytes(kind, values))
        found[row.layer] = found.get(row.layer, 0) + n_bytes
    for state in shape.recurrences:
        found[state.layer] = found.get(state.layer, 0) + state.n_values * _STATE_BYTES
    return found


def _row_bytes(kind: TensorType, n_values: int) -> int:
    """Return the bytes of a row; one that does not fill its blocks is refused by the engine later."""
    return -(-n_values // kind.block_size) * kind.block_bytes


def context_cells(n_ctx: int) -> int:
    """Return how many tokens a context of `n_ctx` really has room for."""
    return _rounded(max(n_ctx, LEAST_CTX))


def row_cells(row: Rows, n_ctx: int, n_batch: int) -> int:
    """Return how many tokens a cache has room for."""
    all_cells = context_cells(n_ctx)
    if row.window:
        n_batch = min(n_batch, max(n_ctx, LEAST_CTX))
        return _rounded(min(all_cells, row.window + n_batch))
    if row.ratio > 1:
        return _rounded(-(-all_cells // row.ratio))
    return all_cells


def _rounded(n_cells: int) -> int:
    """Return a number of cells as the engine rounds it."""
    return -(-n_cells // CELLS) * CELLS
