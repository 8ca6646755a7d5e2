"""The space beside the graph's results: what operations work in, and the engine's description of the graph.

What a batch is multiplied with is first rounded to the type that goes with the weights.
Source: `ggml_graph_plan` and `type_traits_cpu` in ggml-cpu.c, `graph_max_nodes` in llama-context.cpp,
`llm_graph_result::reset` in llama-graph.cpp, llama.cpp 0c1e57098.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgellm.formats.gguf_shape import ModelShape

_MATRIX: Final = 2  # dimensions, at least
_FLOAT_BYTES: Final = 4
_TILE: Final = 64  # tokens and cells that flash attention takes at a time, GGML_FA_TILE_Q and _KV
_Q8_0, _Q8_1, _Q8_K = Fraction(34, 32), Fraction(36, 32), Fraction(292, 256)
_ROUNDED_TO: Final[Mapping[str, Fraction]] = {
    "f32": Fraction(0),  # as it is
    "f16": Fraction(2),
    "bf16": Fraction(2),
    **dict.fromkeys(("q4_1", "q5_1"), _Q8_1),
    **dict.fromkeys(("q4_0", "q5_0", "q8_0", "iq4_nl", "mxfp4", "nvfp4", "q1_0", "q2_0"), _Q8_0),
}
_NODE_BYTES: Final = 432  # of a node of the engine's graphs: itself, and its place in their tables
_N_GRAPHS: Final = 2  # the one that was measured, and the one that runs
_MANY_NODES: Final[Mapping[str, tuple[int, int]]] = {  # for each token, and for each tensor
    **dict.fromkeys(("kimi-k3", "glm5-next"), (160, 64)),
    "hrm_text": (80, 64),
    **dict.fromkeys(("qwen3next", "qwen35", "qwen35moe", "qwen4exp", "kimi-linear"), (40, 32)),
    **dict.fromkeys(("bailingmoe3", "deepseek4", "minimax-01", "minimax-m3", "hy_v4"), (40, 32)),
    "nanbeige": (40, 32),
}
_LEAST_NODES, _NODES_A_TENSOR = 1024, 8


def work_bytes(
    shape: ModelShape, *, n_batch: int, n_threads: int, cells: int, kv_type: str, flash: bool
) -> int:
    """Return the space that operations work in, which is that of the largest one.

    Args:
        shape: the model's sizes.
        n_batch: tokens of one decode call.
        n_threads: threads; each has a space of its own in flash attention.
        cells: tokens that attention sees.
        kv_type: ggml's name of the type of keys and values.
        flash: whether flash attention is used.
    """
    widths = shape.widths
    largest = Fraction(0)
    for weight in shape.weights:
        if len(weight.shape) < _MATRIX or weight.name.endswith("token_embd.weight"):
            continue
        used = widths.experts_used if "ffn_down_exps" in weight.name else 1
        rounded = _ROUNDED_TO.get(weight.type.name, _Q8_K)
        largest = max(largest, weight.shape[0] * used * rounded * n_batch)
    heads = widths.heads if shape.rows else 0
    if flash and heads:
        keys, values = widths.head_keys, widths.head_values
        tile = _TILE * (2 * keys + 2 * values + 2 * _TILE)
        largest = max(largest, Fraction(_FLOAT_BYTES * tile * n_threads))
    elif heads:
        largest = max(largest, cells * heads * n_batch * _ROUNDED_TO.get(kv_type, _Q8_0))
    return int(largest)


def book_bytes(shape: ModelShape, n_batch: int) -> int:
    """Return what the engine's description of the graph takes: room for all nodes it may ever have."""
    n_tensors, many = len(shape.weights), _MANY_NODES.get(shape.model.architecture)
    n_nodes = max(_LEAST_NODES, _NODES_A_TENSOR * n_tensors)
    if many:
        n_nodes = max(many[0] * n_batch, many[1] * n_tensors)
    return n_nodes * _NODE_BYTES * _N_GRAPHS
