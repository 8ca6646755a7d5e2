"""estimate: what grows with what, what goes to a GPU, and where results are put."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm.core import ModelInfo
from edgellm.formats.gguf_memory import Recurrence, Rows
from edgellm.formats.gguf_shape import ModelShape, Weight, Widths
from edgellm.ggml_types import TYPES_BY_NAME
from edgellm.policy.estimate import Estimate, PlanSettings, estimate
from edgellm.policy.estimate_arena import Arena, Graph
from edgellm.policy.estimate_graph import graph_space

N_LAYERS, EMBD, FEED, HEADS, KV_HEADS, HEAD, VOCAB = 8, 256, 1024, 4, 2, 64, 4096
KEPT = KV_HEADS * HEAD
MIB = 1 << 20
GAPS = 0.1  # of the widest result
SHAPES = {
    "attn_norm": (EMBD,),
    "attn_q": (EMBD, HEADS * HEAD),
    "attn_k": (EMBD, KEPT),
    "attn_v": (EMBD, KEPT),
    "attn_output": (HEADS * HEAD, EMBD),
    "ffn_norm": (EMBD,),
    "ffn_gate": (EMBD, FEED),
    "ffn_up": (EMBD, FEED),
    "ffn_down": (FEED, EMBD),
}


def weight(name: str, layer: int | None, shape: tuple[int, ...], type_name: str) -> Weight:
    """Return a tensor; vectors are of 32-bit floats."""
    kind = TYPES_BY_NAME[type_name if len(shape) > 1 else "f32"]
    rows = 1
    for count in shape[1:]:
        rows *= count
    return Weight(name, layer, kind, shape, rows * kind.row_bytes(shape[0]))


def dense(type_name: str = "q4_0", *, tied: bool = True, **fields: Any) -> ModelShape:
    """Return a model like Llama in round numbers."""
    weights = [weight("token_embd.weight", None, (EMBD, VOCAB), type_name)]
    weights += [
        weight(f"blk.{i}.{name}.weight", i, shape, type_name)
        for i in range(N_LAYERS)
        for name, shape in SHAPES.items()
    ]
    if not tied:
        weights.append(weight("output.weight", None, (EMBD, VOCAB), type_name))
    n_bytes = sum(one.n_bytes for one in weights)
    model = ModelInfo(
        path="m.gguf",
        architecture="llama",
        name="m",
        file_bytes=n_bytes,
        n_params=n_bytes,
        n_layers=N_LAYERS,
        n_ctx_train=8192,
        n_vocab=VOCAB,
        n_embd=EMBD,
        n_heads=HEADS,
        n_kv_heads=KV_HEADS,
        weight_types={type_name: n_bytes},
    )
    widths = Widths(**{field.name: 0 for field in dataclasses.fields(Widths)})
    widths = dataclasses.replace(
        widths, embd=EMBD, vocab=VOCAB, heads=HEADS, head_keys=HEAD, head_values=HEAD
    )
    rows = tuple(Rows(i, "full", KEPT, KEPT) for i in range(N_LAYERS))
    shape = ModelShape(model, tuple(weights), rows, (), widths, tied=tied)
    return dataclasses.replace(shape, **fields)


def of(shape: ModelShape | None = None, **settings: Any) -> Estimate:
    """Estimate a model under a context of 4096 tokens and these settings, on a CPU with AVX2."""
    asked = PlanSettings(**{"n_ctx": 4096, **settings})
    return estimate(shape or dense(), asked, flags=frozenset({"avx2"}))


@pytest.mark.parametrize(
    ("kv_type", "bits"), [("f32", 32), ("f16", 16), ("bf16", 16), ("q8_0", 8.5), ("q4_0", 4.5)]
)
def test_keys_and_values_are_counted_to_the_byte(kv_type: str, bits: float):
    """Cells, layers, keys and values, by the bits of the type."""
    expected = 4096 * N_LAYERS * 2 * KEPT * bits / 8
    assert expected == of(kv_type=kv_type).kv_bytes


@pytest.mark.parametrize(("n_ctx", "cells"), [(1, 256), (256, 256), (257, 512), (4000, 4096)])
def test_a_context_is_rounded_up(n_ctx: int, cells: int):
    """The engine gives out cells by 256."""
    assert of(n_ctx=n_ctx).kv_bytes == cells * N_LAYERS * 2 * KEPT * 2


def test_a_window_holds_itself_and_a_batch():
    """It grows with the batch, not with the context, and never beyond the context."""
    rows = tuple(Rows(i, "window", KEPT, KEPT, window=512) for i in range(N_LAYERS))
    shape = dense(rows=rows)
    token_bytes = N_LAYERS * 2 * KEPT * 2
    assert of(shape).kv_bytes == 1024 * token_bytes
    assert of(shape, n_batch=64).kv_bytes == 768 * token_bytes
    assert of(shape, n_ctx=300).kv_bytes == 512 * token_bytes


def test_without_flash_attention_all_values_are_as_wide_as_the_widest():
    """They are kept by columns then, and padded; an index is not."""
    rows = (Rows(0, "full", 64, 64), Rows(1, "full", 64, 128), Rows(1, "indexer", 32, 0))
    shape = dense(rows=rows)
    assert of(shape, n_ctx=256).kv_bytes == 256 * 2 * (64 + 64 + 64 + 128 + 32)
    off = of(shape, n_ctx=256, flash_attention="off")
    assert off.kv_bytes == 256 * 2 * (64 + 128 + 64 + 128 + 32)


def test_a_state_does_not_grow():
    """States are of 32-bit floats whatever the type of keys and values."""
    shape = dense(rows=(), recurrences=(Recurrence(0, 1000), Recurrence(1, 24)))
    for settings in ({}, {"n_ctx": 65536}, {"kv_type": "q4_0"}):
        assert of(shape, **settings).kv_bytes == 4096


def test_a_snapshot_is_one_copy_of_the_memory():
    """Staging is the state's size, and nothing without snapshots."""
    assert of().staging_bytes == of().kv_bytes
    assert of(snapshots=False).staging_bytes == 0


