"""The layers of a model as the estimate of its graph reads them: by the tensors they have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from edgellm.formats.gguf_memory import Rows
    from edgellm.formats.gguf_shape import ModelShape

_ALIKE: Final = 3  # of a run of equal layers, the space of the first ones is that of all


@dataclass(frozen=True, slots=True)
class Tensors:
    """The tensors of one layer.

    Attributes:
        shapes: name without the layer's prefix and `.weight`, to ggml's shape.
    """

    shapes: Mapping[str, tuple[int, ...]]

    def __contains__(self, name: str) -> bool:
        return name in self.shapes

    def rows(self, name: str) -> int:
        """Return the width of what a matrix gives, 0 without it."""
        shape = self.shapes.get(name, ())
        return shape[1] if len(shape) > 1 else 0

    def columns(self, name: str) -> int:
        """Return the width of what a matrix or vector takes, 0 without it."""
        shape = self.shapes.get(name, ())
        return shape[0] if shape else 0


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer.

    Attributes:
        tensors: what it computes with.
        rows: what it keeps of tokens, None for nothing.
        n_state: floats of its state.
    """

    tensors: Tensors
    rows: Rows | None
    n_state: int


def layers_of(shape: ModelShape) -> list[Layer]:
    """Return the layers that have tensors, in order."""
    named: dict[int, dict[str, tuple[int, ...]]] = {}
    for weight in shape.weights:
        if weight.layer is not None:
            name = weight.name.partition(".")[2].partition(".")[2].removesuffix(".weight")
            named.setdefault(weight.layer, {})[name] = weight.shape
    rows: Mapping[int, Rows] = {
        row.layer: row for row in shape.rows if row.kind in ("full", "window")
    }
    states = {state.layer: state.n_values for state in shape.recurrences}
    return [Layer(Tensors(named[i]), rows.get(i), states.get(i, 0)) for i in sorted(named)]


def shortened(layers: list[Layer]) -> list[Layer]:
    """Return the layers with at most some of each run of equal ones."""
    kept: list[Layer] = []
    run = 0
    for layer in layers:
        run = run + 1 if kept and _alike(kept[-1], layer) else 1
        if run <= _ALIKE:
            kept.append(layer)
    return kept


def _alike(one: Layer, other: Layer) -> bool:
    if one.tensors != other.tensors or (one.rows is None) != (other.rows is None):
        return False
    if one.rows is None or other.rows is None:
        return True
    return (one.rows.keys, one.rows.values, one.rows.window) == (
        other.rows.keys,
        other.rows.values,
        other.rows.window,
    )


def streams_of(layers: Sequence[Layer], embd: int) -> int:
    """Return how many streams the layers pass on, 1 for all but hyper-connections."""
    if not layers or not embd:
        return 1
    has = layers[0].tensors
    return max(1, has.columns("hc_attn_norm") // embd, has.columns("hc_attn_fn") // embd)


def is_parallel(has: Tensors) -> bool:
    """Return whether attention and feed-forward block read the same norm, side by side."""
    names = ("ffn_norm", "post_attention_norm", "attn_norm_2", "post_ffw_norm")
    return "attn_norm" in has and has_feed(has) and not any(name in has for name in names)


def has_feed(has: Tensors) -> bool:
    """Return whether a layer has a feed-forward block of any kind."""
    return any(name in has for name in ("ffn_down", "ffn_down_exps", "channel_mix_key"))
