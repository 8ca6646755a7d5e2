"""What a family module holds: data that says which tensors there are and what becomes of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    from numpy.typing import NDArray

    from .spec import Config, ModelSpec

    KeyValues = dict[str, bool | int | float | str | list[int] | list[float] | list[str]]


class Transform(Enum):
    """What happens to a tensor's rows on the way."""

    NONE = "none"
    UNPERMUTE_Q = "unpermute_q"
    UNPERMUTE_K = "unpermute_k"


@dataclass(frozen=True, slots=True)
class TensorRule:
    """One tensor, or one for each layer when `source` holds `{}`.

    Attributes:
        source: name in the checkpoint.
        target: name in the GGUF.
        shape: the shape it must have, rows first.
        transform: what is done to its rows.
        when: whether a model has it; None means always.
        is_output: the output matrix, or the embedding that stands in for it.
    """

    source: str
    target: str
    shape: Callable[[ModelSpec], tuple[int, ...]]
    transform: Transform = Transform.NONE
    when: Callable[[ModelSpec], bool] | None = None
    is_output: bool = False


@dataclass(frozen=True, slots=True)
class Recipe:
    """A family.

    Attributes:
        gguf_architecture: what `general.architecture` says.
        check: refuses configurations whose computation the engine does not do.
        head: tensors before the layers.
        layer: tensors of each layer.
        tail: tensors after the layers.
        embedding: source name of the embedding.
        output: source name of the output matrix; a tied model may lack it.
        ignored: endings of checkpoint names that hold no weights.
        key_values: the family's metadata, without the architecture's prefix.
        computed: tensors that are computed, as (GGUF name, float32 values).
    """

    gguf_architecture: str
    check: Callable[[Config, ModelSpec], None]
    head: tuple[TensorRule, ...]
    layer: tuple[TensorRule, ...]
    tail: tuple[TensorRule, ...]
    embedding: str
    output: str
    ignored: tuple[str, ...]
    key_values: Callable[[ModelSpec], KeyValues]
    computed: Callable[[ModelSpec], list[tuple[str, NDArray[np.float32]]]]

    def expand(self, spec: ModelSpec) -> Iterator[tuple[str, str, TensorRule]]:
        """Yield (checkpoint name, GGUF name, rule) of every tensor of a model, in file order."""
        for rule in self.head:
            yield rule.source, rule.target, rule
        for i in range(spec.n_layers):
            for rule in self.layer:
                if rule.when is None or rule.when(spec):
                    yield rule.source.format(i), rule.target.format(i), rule
        for rule in self.tail:
            yield rule.source, rule.target, rule
