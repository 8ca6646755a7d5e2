"""The space of the engine's largest graph: a whole batch through all layers, and its logits.

What the graph of an architecture is follows from its tensors. What they do not tell is named, not guessed.
Source: `sched_reserve` in llama-context.cpp, src/models/{llama,gemma3,qwen4exp}.cpp, llama.cpp 0c1e57098.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from edgellm.ggml_types import TYPES_BY_NAME
from edgellm.policy.estimate_arena import Graph
from edgellm.policy.estimate_blocks import (
    Attended,
    attention,
    compressed_attention,
    dense_feed,
    expert_feed,
    latent_attention,
)
from edgellm.policy.estimate_kv import row_cells
from edgellm.policy.estimate_states import channel_mix, recurrence
from edgellm.policy.estimate_tensors import (
    has_feed,
    is_parallel,
    layers_of,
    shortened,
    streams_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgellm.formats.gguf_memory import Rows
    from edgellm.formats.gguf_shape import ModelShape
    from edgellm.policy.estimate_arena import Result, Space
    from edgellm.policy.estimate_tensors import Layer, Tensors

_INDEX_BYTES: Final = 8  # where a row goes, as a 64-bit number
_FLOAT_BYTES: Final = 4
_LATE_OUTPUTS: Final = (  # every token's last values are kept, for a model that guesses ahead
    *("bailingmoe3", "cohere2moe", "gemma4", "gpt-oss", "hy_v3", "nemotron_h", "nemotron_h_moe"),
    *("qwen35", "qwen35moe", "qwen3next", "step35"),
)
_TURNED_HEAD: Final = 64  # heads are rotated before rounding if their width is a multiple of this


@dataclass(frozen=True, slots=True)
class _Cache:
    """What is there for one cache before the graph runs: see `Attended`."""

    places: Result
    mask: Result


class _Builder:
    """Puts one graph together.

    Args:
        shape: the model's sizes.
        n_ctx: tokens of the context.
        n_batch: tokens of one decode call.
        kv_type: ggml's name of the type of keys and values.
        flash: whether scores are kept for a few tokens at a time only.
    """

    def __init__(
        self,
        shape: ModelShape,
        *,
        n_ctx: int,
        n_batch: int,
        kv_type: str,
        flash: bool,
    ) -> None:
        self.shape, self.flash, self.kv_type = shape, flash, kv_type
        self.n_ctx, self.n_batch = n_ctx, n_batch
        widths, self.layers = shape.widths, layers_of(shape)
        self.streams = streams_of(self.layers, widths.embd)
        self.late = shape.model.architecture in _LATE_OUTPUTS
        rounds = TYPES_BY_NAME[kv_type].block_size > 1
        self.turns_keys = rounds and widths.head_keys > 0 and not widths.head_keys % _TURNED_HEAD
        self.turns_values = rounds and not widths.head_values % _TURNED_HEAD
        compressed = [row for row in shape.rows if row.kind == "compressed"]
        self.few = min(compressed, key=lambda row: row.ratio, default=None)
        self.indexed = self._uses_index(self.layers)
        self.wide_mask: Result | None = None
        # What is there before the graph runs, in the engine's order.
        self.graph = Graph(n_batch, n_batch)  # logits are reserved for all of them
        self.tokens = self.graph.input(4 * n_batch)
        self.graph.input(_FLOAT_BYTES * widths.embd * n_batch, used=False)  # for images
        self.positions = self.graph.input(4 * n_batch)
        self.caches: dict[str, _Cache] = {}
        for row in shape.rows:
            self._add_cache(row)
        self.outputs = self.graph.input(4 * n_batch)

    def space(self) -> Space:
        """Return the space of the graph."""
        graph, embd = self.graph, self.shape.widths.embd
        x = graph.add(embd, self.tokens)
        if self.streams > 1:
            x = graph.add(embd * self.streams, x)
        layers = shortened(self.layers)
        for i, layer in enumerate(layers):
            x = self._layer(layer, x, last=i == len(layers) - 1 and not self.late)
        x = graph.add(embd, x, reuses=self.streams == 1)
        graph.keep(x)
        if self.late:
            graph.choose_outputs()
            x = graph.add(embd, x, self.outputs)
            graph.keep(x)
        graph.keep(graph.add(self.shape.widths.vocab, x))
        return graph.place()

    def _uses_index(self, layers: Sequence[Layer]) -> bool:
        """Return whether the graph reads the sparse index; blocks are chosen in flash attention only."""
        if self.shape.widths.index_block:
            return self.flash
        return any("indexer.proj" in layer.tensors for layer in layers)

    def _add_cache(self, row: Rows) -> None:
        """Add what is there for the cache that a row is of, once; a sparse index has a mask too."""
        graph, n, head = self.graph, self.n_batch, self.shape.widths.head_keys
        if row.kind == "indexer" and not self.indexed:
            return
        if row.kind == "indexer" and not self.shape.widths.index_block:
            graph.input(_FLOAT_BYTES * self.shape.widths.index_top * n)
        if row.kind in self.caches:
            return
        by_column = 1 if self.flash else row.values
        places = graph.input(_INDEX_BYTES * n * (1 + by_column))
        if self.turns_keys:
            graph.input(_FLOAT_BYTES * _turned_width(head) ** 2)
        if self.turns_values:
            graph.input(_FLOAT_BYTES * _TURNED_HEAD**2)
        cells = row_cells(row, self.n_ctx, n)
        wide = not self.flash or (row.kind == "indexer" and self.shape.widths.index_block > 0)
        mask = graph.input(cells * n * (4 if wide else 2))
        self.caches[row.kind] = _Cache(places, mask)

    def _layer(self, layer: Layer, x: Result, *, last: bool) -> Result:
        if self.streams > 1:
            return self._wide_layer(layer, x, self.streams, last=last)
        graph, has, embd = self.graph, layer.tensors, self.shape.widths.embd
        normed = graph.add(embd, x)
        made = self._token_mixer(layer, x, normed)
        parallel = is_parallel(has)
        if last:
            graph.choose_outputs()
            made, x = graph.add(embd, made, self.outputs), graph.add(embd, x, self.outputs)
            normed = graph.add(embd, normed) if parallel else normed
        if parallel:
            fed = self._feed(has, normed)
            return graph.add(embd, graph.add(embd, made, x, reuses=True), fed, reuses=True)
        x = graph.add(embd, made, x, reuses="time_mix_output" not in has)
        if not has_feed(has):
            return x
        fed = self._feed(has, graph.add(embd, x))
        if "channel_mix_key" in has and not last:
            graph.store(normed)  # its last row is kept for the next batch
        return graph.add(embd, fed, x, reuses=True)

    def _wide_layer(self, layer: Layer, x: Result, streams: int, *, last: bool) -> Result:
        """Add a layer between several streams (hyper-connections)."""
        graph, has, embd = self.graph, layer.tensors, self.shape.widths.embd
        mixed, wide = self._mixed(x, streams)
        made = self._token_mixer(layer, mixed, mixed)
        if last:
            graph.choose_outputs()
            made = graph.add(embd, made, self.outputs)
            wide, x = (graph.add(embd * streams, one, self.outputs) for one in (wide, x))
        x = graph.add(embd * streams, made, x, wide)
        mixed, wide = self._mixed(x, streams)
        fed = self._feed(has, mixed)
        return graph.add(embd * streams, fed, x, wide)

    def _mixed(self, x: Result, streams: int) -> tuple[Result, Result]:
        """Return one stream made of several, and their norm, which is needed to give it back."""
        graph, width = self.graph, self.shape.widths.embd
        normed = graph.add(width * streams, x)
        gate = graph.add(width * streams, normed)
        return graph.add(width, normed, gate), normed

    def _token_mixer(self, layer: Layer, x: Result, normed: Result) -> Result:
        graph, has, width = self.graph, layer.tensors, self.shape.widths.embd
        if layer.rows is None:
            made = recurrence(graph, has, normed, layer.n_state)
            return made or graph.add(width, normed)
        seen = self._seen(layer.rows)
        if "attn_kv_a_mqa" in has:
            attended = latent_attention(graph, has, normed, seen)
        elif "attn_kv" in has:
            attended = compressed_attention(graph, has, normed, seen)
        else:
            attended = attention(graph, has, normed, seen)
        if "ssm_in" not in has:
            return attended
        made = recurrence(graph, has, graph.add(width, x), layer.n_state) or attended
        return graph.add(width, attended, made, reuses=True)

    def _seen(self, rows: Rows) -> Attended:
        cache, few = self.caches[rows.kind], self.few
        return Attended(
            cells=row_cells(rows, self.n_ctx, self.n_batch),
            positions=self.positions,
            places=cache.places,
            mask=cache.mask,
            index_mask=self._index_mask(cache),
            heads=self.shape.widths.heads,
            keys=rows.keys,
            values=rows.values,
            flash=self.flash,
            rounds=self.kv_type == "f32",
            turns_keys=self.turns_keys,
            turns_values=self.turns_values,
            top=self.shape.widths.index_top,
            block=self.shape.widths.index_block,
            compressed=row_cells(few, self.n_ctx, self.n_batch) if few else 0,
        )

    def _index_mask(self, cache: _Cache) -> Result | None:
        """Return the mask of a sparse index; one that chooses blocks has a wider copy, made once."""
        index = self.caches.get("indexer")
        if index is None or not self.shape.widths.index_block:
            return index.mask if index else None
        if self.wide_mask is None:
            width = cache.mask.n_bytes // self.n_batch // 2  # 32-bit floats of 16-bit ones
            self.wide_mask = self.graph.add(width, cache.mask)
            self.graph.keep(self.wide_mask)
        return self.wide_mask

    def _feed(self, has: Tensors, normed: Result) -> Result:
        if "ffn_down_exps" in has:
            return expert_feed(self.graph, has, normed, self.shape.widths.experts_used)
        if "channel_mix_key" in has:
            return channel_mix(self.graph, has, normed)
        return dense_feed(self.graph, has, normed)


def graph_space(shape: ModelShape, *, n_ctx: int, n_batch: int, kv_type: str, flash: bool) -> Space:
    """Return the space of the largest graph.

    Args:
        shape: the model's sizes.
        n_ctx: tokens of the context.
        n_batch: tokens of one decode call, at most `n_ctx`.
        kv_type: ggml's name of the type of keys and values.
        flash: whether flash attention is used.
    """
    return _Builder(shape, n_ctx=n_ctx, n_batch=n_batch, kv_type=kv_type, flash=flash).space()


def _turned_width(head: int) -> int:
    """Return the width of the largest matrix that a head is rotated with: a power of two."""
    return head & -head
