"""What a model keeps of tokens, exactly, where the header alone says so: rows of caches, and states.

Source: the constructors in src/llama-kv-cache*.cpp, llama-memory-*.cpp, `create_memory` in llama-model.cpp
and `n_embd_r`, `n_embd_s` in llama-hparams.cpp, llama.cpp 0c1e57098.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from edgellm.formats.gguf_keys import Keys
from edgellm.formats.gguf_layers import indexed_layers, kept_by_layers

if TYPE_CHECKING:
    from edgellm.core import ModelInfo
    from edgellm.formats.gguf import GgufHeader
    from edgellm.formats.gguf_layers import Layer
    from edgellm.ggml_types import TensorType

CELLS: Final = 256
"""The engine rounds a context up to a multiple of these (llama-context.cpp, llama.cpp 0c1e57098)."""

RowKind = Literal["full", "window", "indexer", "compressed"]
_WITH_INDEX: Final = (
    *("deepseek32", "deepseek4", "dots3note", "glm-dsa", "glm5-next", "hy_v4", "minimax-m3"),
    "qwen4exp",
)
_GUESSING_TOO: Final = ("minimax-m3", "hy_v4", "deepseek4", "nanbeige")  # no filter of layers
_NO_CACHE: Final = ("dream", "llada", "llada-moe", "rnd1")  # they see all tokens every time
_FEW, _MANY = 4, 128  # tokens a compressed row stands for, in deepseek4
_MAX_PASSES: Final = 512  # layers times loops, LLAMA_MAX_LAYERS
_CONV_OF_KDA: Final = 4  # where the file does not say


@dataclass(frozen=True, slots=True)
class Rows:
    """What one layer keeps of each token in one cache.

    Attributes:
        layer: whose rows they are.
        kind: why they are kept.
        keys: values of a key row.
        values: values of a value row, 0 where only keys are kept.
        window: tokens after which a row is reused, 0 if all are kept.
        ratio: tokens that share one row.
    """

    layer: int
    kind: RowKind
    keys: int
    values: int
    window: int = 0
    ratio: int = 1


@dataclass(frozen=True, slots=True)
class Recurrence:
    """A state of fixed size that one layer keeps, in 32-bit floats.

    Attributes:
        layer: whose state it is.
        n_values: how many floats.
    """

    layer: int
    n_values: int


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

    Windows stop growing, recurrent states do not grow, indexers keep more. MLA keeps one compressed
    row, which is its key.
    """
    if model.memory not in ("dense", "mla") or not model.n_heads:
        return None
    return KVSize(tuple((row.keys, row.values) for row in kept(header, model)[0]))


def keeps_keys_only(header: GgufHeader, model: ModelInfo) -> bool:
    """Return whether the engine keeps MLA's compressed row as a key, and no values.

    It does for files that say how long the keys are once they are expanded; older ones have keys and
    values of that length. Source: `llama_hparams::is_mla`, llama.cpp 0c1e57098.
    """
    return Keys(header, model.path).count("attention.key_length_mla", low=0, default=0) > 0


def kept(header: GgufHeader, model: ModelInfo) -> tuple[tuple[Rows, ...], tuple[Recurrence, ...]]:
    """Return the rows and the states that a model keeps.

    Raises:
        ModelCorrupt: a number is of the wrong type or out of range.
    """
    keys = Keys(header, model.path)
    if keys.architecture in _NO_CACHE:
        return (), ()
    n = model.n_layers
    n_main = n - min(n, keys.count("nextn_predict_layers", low=0, default=0))
    heads = _kv_heads(keys, n)
    layers = kept_by_layers(keys, n, n_main, heads)
    last = n if keys.architecture in _GUESSING_TOO else n_main
    rows = _attention(keys, layers[:last], heads, keys_only=keeps_keys_only(header, model))
    if keys.architecture in _WITH_INDEX:
        rows += _indexes(keys, layers[:last])
    states = [_state(keys, model, i) for i in range(n_main) if layers[i].state]
    if keys.architecture == "deepseek4":
        rows += _compressed(keys, last)
        states += _partial_blocks(keys, n_main)
    return tuple(_repeated(keys, rows, n)), tuple(state for state in states if state.n_values)


def _kv_heads(keys: Keys, n_layers: int) -> list[int]:
    heads = keys.each_layer("attention.head_count", n_layers, default=0)
    if keys.get("attention.head_count_kv") is None:
        return heads
    return keys.each_layer("attention.head_count_kv", n_layers)


def _head(keys: Keys, what: str) -> int:
    """Return the values of one head's key or value."""
    heads = keys.count("attention.head_count", low=0, default=0)
    default = keys.count("embedding_length", low=1) // heads if heads else 0
    return keys.count(f"attention.{what}_length", low=0, default=default)


