"""Which type each tensor of a model gets: llama.cpp's choice, tensor by tensor, without an imatrix.

The rules depend on a tensor's place among its kind, counted in the order in which llama.cpp walks
through a model: by layer, then by name.
Source: `tensor_allows_quantization`, `llama_tensor_get_type_impl` and `tensor_type_fallback`
(llama-quant.cpp), `weight_name_comparer` (llama-model-loader.h), llama.cpp 0c1e57098.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from edgellm.errors import ModelCorrupt
from edgellm.kernels.ggml import GgmlType, traits

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .presets import Preset

    Named = tuple[str, tuple[int, ...]]

_LAYER: Final = re.compile(r"blk\.(\d{1,9})")
_EIGHT: Final = 8  # experts of the models that the rules know
_MANY_HEADS: Final = 4  # query heads for one key head: k and v are then small
# Models whose v is one eighth of q (LLM_TYPE_70B): architecture -> layers.
_SEVENTY_BILLION: Final = {"llama": 80, "deci": 80, "jais2": 68, "olmo": 80, "qwen2": 80}
_NEVER: Final = (
    *("_norm.weight", "ffn_gate_inp.weight", "ffn_gate_tid2eid.weight", "altup", "laurel"),
    *("per_layer_model_proj", "ssm_conv1d", "shortconv.conv.weight", "indexer.k_proj.weight"),
    *("indexer.q_proj.weight", "time_mix_first.weight", "time_mix_w0.weight"),
    *("time_mix_w1.weight", "time_mix_w2.weight", "time_mix_v0.weight", "time_mix_v1.weight"),
    *("time_mix_v2.weight", "time_mix_a0.weight", "time_mix_a1.weight", "time_mix_a2.weight"),
    *("time_mix_g1.weight", "time_mix_g2.weight", "time_mix_decay_w1.weight"),
    *("time_mix_decay_w2.weight", "time_mix_lerp_fused.weight", "attn_rel_b.weight"),
    *(".position_embd", "sam.pos_embd", "sam.neck.", "sam.net_", ".rel_pos", ".patch_embd"),
    *(".patch_merger", "a.rvq.codebook", "mm.a.code_embd"),
)
_NEVER_EXACTLY: Final = ("position_embd.weight", "token_types.weight")
_NEVER_IN_GLM5: Final = (
    *("hc_", "indexer.attn_q_b", "indexer.attn_k", "indexer.proj", "indexer_compressor_gate"),
    *("indexer_compressor_ape", "ssm_f_a.weight", "ssm_f_b.weight", "ssm_g_a.weight"),
    *("ssm_g_b.weight", "ssm_beta.weight", "attn_kv_a_mqa.weight", "attn_k_b.weight"),
    "attn_v_b.weight",
)
_FINE_IN_GLM5: Final = ("attn_q_a", "attn_q_b", "nextn.eh_proj")
_EMBEDDINGS: Final = ("token_embd.weight", "per_layer_token_embd.weight")
# For rows that fill no block of 256: blocks of 32 that are at least as fine.
_NARROW: Final = {
    GgmlType.Q4_K: GgmlType.Q5_0,
    GgmlType.Q5_K: GgmlType.Q5_1,
    GgmlType.Q6_K: GgmlType.Q8_0,
}


class Kind(Enum):
    """What a tensor is for, as far as the rules care."""

    OUTPUT = auto()
    EMBEDDING = auto()
    VALUES = auto()
    KEYS = auto()
    QUERIES = auto()
    ATTENTION_OUTPUT = auto()
    DOWN = auto()
    OTHER = auto()


_KINDS: Final = (
    ("attn_qkv.weight", Kind.VALUES),
    ("attn_kv_b.weight", Kind.VALUES),
    ("attn_v.weight", Kind.VALUES),
    ("attn_k.weight", Kind.KEYS),
    ("attn_q.weight", Kind.QUERIES),
    ("attn_output.weight", Kind.ATTENTION_OUTPUT),
    ("ffn_up", Kind.OTHER),
    ("ffn_gate", Kind.OTHER),
    ("ffn_down", Kind.DOWN),
)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the rules ask of a model.

    Attributes:
        architecture: as `general.architecture` says.
        n_layers: transformer blocks.
        n_heads: query heads of the first layer.
        n_kv_heads: key heads of the first layer, or 0.
        n_experts: feed-forward experts of a layer; 0 or 1 for none.
    """

    architecture: str
    n_layers: int
    n_heads: int
    n_kv_heads: int
    n_experts: int = 0

    @property
    def heads_per_key(self) -> int:
        """Query heads that share a key head; 0 without attention."""
        return self.n_heads // self.n_kv_heads if self.n_kv_heads else 0

    @property
    def is_70b(self) -> bool:
        """Whether llama.cpp counts it to the models of 70 billion weights."""
        if _SEVENTY_BILLION.get(self.architecture) != self.n_layers:
            return False
        return self.architecture != "llama" or self.n_heads != self.n_kv_heads


@dataclass(frozen=True, slots=True)
class Choice:
    """A tensor's `type`, and the one it would have if its rows filled that one's blocks."""

    type: GgmlType
    wanted: GgmlType


