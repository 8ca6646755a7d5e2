"""The blocks of recurrent layers as graphs of sizes; see `estimate_blocks`.

Source: mamba-base.cpp, delta-net-base.cpp, qwen35.cpp, lfm2.cpp, rwkv7-base.cpp in src/models, llama.cpp 0c1e57098.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgellm.policy.estimate_arena import Graph, Result
    from edgellm.policy.estimate_tensors import Tensors


def recurrence(graph: Graph, has: Tensors, normed: Result, n_state: int) -> Result | None:
    """Add the recurrent block that a layer's tensors tell; None if they tell of none that is known.

    Args:
        graph: where to add it.
        has: the tensors.
        normed: what the block reads.
        n_state: floats of the layer's state, which is read whole and comes out behind the rows.
    """
    state = n_state / graph.n_tokens
    if "shortconv.in_proj" in has:
        return _short_convolution(graph, has, normed)
    if "ssm_x" in has:
        return _first_mamba(graph, has, normed, state)
    if "ssm_in" in has:
        return _second_mamba(graph, has, normed, state)
    if "ssm_conv1d" in has and "attn_qkv" in has:
        return _delta_net(graph, has, normed, state)
    if "time_mix_receptance" in has:
        return _time_mix(graph, has, normed, state)
    return None


def _short_convolution(graph: Graph, has: Tensors, normed: Result) -> Result:
    width = has.columns("shortconv.out_proj")
    three = graph.add(has.rows("shortconv.in_proj"), normed)
    seen = graph.add(width, graph.add(width, three))
    graph.store(seen)
    made = graph.add(width, seen)
    made = graph.add(width, three, made, reuses=True)
    return graph.add(has.rows("shortconv.out_proj"), made)


def _first_mamba(graph: Graph, has: Tensors, normed: Result, state: float) -> Result:
    inner, rank = has.columns("ssm_out"), has.columns("ssm_dt")
    both = graph.add(has.rows("ssm_in"), normed)
    seen = graph.add(inner, both)
    graph.store(seen)
    made = graph.add(inner, seen)
    parts = graph.add(has.rows("ssm_x"), made)
    step = graph.add(inner, graph.add(rank, parts))
    scanned = graph.add(inner + state, made, step, parts)
    graph.store(scanned)
    gate = graph.add(inner, both)
    made = graph.add(inner, made, reuses=True)
    made = graph.add(inner, made, scanned, reuses=True)
    return graph.add(has.rows("ssm_out"), graph.add(inner, gate, made))


def _second_mamba(graph: Graph, has: Tensors, normed: Result, state: float) -> Result:
    inner, width = has.columns("ssm_out"), has.rows("ssm_conv1d")
    whole = graph.add(has.rows("ssm_in"), normed)
    seen = graph.add(width, whole)
    graph.store(seen)
    made = graph.add(width, seen)
    step = graph.add(has.columns("ssm_dt.bias"), whole)
    scanned = graph.add(inner + state, made, step)
    graph.store(scanned)
    gate = graph.add(inner, whole)
    skipped = graph.add(inner, made)
    added = graph.add(inner, skipped, scanned, reuses=True)
    made = graph.add(inner, gate, added)
    if "ssm_norm" in has:
        made = graph.add(inner, made)
    return graph.add(has.rows("ssm_out"), made)


def _delta_net(graph: Graph, has: Tensors, normed: Result, state: float) -> Result:
    width, inner = has.rows("attn_qkv"), has.columns("ssm_out")
    key = (width - inner) // 2
    seen = graph.add(width, graph.add(width, normed))
    graph.store(seen)
    before = graph.add(state)
    made = graph.add(width, seen)
    q, k = graph.add(key, made), graph.add(key, made)
    heads = has.columns("ssm_a")
    gate = graph.add(heads, graph.add(heads, normed))
    beta = graph.add(heads, graph.add(heads, normed))
    out = graph.add(inner + state, q, k, made, gate, beta, before)
    graph.store(out)
    made = graph.add(inner, out)
    z = graph.add(inner, graph.add(inner, normed))
    made = graph.add(inner, made, z, reuses=True)
    return graph.add(has.rows("ssm_out"), made)


def _time_mix(graph: Graph, has: Tensors, normed: Result, state: float) -> Result:
    """Add the mixing over time of RWKV: six mixtures of this token and the last at once."""
    width = has.rows("time_mix_receptance")
    before = graph.add(state)
    mixed = graph.add(6 * width, graph.add(width, normed))
    read = graph.add(width, mixed)
    decay = graph.add(width, mixed)
    key = graph.add(width, mixed)
    rate = graph.add(width, mixed)
    scaled = graph.add(width, key)
    changed = graph.add(width, graph.add(width, rate, scaled), key, reuses=True)
    value = graph.add(width, mixed)
    unit = graph.add(width, graph.add(width, key, reuses=True))
    away = graph.add(width, unit)
    unit = graph.add(width, unit, rate, reuses=True)
    out = graph.add(width + state, read, decay, changed, value, away, unit, before)
    graph.store(out)
    made = graph.add(width, graph.add(width, out))
    made = graph.add(
        width, made, graph.add(width, value, graph.add(width, changed, read)), reuses=True
    )
    made = graph.add(width, made, graph.add(width, mixed), reuses=True)
    return graph.add(has.rows("time_mix_output") or width, made)


def channel_mix(graph: Graph, has: Tensors, normed: Result) -> Result:
    """Add the feed-forward block of RWKV, which sees the last token as well."""
    width = has.columns("channel_mix_key")
    mixed = graph.add(width, graph.add(width, normed))
    inside = graph.add(has.rows("channel_mix_key"), mixed)
    return graph.add(has.rows("channel_mix_value"), inside)
