"""The llama family: `LlamaForCausalLM` checkpoints as `llama` GGUF.

Facts from `LlamaModel` of llama.cpp's converter and its llama graph (0c1e57098): rows of q and k
are interleaved per head, norms stay float32, llama3 scaling becomes a tensor of factors.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from .recipe import Recipe, TensorRule, Transform
from .rope import llama3_factors

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .recipe import KeyValues
    from .spec import Config, ModelSpec

_LAYER = "model.layers.{}."
_BLOCK = "blk.{}."


def _check(config: Config, _spec: ModelSpec) -> None:
    """Refuse what the engine's llama graph does not compute."""
    wanted: dict[str, tuple[Any, ...]] = {"hidden_act": ("silu", "swish", None)}
    for key, values in wanted.items():
        if config.get(key) not in values:
            raise config.error(f"{key} is {str(config.get(key))[:60]!r}; only silu is computed")
    for key in ("sliding_window", "num_local_experts", "attn_logit_softcapping"):
        if config.get(key) is not None:
            raise config.error(f"{key} is set; a llama model does not have it")


def _embd(spec: ModelSpec) -> tuple[int, ...]:
    return (spec.n_vocab, spec.n_embd)


def _norm(spec: ModelSpec) -> tuple[int, ...]:
    return (spec.n_embd,)


def _rows_q(spec: ModelSpec) -> int:
    return spec.n_heads * spec.head_dim


def _rows_kv(spec: ModelSpec) -> int:
    return spec.n_kv_heads * spec.head_dim


def _attention_bias(spec: ModelSpec) -> bool:
    return spec.attention_bias


def _mlp_bias(spec: ModelSpec) -> bool:
    return spec.mlp_bias


def _attention() -> tuple[TensorRule, ...]:
    q, k = Transform.UNPERMUTE_Q, Transform.UNPERMUTE_K
    none, bias = Transform.NONE, _attention_bias
    at, to = _LAYER + "self_attn.", _BLOCK + "attn_"
    return (
        TensorRule(at + "q_proj.weight", to + "q.weight", lambda s: (_rows_q(s), s.n_embd), q),
        TensorRule(at + "q_proj.bias", to + "q.bias", lambda s: (_rows_q(s),), q, bias),
        TensorRule(at + "k_proj.weight", to + "k.weight", lambda s: (_rows_kv(s), s.n_embd), k),
        TensorRule(at + "k_proj.bias", to + "k.bias", lambda s: (_rows_kv(s),), k, bias),
        TensorRule(at + "v_proj.weight", to + "v.weight", lambda s: (_rows_kv(s), s.n_embd)),
        TensorRule(at + "v_proj.bias", to + "v.bias", lambda s: (_rows_kv(s),), none, bias),
        TensorRule(at + "o_proj.weight", to + "output.weight", lambda s: (s.n_embd, _rows_q(s))),
        TensorRule(at + "o_proj.bias", to + "output.bias", _norm, none, bias),
    )


def _feed_forward() -> tuple[TensorRule, ...]:
    none, bias = Transform.NONE, _mlp_bias
    at, to = _LAYER + "mlp.", _BLOCK + "ffn_"
    return (
        TensorRule(at + "gate_proj.weight", to + "gate.weight", lambda s: (s.n_ff, s.n_embd)),
        TensorRule(at + "gate_proj.bias", to + "gate.bias", lambda s: (s.n_ff,), none, bias),
        TensorRule(at + "up_proj.weight", to + "up.weight", lambda s: (s.n_ff, s.n_embd)),
        TensorRule(at + "up_proj.bias", to + "up.bias", lambda s: (s.n_ff,), none, bias),
        TensorRule(at + "down_proj.weight", to + "down.weight", lambda s: (s.n_embd, s.n_ff)),
        TensorRule(at + "down_proj.bias", to + "down.bias", _norm, none, bias),
    )


def _key_values(spec: ModelSpec) -> KeyValues:
    values: KeyValues = {
        "block_count": spec.n_layers,
        "context_length": spec.n_ctx,
        "embedding_length": spec.n_embd,
        "feed_forward_length": spec.n_ff,
        "attention.head_count": spec.n_heads,
        "attention.head_count_kv": spec.n_kv_heads,
        "attention.layer_norm_rms_epsilon": spec.norm_eps,
        "rope.freq_base": spec.rope.theta,
        "rope.dimension_count": spec.head_dim,
        "vocab_size": spec.n_vocab,
    }
    if spec.head_dim_is_given:
        values["attention.key_length"] = spec.head_dim
        values["attention.value_length"] = spec.head_dim
    return values | _rope_key_values(spec)


def _rope_key_values(spec: ModelSpec) -> KeyValues:
    rope = spec.rope
    if rope.kind not in ("linear", "yarn") or rope.factor is None:
        return {}
    values: KeyValues = {
        "rope.scaling.type": rope.kind,
        "rope.scaling.factor": rope.factor,
    }
    if rope.kind == "yarn":
        if rope.n_ctx_original is not None:
            values["rope.scaling.original_context_length"] = rope.n_ctx_original
        if rope.beta_fast is not None:
            values["rope.scaling.yarn_beta_fast"] = rope.beta_fast
        if rope.beta_slow is not None:
            values["rope.scaling.yarn_beta_slow"] = rope.beta_slow
        if rope.attention_factor is not None:
            # The engine multiplies by yarn's own scale, the configuration replaces it.
            own = 0.1 * math.log(rope.factor) + 1.0
            values["rope.scaling.attn_factor"] = rope.attention_factor / own
    return values


def _computed(spec: ModelSpec) -> list[tuple[str, NDArray[np.float32]]]:
    if spec.rope.kind != "llama3":
        return []
    return [("rope_freqs.weight", llama3_factors(spec.rope, spec.head_dim))]


RECIPE = Recipe(
    gguf_architecture="llama",
    check=_check,
    head=(TensorRule("model.embed_tokens.weight", "token_embd.weight", _embd),),
    layer=(
        TensorRule(_LAYER + "input_layernorm.weight", _BLOCK + "attn_norm.weight", _norm),
        *_attention(),
        TensorRule(_LAYER + "post_attention_layernorm.weight", _BLOCK + "ffn_norm.weight", _norm),
        *_feed_forward(),
    ),
    tail=(
        TensorRule("model.norm.weight", "output_norm.weight", _norm),
        TensorRule("lm_head.weight", "output.weight", _embd, is_output=True),
    ),
    embedding="model.embed_tokens.weight",
    output="lm_head.weight",
    ignored=(".rotary_emb.inv_freq",),
    key_values=_key_values,
    computed=_computed,
)