def _attention(keys: Keys, layers: list[Layer], heads: list[int], *, keys_only: bool) -> list[Rows]:
    key, value = _head(keys, "key"), _head(keys, "value")
    in_window = (
        keys.count("attention.key_length_swa", low=0, default=key),
        keys.count("attention.value_length_swa", low=0, default=value),
    )
    found = []
    for i, layer in enumerate(layers):
        if not layer.rows:
            continue
        of_key, of_value = in_window if layer.window else (key, value)
        found.append(
            Rows(
                layer=i,
                kind="window" if layer.window else "full",
                keys=heads[i] * of_key,
                values=0 if keys_only or keys.architecture == "deepseek4" else heads[i] * of_value,
                window=layer.window,
            )
        )
    if keys.architecture == "graniteswitch":  # one layer more, which chooses the adapter
        found.append(Rows(len(layers), "full", key, value))
    return found


def _indexes(keys: Keys, layers: list[Layer]) -> list[Rows]:
    """Return one row of a key a token for each index; deepseek4 keeps compressed ones instead."""
    size = keys.count("attention.indexer.key_length", low=0, default=0)
    if not size or keys.architecture == "deepseek4":
        return []
    if keys.architecture == "glm5-next":  # key, gate and pooled values
        size *= 3
    value = _head(keys, "value") if keys.architecture == "minimax-m3" else 0  # never read
    indexed = indexed_layers(keys, len(layers))
    return [
        Rows(i, "indexer", size, value)
        for i, layer in enumerate(layers)
        if indexed[i] and layer.rows and not layer.window
    ]


def _ratios(keys: Keys, n_layers: int) -> list[int]:
    """Return how many tokens share a row in each layer; the list may be longer than the model."""
    value = keys.get("attention.compress_ratios")
    if not isinstance(value, np.ndarray) or value.size < n_layers or value.dtype.kind not in "iu":
        raise keys.corrupt("attention.compress_ratios", f"must be numbers for {n_layers} layers")
    return [int(item) for item in value[:n_layers]]


def _compressed(keys: Keys, n_layers: int) -> list[Rows]:
    ratios = _ratios(keys, n_layers)
    key = _head(keys, "key") * keys.count("attention.head_count_kv", low=0, default=1)
    size = keys.count("attention.indexer.key_length", low=1)
    found = [
        Rows(i, "compressed", key, 0, 0, r) for i, r in enumerate(ratios) if r in (_FEW, _MANY)
    ]
    return found + [Rows(i, "indexer", size, 0, 0, r) for i, r in enumerate(ratios) if r == _FEW]


def _partial_blocks(keys: Keys, n_layers: int) -> list[Recurrence]:
    """Return the blocks that are being compressed: sums and their weights, for rows and index."""
    ratios = _ratios(keys, n_layers)
    key, size = _head(keys, "key"), keys.count("attention.indexer.key_length", low=1)
    values = {_FEW: 2 * (2 * _FEW) * 2 * (key + size), _MANY: 2 * _MANY * key}
    return [Recurrence(i, values[r]) for i, r in enumerate(ratios) if r in values]


def _state(keys: Keys, model: ModelInfo, layer: int) -> Recurrence:
    """Return the state of a recurrent layer: what its convolution saw last, and what it sums up."""

    def count(name: str, default: int = 0) -> int:
        return keys.count(name, low=0, default=default)

    embd, heads = model.n_embd, keys.count("attention.head_count", low=0, default=0)
    conv, inner, state = count("ssm.conv_kernel"), count("ssm.inner_size"), count("ssm.state_size")
    seen = max(0, conv - 1) * (inner + 2 * count("ssm.group_count") * state)
    if size := count("wkv.head_size"):
        return Recurrence(layer, count("token_shift_count", 2) * embd + embd * size)
    if length := count("shortconv.l_cache"):
        return Recurrence(layer, embd * (length - 1) + state * inner)
    if size := count("kda.head_dim"):
        taps = (conv or _CONV_OF_KDA) - 1
        return Recurrence(layer, 3 * taps * heads * size + size * size * heads)
    if keys.architecture == "minimax-01":
        return Recurrence(layer, seen + _head(keys, "key") ** 2 * heads)
    return Recurrence(layer, seen + state * inner + _hashed(keys, model, layer))


def _hashed(keys: Keys, model: ModelInfo, layer: int) -> int:
    """Return what the convolution over hashed n-grams saw last, in the layers that have one."""
    layers = keys.get("ple.layers")
    if keys.architecture != "qwen4exp" or not isinstance(layers, np.ndarray) or layer not in layers:
        return 0
    taps = keys.count("ple.conv_kernel", low=1) - 1
    streams = keys.count("hyper_connection.count", low=1)
    return taps * keys.count("ple.ngram_size", low=1) * streams * model.n_embd


def _repeated(keys: Keys, rows: list[Rows], n_layers: int) -> list[Rows]:
    """Return the rows of every pass, for models that run through their layers more than once."""
    if keys.architecture != "nanbeige":
        return rows
    loops = keys.count("num_loops", low=1, high=max(1, _MAX_PASSES // n_layers), default=1)
    return [
        Rows(row.layer + n_layers * i, row.kind, row.keys, row.values, row.window, row.ratio)
        for i in range(loops)
        for row in rows
    ]
