"""What some architectures' graphs take for granted beyond the shapes that the engine's loader compares.

Each contradiction loads and then ends the process at the first token (or while it loads), so it is
refused here. Only rules that an edited small model was seen to break are here; other architectures
are left to the engine.
Source: src/models/{jamba,lfm2,deepseek2,deepseek4,minimax-m3,qwen35,qwen3next,rwkv6,rwkv7}.cpp and
`build_moe_ffn` in llama-graph.cpp, llama.cpp 0c1e57098.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from edgellm.errors import ModelCorrupt, ModelUnsupported
from edgellm.formats.gguf_keys import CONVERT_AGAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from edgellm.formats.gguf import GgufHeader
    from edgellm.formats.gguf_keys import Keys

_ONLY_F32: Final = (".ssm_conv1d.weight", ".shortconv.conv.weight", ".ssm_a")
_MAX_GATING: Final = 4  # LLAMA_EXPERT_GATING_FUNC_TYPE_SQRT_SOFTPLUS
_MAX_BLOCK_TOKENS: Final = 1 << 20


def check_graph(header: GgufHeader, keys: Keys) -> None:
    """Refuse numbers, types and gaps that the graph of this architecture would abort on.

    Raises:
        ModelCorrupt: two numbers contradict each other, or a tensor is missing.
        ModelUnsupported: a part of a recurrence is not of type f32.
    """
    for tensor in header.tensors:
        if tensor.name.endswith(_ONLY_F32) and tensor.type.name != "f32":
            raise ModelUnsupported(
                f"tensor {tensor.name!r}: {tensor.type.name} is no type for a recurrence, only f32",
                path=header.path,
                hint=CONVERT_AGAIN,
            )
    _check_gating(keys)
    check = _CHECKS.get(keys.architecture)
    if check is not None:
        check(header, keys)


def _check_gating(keys: Keys) -> None:
    """None (0) is replaced by a default where the key may be missing, which is not everywhere."""
    low = 1 if keys.architecture == "minimax-m3" else 0
    if keys.get("expert_gating_func") is not None:
        keys.count("expert_gating_func", low=low, high=_MAX_GATING)


def _head(keys: Keys, what: str) -> int:
    """Return the size of one head's keys or values, as the file says or the engine derives it."""
    n_heads = keys.count("attention.head_count", low=1)
    n_embd = keys.count("embedding_length", low=1)
    return keys.count(f"attention.{what}_length", low=0, default=n_embd // n_heads)


def _check_square(_: GgufHeader, keys: Keys) -> None:
    """Queries and output are square matrices, so the heads must share the embedding out."""
    n_heads = keys.count("attention.head_count", low=1)
    n_embd = keys.count("embedding_length", low=1)
    for what in ("key", "value"):
        if _head(keys, what) * n_heads != n_embd:
            raise keys.corrupt(
                f"attention.{what}_length",
                f"{n_heads} heads of {_head(keys, what)} in {n_embd} values",
            )


def _check_jamba(header: GgufHeader, keys: Keys) -> None:
    inner, n_embd = (keys.count(name, low=1) for name in ("ssm.inner_size", "embedding_length"))
    if inner != 2 * n_embd:
        raise keys.corrupt("ssm.inner_size", f"{inner} is not twice {n_embd}")
    _check_square(header, keys)


def _check_mla(_: GgufHeader, keys: Keys) -> None:
    """One key of compressed values and a rotated part, shared by all heads."""
    whole = keys.count("attention.key_length_mla", low=0, default=0)
    if not whole:
        return
    key, n_kv_heads = _head(keys, "key"), _kv_heads(keys)
    rotated = keys.count("rope.dimension_count", low=0, default=key)
    rank = keys.count("attention.kv_lora_rank", low=1)
    if n_kv_heads != 1:
        raise keys.corrupt("attention.head_count_kv", f"{n_kv_heads} compressed keys, not 1")
    if rotated >= whole:
        raise keys.corrupt("rope.dimension_count", f"{rotated} of {whole} values, none are left")
    if key != rank + rotated:
        raise keys.corrupt("attention.key_length", f"{key} is not {rank} and {rotated} rotated")


def _check_deepseek4(_: GgufHeader, keys: Keys) -> None:
    if _head(keys, "key") != _head(keys, "value"):
        raise keys.corrupt(
            "attention.value_length", f"values of {_head(keys, 'value')}, not {_head(keys, 'key')}"
        )
    if _kv_heads(keys) != 1:
        raise keys.corrupt("attention.head_count_kv", f"{_kv_heads(keys)} keys, not 1")


def _kv_heads(keys: Keys) -> int:
    default = keys.count("attention.head_count", low=1)
    return keys.count("attention.head_count_kv", low=0, default=default)


def _check_blocks(_: GgufHeader, keys: Keys) -> None:
    keys.count("attention.indexer.block_size", low=1, high=_MAX_BLOCK_TOKENS)
    keys.count("rope.dimension_count", low=1, default=1)


def _check_deltanet(header: GgufHeader, keys: Keys) -> None:
    inner, state, heads = (
        keys.count(f"ssm.{name}", low=1) for name in ("inner_size", "state_size", "time_step_rank")
    )
    if inner != state * heads:
        raise keys.corrupt("ssm.inner_size", f"{inner} is not {heads} heads of {state}")
    keys.count("full_attention_interval", low=1, default=1)
    there = {tensor.name for tensor in header.tensors}
    for name in there:
        block = name.removesuffix("ssm_conv1d.weight")
        if block != name and not {f"{block}attn_qkv.weight", f"{block}ssm_in.weight"} & there:
            raise ModelCorrupt(
                f"tensor '{block}attn_qkv.weight' is missing",
                path=header.path,
                hint="the file is incomplete: download or convert it again",
            )


def _check_rwkv(header: GgufHeader, keys: Keys) -> None:
    size, n_embd = keys.count("wkv.head_size", low=1), keys.count("embedding_length", low=1)
    if n_embd % size:
        raise keys.corrupt("wkv.head_size", f"{n_embd} values in heads of {size}")
    keys.count("token_shift_count", low=2, high=2, default=2)
    for tensor in header.tensors:
        if "time_mix_lerp" in tensor.name and tensor.type.name != "f32":
            raise ModelUnsupported(
                f"tensor {tensor.name!r}: {tensor.type.name} is no type to mix with, only f32",
                path=header.path,
                hint=CONVERT_AGAIN,
            )


_CHECKS: Final[Mapping[str, Callable[[GgufHeader, Keys], None]]] = {
    "jamba": _check_jamba,
    "lfm2": _check_square,
    "lfm2moe": _check_square,
    "deepseek2": _check_mla,
    "deepseek32": _check_mla,
    "deepseek4": _check_deepseek4,
    "minimax-m3": _check_blocks,
    "qwen35": _check_deltanet,
    "qwen35moe": _check_deltanet,
    "qwen3next": _check_deltanet,
    "rwkv6": _check_rwkv,
    "rwkv7": _check_rwkv,
}