def test_repacked_weights_are_not_mapped():
    """A copy takes the place of the file: matrices of the CPU's types, not the embeddings."""
    shape = dense()
    matrices = sum(one.n_bytes for one in shape.weights if one.layer is not None)
    vectors = sum(one.n_bytes for one in shape.weights if len(one.shape) == 1)
    embeddings = shape.weights[0].n_bytes
    found = of(shape)
    assert found.weights_resident_bytes == matrices - vectors + embeddings  # the output's copy
    assert found.weights_mapped_bytes == embeddings + vectors
    for other in (of(shape, repack=False), of(dense("q5_0"))):
        assert other.weights_resident_bytes == 0
        assert other.weights_mapped_bytes > 0


def test_what_is_repacked_follows_the_cpu():
    """Features decide; an unknown CPU counts as the one that copies the most."""
    shape, settings = dense("q8_0"), PlanSettings(n_ctx=256)
    copied = {
        name: estimate(shape, settings, flags=flags).weights_resident_bytes
        for name, flags in {
            "x86": frozenset({"avx2", "avx512f"}),
            "arm": frozenset({"asimd", "asimddp"}),
            "old": frozenset({"sse2"}),
            "unknown": None,
        }.items()
    }
    assert copied["x86"] == copied["old"] == 0
    assert copied["arm"] == copied["unknown"] > 0


@pytest.mark.parametrize("n_gpu_layers", range(N_LAYERS + 2))
def test_layers_on_a_gpu_take_their_weights_and_rows_along(n_gpu_layers: int):
    """What is on the GPU is not on the host; the last layers go first, the output before them."""
    shape = dense("q5_0", tied=False)
    host, found = of(shape), of(shape, n_gpu_layers=n_gpu_layers)
    layers = max(0, n_gpu_layers - 1)
    assert found.gpu_kv_bytes == host.kv_bytes // N_LAYERS * layers
    assert found.gpu_kv_bytes + found.kv_bytes == host.kv_bytes
    assert found.gpu_weights_bytes + found.weights_mapped_bytes == host.weights_mapped_bytes
    assert (found.gpu_compute_bytes > 0) == (n_gpu_layers > 0)
    assert bool(found.unknown) == (n_gpu_layers > 0)


def test_the_parts_add_up():
    """What must stay, what should be there, and what the GPU must have are sums of the parts."""
    found = of(n_gpu_layers=3)
    parts = ("weights_resident", "kv", "compute", "staging", "process")
    assert found.resident_bytes == sum(getattr(found, f"{part}_bytes") for part in parts)
    assert found.total_bytes == found.resident_bytes + found.weights_mapped_bytes
    gpu = ("gpu_weights", "gpu_kv", "gpu_compute")
    assert found.gpu_bytes == sum(getattr(found, f"{part}_bytes") for part in gpu)


