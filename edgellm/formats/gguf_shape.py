"""What a model takes, as sizes: its weights, the rows it keeps a token, the widths it computes with.

Everything here follows from the header alone, and holds for any context, batch or machine; what those
make of it is the memory estimate's to say. What the header does not settle stands in `unknown`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from edgellm.core import ModelInfo
    from edgellm.formats.gguf import GgufHeader
    from edgellm.ggml_types import TensorType

RowKind = Literal["full", "window", "mla", "indexer", "compressed"]


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
class Widths:
    """The widths of what a graph computes, the largest of all layers.

    Attributes:
        embd: values of one token between layers.
        vocab: tokens there are logits for.
        heads: query heads.
        head_keys: values of one head's query or key.
        head_values: values of one head's value.
        feed: values inside a dense feed-forward block, 0 without one.
        expert_feed: values inside one expert, 0 without experts.
        experts: experts of a layer.
        experts_used: experts that a token is sent to.
        inner: values inside a recurrent block, 0 without one.
    """

    embd: int
    vocab: int
    heads: int
    head_keys: int
    head_values: int
    feed: int
    expert_feed: int
    experts: int
    experts_used: int
    inner: int


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
        unknown: what the header does not settle, in words; empty if all is known.
    """

    model: ModelInfo
    weights: tuple[Weight, ...]
    rows: tuple[Rows, ...]
    recurrences: tuple[Recurrence, ...]
    widths: Widths
    tied: bool
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
    raise NotImplementedError
