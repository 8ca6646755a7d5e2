"""Hyper-parameters that the engine asserts on: each would end the process, none can be caught there.

Source: the GGML_ASSERTs of `llama_model_base::load_hparams` and of the graphs (llama-model.cpp,
llama-graph.cpp, ggml-cpu/ops.cpp), llama.cpp 0c1e57098; each rule was seen to abort it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from edgellm.errors import ModelUnsupported

if TYPE_CHECKING:
    from edgellm.formats.gguf_keys import Keys

ROPE_SCALINGS: Final = ("none", "linear", "yarn", "longrope")
MAX_EXPERTS: Final = 1024  # LLAMA_MAX_EXPERTS
MAX_WINDOW_TOKENS: Final = 1 << 28
_EPSILONS: Final = (
    "attention.layer_norm_epsilon",
    "attention.layer_norm_rms_epsilon",
    "attention.group_norm_epsilon",
)
_FEW_EXPERTS_ARE_NONE: Final = ("hunyuan-dense", "hunyuan_vl")


def check_limits(keys: Keys, n_layers: int) -> None:
    """Refuse numbers that the engine would abort on.

    Raises:
        ModelCorrupt: a number is out of its range, or contradicts another one; names the key.
        ModelUnsupported: a kind of rotary scaling that no engine here knows.
    """
    for name in _EPSILONS:
        epsilon = keys.real(name)
        if epsilon is not None and epsilon < 0:
            raise keys.corrupt(name, f"{epsilon} is below zero")
    keys.count("nextn_predict_layers", low=0, high=n_layers - 1, default=0)
    _check_rope(keys)
    _check_experts(keys)
    _check_window(keys, n_layers)


def _check_rope(keys: Keys) -> None:
    n_heads = keys.count("attention.head_count", low=0, default=0)
    if n_heads:
        n_embd = keys.count("embedding_length", low=1)
        head = keys.count("attention.key_length", low=0, default=n_embd // n_heads)
        rotated = keys.count("rope.dimension_count", low=0, default=0)
        if rotated > head or rotated % 2:
            raise keys.corrupt("rope.dimension_count", f"{rotated} of {head} values in pairs")
    kind = keys.get("rope.scaling.type")
    if kind is not None and not (isinstance(kind, str) and kind in ROPE_SCALINGS):
        raise ModelUnsupported(
            f"rotary scaling {str(kind)[:40]!r} is not known",
            path=keys.path,
            hint=f"known: {', '.join(ROPE_SCALINGS)}; upgrade edgellm or convert the model again",
        )
    for name in ("rope.freq_base", "rope.scaling.factor", "rope.scale_linear"):
        keys.real(name)


def _check_experts(keys: Keys) -> None:
    n = keys.count("expert_count", low=0, high=MAX_EXPERTS, default=0)
    used = keys.count("expert_used_count", low=0, default=0)
    if n <= 1 and keys.architecture in _FEW_EXPERTS_ARE_NONE:
        n = used = 0
    if used > n or (n and not used):
        raise keys.corrupt("expert_used_count", f"{used} of {n} experts are used")
    groups = keys.count("expert_group_count", low=0, default=0)
    if groups and (groups >= n or (groups > 1 and n % groups)):
        raise keys.corrupt("expert_group_count", f"{n} experts in {groups} groups")
    if groups > 1:
        keys.count("expert_group_used_count", low=1, high=groups - 1)


def _check_window(keys: Keys, n_layers: int) -> None:
    window = keys.count("attention.sliding_window", low=0, high=(1 << 32) - 1, default=0)
    if window > MAX_WINDOW_TOKENS:
        raise keys.corrupt("attention.sliding_window", f"a window of {window} tokens")
    name = "attention.sliding_window_pattern"
    pattern = keys.get(name)
    if not window or pattern is None:
        return
    if isinstance(pattern, np.ndarray):
        if pattern.size != n_layers:
            raise keys.corrupt(name, f"a list of {pattern.size} for {n_layers} layers")
        some = bool(pattern.any()) if pattern.dtype.kind in "biu" else False
    else:
        some = keys.count(name, low=0) != 1
    if not some:
        raise keys.corrupt(name, f"no layer has the window of {window} tokens")
