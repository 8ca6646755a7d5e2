"""Which tensors llama.cpp demands of a file, and which it may have besides: the llama-like families.

A literal table, one row a family; shapes are letters, ggml's order (the fastest dimension first):
`e` embedding, `v` vocabulary, `q` `k` `u` widths of all queries, keys, values, `h` one head, `r` half
a head's rotated part, `f` feed-forward, `x` experts, `1` anything. A family that is not here is left to the engine.
Source: `load_arch_tensors` in src/models/{llama,mistral3,granite,smollm3,qwen2,qwen3,gemma,gemma2,
gemma3,olmo2}.cpp, llama.cpp 0c1e57098.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Family:
    """The tensors of one family: name to shape, `.weight` left out where the name has no dot.

    Attributes:
        head: once a file.
        layer: once a layer, behind `blk.N.`.
        head_extra: may be there once.
        layer_extra: may be there in any layer.
    """

    head: Mapping[str, str]
    layer: Mapping[str, str]
    head_extra: Mapping[str, str] = field(default_factory=dict)
    layer_extra: Mapping[str, str] = field(default_factory=dict)


FUSED: Final = ("attn_q", "attn_k", "attn_v")
FUSED_NAME: Final = "attn_qkv"

_HEAD: Final = {"token_embd": "ev", "output_norm": "e"}
_OWN_OUTPUT: Final = {"output": "ev"}
_ATTENTION: Final = {"attn_q": "eq", "attn_k": "ek", "attn_v": "eu", "attn_output": "qe"}
_FEED: Final = {"ffn_gate": "ef", "ffn_up": "ef", "ffn_down": "fe"}
_POST_NORMS: Final = {"post_attention_norm": "e", "post_ffw_norm": "e"}
_HEAD_NORMS: Final = {"attn_q_norm": "h", "attn_k_norm": "h"}
_BIASES: Final = {"attn_q.bias": "q", "attn_k.bias": "k", "attn_v.bias": "u", "attn_qkv.bias": "1"}
_MORE_BIASES: Final = {
    "attn_output.bias": "e",
    "ffn_gate.bias": "f",
    "ffn_up.bias": "f",
    "ffn_down.bias": "e",
}
_ROPE: Final = {"rope_freqs": "r", "rope_factors_long": "r", "rope_factors_short": "r"}
_BLOCK: Final = {"attn_norm": "e", **_ATTENTION, "ffn_norm": "e", **_FEED}

_LLAMA: Final = Family(_HEAD, _BLOCK, {**_OWN_OUTPUT, **_ROPE}, {**_BIASES, **_MORE_BIASES})
_GEMMA2: Final = {**_BLOCK, **_POST_NORMS}

FAMILIES: Final[Mapping[str, Family]] = {
    "llama": _LLAMA,
    "mistral3": _LLAMA,
    "granite": _LLAMA,
    "smollm3": Family(_HEAD, _BLOCK, _OWN_OUTPUT, _BIASES),
    "qwen2": Family(_HEAD, _BLOCK, {**_OWN_OUTPUT, "output.bias": "v"}, _BIASES),
    "qwen3": Family(_HEAD, {**_BLOCK, **_HEAD_NORMS}, {**_OWN_OUTPUT, "cls.output": "1"}, _BIASES),
    "gemma": Family(_HEAD, _BLOCK, {}, _BIASES),
    "gemma2": Family(_HEAD, _GEMMA2, {}, _BIASES),
    "gemma3": Family(
        _HEAD,
        {**_GEMMA2, **_HEAD_NORMS},
        {**_OWN_OUTPUT, "dense_2": "1", "dense_3": "1"},
        _BIASES,
    ),
    "olmo2": Family(
        {**_HEAD, **_OWN_OUTPUT},
        {**_ATTENTION, **_FEED, **_POST_NORMS, "attn_q_norm": "q", "attn_k_norm": "k"},
        {},
        _BIASES,
    ),
}

# Names of the next engine: sed -nE 's/^ *\{ *LLM_ARCH_\w+, *"([^"(]+)".*/\1/p' src/llama-arch.cpp
_NO_TEXT: Final = (
    "bert clip dflash eagle3 eurobert gemma-embedding gemma4-assistant jina-bert-v2 jina-bert-v3 "
    "llama-embed modern-bert neo-bert nomic-bert nomic-bert-moe pockettts qwen3tts t5 t5encoder "
    "wavtokenizer-dec"
)
MAKES_NO_TEXT: Final = frozenset(_NO_TEXT.split())
"""Encoders, speech and helper models: the engine loads them and fails, or dies, on the first token."""

KNOWN_ENGINE: Final = "0.3.36"
"""The llama-cpp-python whose architectures these are; any other is asked itself."""

_DECODERS: Final = (
    "llama llama4 deci falcon grok gpt2 gptj gptneox mpt baichuan starcoder refact bloom stablelm "
    "qwen qwen2 qwen2moe qwen2vl qwen3 qwen3moe qwen3next qwen3vl qwen3vlmoe qwen35 qwen35moe "
    "qwen4exp phi2 phi3 phimoe plamo plamo2 plamo3 codeshell orion internlm2 minicpm minicpm3 gemma "
    "gemma2 gemma3 gemma3n gemma4 starcoder2 mamba mamba2 maple jamba falcon-h1 xverse command-r "
    "cohere2 cohere2moe dbrx olmo olmo2 olmoe muse-glimmer openelm arctic deepseek deepseek2 "
    "deepseek2-ocr deepseek32 deepseek4 chatglm glm4 glm4moe glm-dsa bitnet jais jais2 nemotron "
    "nemotron_h nemotron_h_moe exaone exaone4 exaone-moe rwkv6 rwkv6qwen2 rwkv7 arwkv7 granite "
    "granitemoe granitehybrid graniteswitch granite_swa chameleon plm bailingmoe bailingmoe2 "
    "bailingmoe3 dots1 dots3note arcee afmoe laguna ernie4_5 ernie4_5-moe hunyuan-moe hunyuan-dense "
    "hunyuan_vl hy_v3 hy_v4 smollm3 gpt-oss lfm2 lfm2moe dream smallthinker llada llada-moe seed_oss "
    "grovemoe apertus minimax-01 hrm_text minimax-m2 minimax-m3 cogvlm rnd1 pangu-embedded mistral3 "
    "mistral4 paddleocr mimo2 step35 spark2_5 maincoder kimi-linear kimi-k3 glm5-next talkie mellum "
    "nanbeige"
)
ARCHITECTURES: Final = MAKES_NO_TEXT | frozenset(_DECODERS.split())