def choose_types(tensors: Iterable[Named], facts: ModelFacts, preset: Preset) -> dict[str, Choice]:
    """Choose the type of every tensor that is quantised at all; the others are not in the answer.

    Args:
        tensors: (name in the GGUF, shape with rows first) of the whole model, in any order.
        facts: about the model.
        preset: what was asked for.

    Raises:
        ModelCorrupt: an expert's name has no layer, or one that the model does not have.
    """
    ordered = sorted(tensors, key=lambda tensor: (_layer_of(tensor[0]), tensor[0]))
    rules = _Rules(facts, preset, _shares_embedding(ordered))
    rules.n_values = sum(kind_of(name) is Kind.VALUES for name, _ in ordered)
    made = {}
    for name, shape in ordered:
        if is_quantised(name, shape, facts.architecture):
            wanted = preset.type if preset.is_float else rules.apply(name, shape[-1])
            made[name] = Choice(_fitting(wanted, shape[-1]), wanted)
    return made


def is_quantised(name: str, shape: tuple[int, ...], architecture: str) -> bool:
    """Say whether a tensor may leave its type: vectors, norms and small tables may not."""
    n_dims = len(shape) - next((i for i, n in enumerate(shape) if n > 1), len(shape))
    if n_dims < 2 or not name.endswith("weight") or name in _NEVER_EXACTLY:
        return False
    never = _NEVER + _NEVER_IN_GLM5 if architecture == "glm5-next" else _NEVER
    return not any(part in name for part in never)


def kind_of(name: str) -> Kind:
    """Return what a tensor is for."""
    if name == "output.weight":
        return Kind.OUTPUT
    if name in _EMBEDDINGS:
        return Kind.EMBEDDING
    return next((kind for part, kind in _KINDS if part in name), Kind.OTHER)


def _shares_embedding(tensors: list[Named]) -> bool:
    return all(name != "output.weight" for name, _ in tensors)


def _layer_of(name: str) -> int:
    found = _LAYER.match(name)
    return int(found.group(1)) if found else -1


def _fitting(wanted: GgmlType, width: int) -> GgmlType:
    """Return a type whose blocks a row of `width` fills."""
    if width % traits(wanted).block_size == 0:
        return wanted
    narrow = _NARROW.get(wanted, wanted)
    return narrow if width % traits(narrow).block_size == 0 else GgmlType.F16


def _takes_more_bits(i: int, n: int) -> bool:
    """Pick the first and last eighth of n layers, and every third between."""
    return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2


@dataclass(slots=True)
class _Rules:
    """The rules for one model; counts what it has seen, so tensors must come in llama.cpp's order."""

    facts: ModelFacts
    preset: Preset
    is_tied: bool
    n_values: int = 0
    seen: dict[Kind, int] = field(default_factory=dict)

    def apply(self, name: str, width: int) -> GgmlType:
        """Return the type that the mix gives to the next tensor."""
        kind = kind_of(name)
        if self.facts.architecture == "glm5-next" and any(part in name for part in _FINE_IN_GLM5):
            return GgmlType.Q8_0
        if kind is Kind.OUTPUT or (self.is_tied and kind is Kind.EMBEDDING):
            return self._output(width)
        i = self.seen.get(kind, 0)
        self.seen[kind] = i + 1
        if kind is Kind.VALUES:
            return self._values(i)
        if kind is Kind.DOWN:
            return self._down(self._layer(i, name))
        if self.facts.n_experts == _EIGHT:
            if kind is Kind.KEYS:
                return GgmlType.Q8_0
            mixes = ("iq4_nl", "q4_k", "q4_k_m")
            if kind is Kind.ATTENTION_OUTPUT and self.preset.name in mixes and not self._is_falcon:
                return GgmlType.Q5_K
        return self.preset.type

    @property
    def _is_falcon(self) -> bool:
        return self.facts.architecture == "falcon"

    def _output(self, width: int) -> GgmlType:
        default = self.preset.type
        if self._is_falcon or width % traits(default).block_size or default is GgmlType.Q8_0:
            return GgmlType.Q8_0
        return GgmlType.Q6_K

    def _values(self, i: int) -> GgmlType:
        chosen, name = self.preset.type, self.preset.name
        if name == "iq4_nl" and self.facts.heads_per_key >= _MANY_HEADS:
            chosen = GgmlType.Q5_K
        elif name == "q4_k_m" and _takes_more_bits(i, self.n_values):
            chosen = GgmlType.Q6_K
        elif name == "q4_k" and i < 4:
            chosen = GgmlType.Q5_K
        if self.facts.is_70b and chosen is GgmlType.Q4_K:
            chosen = GgmlType.Q5_K
        return GgmlType.Q8_0 if self.facts.n_experts == _EIGHT else chosen

    def _down(self, i: int) -> GgmlType:
        n, name = self.facts.n_layers, self.preset.name
        if name == "q4_k_m":
            if not self._is_falcon:
                return GgmlType.Q6_K if _takes_more_bits(i, n) else GgmlType.Q4_K
            if i < n // 16:
                return GgmlType.Q6_K
            return GgmlType.Q5_K if _takes_more_bits(i, n) else GgmlType.Q4_K
        is_first = i < n // 8
        if is_first and (name == "iq4_nl" or (name == "q4_k" and not self._is_falcon)):
            return GgmlType.Q5_K
        return self.preset.type

    def _layer(self, i: int, name: str) -> int:
        """Return a tensor's layer: its place among its kind, but its name's with experts."""
        if self.facts.n_experts <= 1:
            return i
        layer = _layer_of(name)
        if not 0 <= layer < self.facts.n_layers:
            raise ModelCorrupt(f"tensor {name!r} is in none of {self.facts.n_layers} layers")
        return layer
