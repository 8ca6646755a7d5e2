"""How many bytes of keys and values a token takes, exactly, where the header alone says so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from edgellm.formats.gguf_keys import Keys

if TYPE_CHECKING:
    from edgellm.core import ModelInfo
    from edgellm.formats.gguf import GgufHeader
    from edgellm.ggml_types import TensorType

CELLS: Final = 256
"""The engine rounds a context up to a multiple of these (llama-context.cpp, llama.cpp 0c1e57098)."""


@dataclass(frozen=True, slots=True)
class KVSize:
    """The memory of a sequence whose every token is kept in every layer.

    Attributes:
        rows: of each layer, how many values its keys and its values have per token.
    """

    rows: tuple[tuple[int, int], ...]

    def token_bytes(self, kv_type: TensorType) -> int:
        """Return the bytes of one token."""
        n_values = sum(keys + values for keys, values in self.rows)
        return n_values * kv_type.block_bytes // kv_type.block_size

    def context_bytes(self, n_ctx: int, kv_type: TensorType) -> int:
        """Return the bytes of a context of `n_ctx` tokens."""
        return -(-n_ctx // CELLS) * CELLS * self.token_bytes(kv_type)


def kv_size(header: GgufHeader, model: ModelInfo) -> KVSize | None:
    """Return what a token takes, None for memory that does not grow by equal steps.

    Windows stop growing, recurrent states do not grow, indexers keep more: those are the engine's
    to count. MLA keeps one compressed row, which is its key.
    """
    if model.memory not in ("dense", "mla") or not model.n_heads:
        return None
    keys = Keys(header, model.path)
    n, head = model.n_layers, model.n_embd // model.n_heads
    heads = keys.each_layer("attention.head_count", n)
    given = keys.get("attention.head_count_kv") is not None
    kv_heads = keys.each_layer("attention.head_count_kv", n) if given else heads
    key = keys.count("attention.key_length", low=1, default=max(1, head))
    value = keys.count("attention.value_length", low=1, default=max(1, head))
    if keeps_keys_only(header, model):
        value = 0
    return KVSize(tuple((n_kv * key, n_kv * value) for n_kv in kv_heads))


def keeps_keys_only(header: GgufHeader, model: ModelInfo) -> bool:
    """Return whether the engine keeps MLA's compressed row as a key, and no values.

    It does for files that say how long the keys are once they are expanded; older ones have keys and
    values of that length. Source: `llama_hparams::is_mla`, llama.cpp 0c1e57098.
    """
    return Keys(header, model.path).count("attention.key_length_mla", low=0, default=0) > 0
