"""The blocks of a layer as graphs of sizes: what is computed, from what, and how long it is needed.

Widths are read from the tensors of the layer, so that one description serves all architectures with the
same tensors. Order and lifetimes follow the engine's.
Source: `build_attn*`, `build_qkv`, `build_ffn` and `build_moe_ffn` in llama-graph.cpp; deepseek2.cpp,
deepseek32.cpp, qwen35.cpp, delta-net-base.cpp in src/models, llama.cpp 0c1e57098.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from edgellm.policy.estimate_arena import Graph, Result
    from edgellm.policy.estimate_tensors import Tensors

_HALF: Final = 0.5  # of a 32-bit float: masks for flash attention are of 16 bits


@dataclass(frozen=True, slots=True)
class Attended:
    """How the rows of one layer are attended to.

    Attributes:
        cells: rows there is room for.
        positions: of the tokens, for their rotation.
        places: where their rows go.
        mask: which rows each token sees.
        index_mask: what a sparse index needs of it, None without one.
        heads: query heads.
        keys: width of a key row.
        values: width of a value row.
        flash: whether scores are kept for a few tokens at a time only.
        rounds: whether rows are of 32-bit floats, which flash attention reads a 16-bit copy of.
        turns_keys: whether keys are rotated before they are rounded.
        turns_values: whether values are.
        top: rows that a sparse index chooses for each token.
        block: tokens that a sparse index chooses together, 0 if it chooses them one by one.
        compressed: compressed rows there is room for.
    """

    cells: int
    positions: Result
    places: Result
    mask: Result
    index_mask: Result | None
    heads: int
    keys: int
    values: int
    flash: bool
    rounds: bool
    turns_keys: bool
    turns_values: bool
    top: int
    block: int
    compressed: int


def attention(graph: Graph, has: Tensors, normed: Result, seen: Attended) -> Result:
    """Add attention over keys and values of all heads; return its output."""
    out = has.columns("attn_output") or seen.values
    query = has.rows("attn_q") or out
    gated = query == 2 * out
    fused = None
    if "attn_qkv" in has:
        fused = graph.add(has.rows("attn_qkv"), normed)
        query = has.rows("attn_qkv") - seen.keys - seen.values
    whole = fused or graph.add(query, normed)
    width = query // 2 if gated else query
    q = _turned(graph, whole, width, seen.positions, normed="attn_q_norm" in has)
    if seen.turns_keys:
        q = graph.add(width, q)
    v = fused or graph.add(seen.values, normed)
    if seen.turns_values:
        v = graph.add(seen.values, v)
    k = fused or graph.add(seen.keys, normed)
    k = _turned(graph, k, seen.keys, seen.positions, normed="attn_k_norm" in has)
    if seen.turns_keys:
        k = graph.add(seen.keys, k)
    graph.store(k, seen.places)
    graph.store(v, seen.places)
    if seen.block and seen.flash and "indexer.q_proj" in has:
        mask = _chosen_blocks(graph, has, normed, seen)
        attended = graph.add(out, _scores(graph, q, out, seen, mask, ()))
    else:
        attended = _scores(graph, q, out, seen, seen.mask, _copies(graph, seen))
    if seen.turns_values:
        attended = graph.add(out, attended)
    if gated:
        gate = graph.add(out, whole)
        attended = graph.add(out, attended, gate, reuses=True)
    return graph.add(has.rows("attn_output") or out, attended)


def _turned(graph: Graph, of: Result, width: int, positions: Result, *, normed: bool) -> Result:
    """Add norm and rotation of queries or keys: the first of them needs a place of its own."""
    if not normed:
        return graph.add(width, of, positions)
    made = graph.add(width, of)
    return graph.add(width, made, positions, reuses=True)


def _copies(graph: Graph, seen: Attended, latent: int = 0) -> tuple[Result, ...]:
    """Add copies of rows in a form that attention reads: of all cells, whatever the batch.

    Flash attention reads 16-bit floats for 32-bit ones; without it, values must lie by columns, which the
    `latent` first values of a key do not, where they are the value.
    """
    each_half = seen.cells * _HALF / graph.n_tokens
    if seen.flash and seen.rounds:
        return tuple(graph.add(each_half * row) for row in (seen.keys, seen.values or latent))
    if not seen.flash and latent:
        return (graph.add(each_half * latent * (2 if seen.rounds else 1)),)
    return ()


def _scores(
    graph: Graph, q: Result, out: int, seen: Attended, mask: Result, copies: tuple[Result, ...]
) -> Result:
    if seen.flash:
        return graph.add(out, q, mask, *copies)
    scores = graph.add(seen.cells * seen.heads, q)
    scores = graph.add(seen.cells * seen.heads, scores, mask, reuses=True)
    return graph.add(out, graph.add(out, scores, *copies))


def latent_attention(graph: Graph, has: Tensors, normed: Result, seen: Attended) -> Result:
    """Add attention over one compressed row a token (MLA); return its output."""
    key = has.rows("attn_kv_a_mqa")
    rank = has.rows("attn_k_b") or has.columns("attn_kv_b")
    rotated, heads = key - rank, seen.heads
    indexed = "indexer.attn_k" in has
    if indexed:
        _index_keys(graph, has, normed)
    low = graph.add(has.rows("attn_q_a"), normed) if "attn_q_a" in has else normed
    q = graph.add(has.rows("attn_q_b") or has.rows("attn_q"), low)
    absorbed = graph.add(heads * rank, q)
    turned = graph.add(heads * rotated, q, seen.positions)
    q = graph.add(heads * key, absorbed, turned)
    both = graph.add(key, normed)
    row = graph.add(key, graph.add(rank, both), graph.add(rotated, both, seen.positions))
    graph.store(row, seen.places)
    copies = _copies(graph, seen, rank)
    mask = _chosen(graph, has, normed, low, seen) if indexed else seen.mask
    attended = _scores(graph, q, heads * rank, seen, mask, copies)
    out = has.columns("attn_output")
    expanded = graph.add(out, attended)
    return graph.add(has.rows("attn_output"), graph.add(out, expanded))


def _index_keys(graph: Graph, has: Tensors, normed: Result) -> None:
    width = has.rows("indexer.attn_k")
    made = graph.add(width, normed)
    for _ in range(3):  # norm, rotation, and the rotation before rounding
        made = graph.add(width, made)
    graph.store(made)


def _chosen(graph: Graph, has: Tensors, normed: Result, low: Result, seen: Attended) -> Result:
    """Add the scores of a sparse index; return the mask that leaves its choice alone."""
    made = graph.add(has.rows("indexer.attn_q_b"), low)
    for _ in range(2):
        made = graph.add(has.rows("indexer.attn_q_b"), made)
    heads = graph.add(has.rows("indexer.proj"), normed)
    parents = [made, heads] if seen.index_mask is None else [made, heads, seen.index_mask]
    scores = graph.add(seen.cells, *parents)
    top = graph.add(seen.top, graph.add(seen.top, scores))
    width = seen.cells * (_HALF if seen.flash else 1)
    blank = graph.add(width, seen.mask)
    graph.store(blank, top)
    return graph.add(width, blank, seen.mask)


def _chosen_blocks(graph: Graph, has: Tensors, normed: Result, seen: Attended) -> Result:
    """Add the scores of whole blocks; return the mask that leaves the best of them alone."""
    groups = max(1, has.rows("indexer.q_proj") // max(1, has.rows("indexer.k_proj")))
    made = graph.add(has.rows("indexer.q_proj"), normed)
    made = graph.add(has.rows("indexer.q_proj"), made)
    scores = graph.add(seen.cells * groups, made)
    best = graph.add(seen.cells * groups / seen.block, scores)
    spread = graph.add(seen.cells * groups, graph.add(seen.cells * groups, best))
    parents = [spread] if seen.index_mask is None else [spread, seen.index_mask]
    return graph.add(seen.cells * groups * _HALF, *parents)


def compressed_attention(graph: Graph, has: Tensors, normed: Result, seen: Attended) -> Result:
    """Add attention over a window and compressed rows; what compresses them is counted roughly."""
    for name in ("attn_compressor", "indexer_compressor"):
        width = has.rows(f"{name}_kv")
        sums = graph.add(width, normed)
        pairs = graph.add(2 * width, graph.add(width, sums))
        graph.store(sums, graph.add(width, graph.add(width, pairs)))
    low, queries = graph.add(has.rows("attn_q_a"), normed), has.rows("attn_q_b")
    q = graph.add(queries, graph.add(queries, graph.add(queries, low, seen.positions)))
    row = graph.add(seen.keys, graph.add(seen.keys, normed))
    graph.store(row, seen.places)
    whole = replace(seen, cells=seen.cells + seen.compressed)
    masked = whole.cells * (_HALF if seen.flash else 1)
    parents = [seen.mask]
    if "indexer.proj" in has:
        asked = has.rows("indexer.attn_q_b")
        asking = graph.add(asked, graph.add(asked, low))
        scores = graph.add(seen.compressed, asking, normed)
        parents.append(graph.add(masked, graph.add(seen.top, scores)))
    mask = graph.add(masked, *parents)
    copies = _copies(graph, whole, seen.keys)
    attended = _scores(graph, q, queries, whole, mask, copies)
    return graph.add(has.rows("attn_output_b"), graph.add(has.columns("attn_output_b"), attended))


def dense_feed(graph: Graph, has: Tensors, normed: Result, part: str = "") -> Result:
    """Add a feed-forward block; `part` is the ending of its tensors' names."""
    gate, up, down = (f"ffn_{name}{part}" for name in ("gate", "up", "down"))
    inside = has.columns(down)
    if gate in has:
        left = graph.add(has.rows(gate), normed)
        right = graph.add(has.rows(up), normed)
        made = graph.add(inside, left, right)
    else:  # one matrix for both, or no gate at all
        both = graph.add(has.rows(up), normed)
        made = graph.add(inside, both, reuses=True)
    return graph.add(has.rows(down), made)