@given(
    n_ctx=st.integers(1, 1 << 20),
    n_batch=st.integers(1, 4096),
    kv_type=st.sampled_from(["f16", "q8_0", "q4_0"]),
    flash=st.sampled_from(["auto", "on", "off"]),
)
def test_more_is_never_less(n_ctx: int, n_batch: int, kv_type: str, flash: str):
    """A larger context takes at least as much, in every part; so does a larger batch in all.

    Gaps between results are another matter: where they fall, a larger mask may leave less of them.
    """
    small = of(n_ctx=n_ctx, n_batch=n_batch, kv_type=kv_type, flash_attention=flash)
    large = of(n_ctx=2 * n_ctx, n_batch=n_batch, kv_type=kv_type, flash_attention=flash)
    wide = of(n_ctx=n_ctx, n_batch=2 * n_batch, kv_type=kv_type, flash_attention=flash)
    assert small.kv_bytes <= large.kv_bytes
    assert small.weights_mapped_bytes == large.weights_mapped_bytes
    gaps = GAPS * n_batch * FEED * 4
    assert 0 < small.compute_bytes <= large.compute_bytes + gaps
    assert small.resident_bytes <= wide.resident_bytes + gaps


def test_flash_attention_keeps_no_scores():
    """Without it the scores of a whole batch lie there for all heads."""
    scores = 4096 * HEADS * 512 * 4
    assert of(flash_attention="off").compute_bytes > scores > of().compute_bytes / 8
    assert of(flash_attention="off").compute_bytes - of().compute_bytes > scores


def test_logits_of_a_batch_are_reserved_and_not_touched():
    """Only the last token's are asked for: the others are address space."""
    shape = dense()
    wide = dataclasses.replace(shape, widths=dataclasses.replace(shape.widths, vocab=VOCAB * 16))
    grown = of(wide).reserved_bytes - of(shape).reserved_bytes
    assert grown > 14 * VOCAB * 512 * 4
    assert of(wide).compute_bytes - of(shape).compute_bytes < MIB


def test_a_shape_of_nothing_is_estimated():
    """No layers, no widths, no rows: an odd header is no reason to fail."""
    widths = Widths(**{field.name: 0 for field in dataclasses.fields(Widths)})
    found = of(dense(weights=(), rows=(), widths=widths))
    assert found.kv_bytes == found.weights_mapped_bytes == 0
    assert found.process_bytes > 0


def test_many_equal_layers_take_the_space_of_a_few():
    """Results are given back: depth does not count, and is not walked through."""
    few = dense()
    weights = [few.weights[0]]
    weights += [
        weight(f"blk.{i}.{name}.weight", i, shape, "q4_0")
        for i in range(64)
        for name, shape in SHAPES.items()
    ]
    rows = tuple(Rows(i, "full", KEPT, KEPT) for i in range(64))
    many = dataclasses.replace(few, weights=tuple(weights), rows=rows)
    asked: dict[str, Any] = {"n_ctx": 4096, "n_batch": 512, "kv_type": "f16", "flash": True}
    assert graph_space(few, **asked) == graph_space(many, **asked)


@given(st.lists(st.tuples(st.integers(1, 2000), st.booleans()), max_size=60))
def test_no_place_is_given_out_twice(steps: list[tuple[int, bool]]):
    """Places in use never overlap, and all given back leave one gap from the start."""
    arena, used = Arena(), dict[int, int]()
    for size, frees in steps:
        if frees and used:
            at = next(iter(used))
            arena.give_back(at, used.pop(at))
            continue
        at = arena.take(size)
        assert all(at + size <= other or other + used[other] <= at for other in used)
        used[at] = size
        assert arena.extent_bytes >= at + size
    for at, size in used.items():
        arena.give_back(at, size)
    assert arena.take(arena.extent_bytes or 1) == 0


def test_the_best_gap_is_taken():
    """The smallest gap that is large enough, not the first one."""
    arena = Arena()
    places = [arena.take(size) for size in (640, 32, 320, 32, 32)]
    arena.give_back(places[0], 640)
    arena.give_back(places[2], 320)
    assert arena.take(300) == places[2]
    assert arena.take(600) == places[0]
    assert arena.take(64) == arena.extent_bytes - 64


def test_a_result_takes_the_place_of_its_only_reader():
    """Where an operation may work in place and nobody else reads the parent, no space is added."""
    graph = Graph(n_tokens=8, n_outputs=1)
    first = graph.add(100)
    graph.add(100, first, reuses=True)
    assert graph.place().reserved_bytes == 8 * 100 * 4
    graph = Graph(n_tokens=8, n_outputs=1)
    first = graph.add(100)
    graph.add(100, first, reuses=True)
    graph.add(100, first)
    assert graph.place().reserved_bytes == 3 * 8 * 100 * 4


def test_rows_are_fewer_once_outputs_are_chosen():
    """Reserved for all outputs, touched for one."""
    graph = Graph(n_tokens=8, n_outputs=4)
    graph.input(64, used=False)
    graph.choose_outputs()
    graph.add(8)
    space = graph.place()
    assert space.reserved_bytes == 64 + 4 * 8 * 4
    assert space.touched_bytes == 8 * 4
    assert space.input_bytes == 0
