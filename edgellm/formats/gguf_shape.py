"""What a model takes, as sizes: its weights, the rows it keeps a token, the widths it computes with.

Everything here follows from the header alone, and holds for any context, batch or machine; what those
make of it is the memory estimate's to say. What the header does not settle stands in `unknown`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from edgellm.formats.gguf_families import ARCHITECTURES
from edgellm.formats.gguf_keys import Keys
from edgellm.formats.gguf_memory import kept

if TYPE_CHECKING:
    from edgellm.core import ModelInfo
    from edgellm.formats.gguf import GgufHeader
    from edgellm.formats.gguf_memory import Recurrence, Rows
    from edgellm.ggml_types import TensorType

_COUNTED_ROUGHLY: Final = (
    *("bailingmoe3", "deepseek4", "gemma3n", "gemma4", "glm5-next", "hy_v4", "kimi-k3"),
    *("kimi-linear", "minimax-01", "plamo2", "qwen4exp", "rwkv6", "rwkv6qwen2", "arwkv7"),
)
_LAYER: Final = re.compile(r"blk\.(\d{1,4})\.")


@dataclass(frozen=True, slots=True)
class Weight:
    """One tensor of the file.

    Attributes:
        name: as in the file.
        layer: the layer it belongs to, None for what stands outside all of them.
        type: how it is stored.
        shape: ggml's order, the fastest dimension first.
        n_bytes: its length in the file.
    """

    name: str
    layer: int | None
    type: TensorType
    shape: tuple[int, ...]
    n_bytes: int


@dataclass(frozen=True, slots=True)
class Widths:
    """The widths of what a graph computes, as far as no tensor tells them.

    Attributes:
        embd: values of one token between layers.
        vocab: tokens there are logits for.
        heads: query heads, the most of all layers.
        head_keys: values of one head's query or key.
        head_values: values of one head's value.
        experts: experts of a layer.
        experts_used: experts that a token is sent to.
        index_top: rows that a sparse index chooses for each token, 0 without one.
        index_block: tokens that it chooses together, 0 if it chooses them one by one.
    """

    embd: int
    vocab: int
    heads: int
    head_keys: int
    head_values: int
    experts: int
    experts_used: int
    index_top: int
    index_block: int


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A model as sizes.

    Attributes:
        model: what the header says otherwise.
        weights: every tensor, in the file's order.
        rows: what is kept of tokens, one entry a layer and cache.
        recurrences: states that do not grow.
        widths: of the graph.
        tied: whether the embeddings are the output matrix as well.
        n_merges: rules of the tokenizer that join two tokens.
        unknown: what the header does not settle, in words; empty if all is known.
    """

    model: ModelInfo
    weights: tuple[Weight, ...]
    rows: tuple[Rows, ...]
    recurrences: tuple[Recurrence, ...]
    widths: Widths
    tied: bool
    n_merges: int = 0
    unknown: tuple[str, ...] = ()

    @property
    def weight_bytes(self) -> int:
        """Return the bytes of all weights in the file."""
        return sum(weight.n_bytes for weight in self.weights)


def shape_of(header: GgufHeader, model: ModelInfo) -> ModelShape:
    """Return what the header says of the model's sizes.

    Raises:
        ModelCorrupt: a number is of the wrong type or out of range.
    """
    keys = Keys(header, model.path)
    weights = tuple(
        Weight(tensor.name, _layer(tensor.name), tensor.type, tensor.shape, tensor.n_bytes)
        for tensor in header.tensors
    )
    rows, recurrences = kept(header, model)
    unknown = []
    if model.architecture not in ARCHITECTURES:
        unknown.append(f"architecture {model.architecture!r}: what it keeps of tokens")
    if model.architecture in _COUNTED_ROUGHLY:
        unknown.append(f"some of what {model.architecture} computes in between")
    if model.architecture == "glm-dsa" and keys.get("attention.indexer.types") is None:
        unknown.append("which layers have an index of their own")
    merges = header.metadata.get("tokenizer.ggml.merges", ())
    return ModelShape(
        model=model,
        weights=weights,
        rows=rows,
        recurrences=recurrences,
        widths=_widths(keys, model),
        tied=not any(weight.name == "output.weight" for weight in weights),
        n_merges=0 if isinstance(merges, (bool, int, float, str)) else len(merges),
        unknown=tuple(unknown),
    )


def _layer(name: str) -> int | None:
    found = _LAYER.match(name)
    return int(found.group(1)) if found else None


def _widths(keys: Keys, model: ModelInfo) -> Widths:
    def count(name: str, default: int = 0) -> int:
        return keys.count(name, low=0, default=default)

    heads = model.n_heads
    head = model.n_embd // heads if heads else 0
    return Widths(
        embd=model.n_embd,
        vocab=model.n_vocab,
        heads=heads,
        head_keys=count("attention.key_length", head),
        head_values=count("attention.value_length", head),
        experts=count("expert_count"),
        experts_used=count("expert_used_count"),
        index_top=count("attention.indexer.top_k"),
        index_block=count("attention.indexer.block_size"),
    )