def expert_feed(graph: Graph, has: Tensors, normed: Result, n_used: int) -> Result:
    """Add the experts that a token is sent to, and those that all tokens go to."""
    n_experts = has.rows("ffn_gate_inp")
    scores = graph.add(n_experts, normed)
    biased = graph.add(n_experts, scores) if "exp_probs_b.bias" in has else scores
    chosen = graph.add(n_experts, biased)
    weights = graph.add(n_used, graph.add(n_used, scores, chosen), graph.add(1, scores))
    inside, out = has.columns("ffn_down_exps"), has.rows("ffn_down_exps")
    if "ffn_gate_up_exps" in has:
        made = graph.add(inside * n_used, graph.add(2 * inside * n_used, normed, chosen))
    elif "ffn_gate_exps" in has:
        left = graph.add(inside * n_used, normed, chosen)
        made = graph.add(inside * n_used, left, graph.add(inside * n_used, normed, chosen))
    else:
        made = graph.add(inside * n_used, normed, chosen)
    each = graph.add(out * n_used, made, chosen)
    each = graph.add(out * n_used, each, weights, reuses=True)
    summed = graph.add(out, each)
    if "ffn_up_shexp" in has:
        summed = graph.add(out, summed, dense_feed(graph, has, normed, "_shexp"), reuses=True)
    return summed
