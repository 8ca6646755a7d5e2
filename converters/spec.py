"""`config.json` read once into a `ModelSpec`: every number checked, nothing made up.

Two dialects are read: `rope_theta` + `rope_scaling` + `torch_dtype` (transformers 4) and
`rope_parameters` + `dtype` (transformers 5). What decides a model's output and is missing is an
error, never a default.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgellm.errors import ConvertError, ModelUnsupported

from .rope import read_rope

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from .rope import Rope

_ORIGINAL = "get the file of the original model again"
_MAX_LAYERS = 1024
_MAX_WIDTH = 1 << 20
_MAX_TOKENS = 1 << 26
_MAX_VOCAB = 1 << 20  # four times the largest; each row gets a text, also without a token
# Normal float32 numbers: a GGUF keeps reals in float32.
_MIN_REAL, _MAX_REAL = 2.0**-126, (2.0 - 2.0**-23) * 2.0**127


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What a decoder-only model's configuration says, in ggml's words.

    Attributes:
        architecture: such as `LlamaForCausalLM`.
        n_layers: transformer blocks.
        n_embd: width of the residual stream.
        n_ff: width of the feed-forward layer.
        n_heads: query heads.
        n_kv_heads: key and value heads; divides `n_heads`.
        head_dim: width of a head; even.
        head_dim_is_given: whether the configuration says it or it follows from the others.
        n_vocab: rows of the embedding.
        n_ctx: longest context it was trained for, in tokens.
        norm_eps: epsilon of the RMS norms.
        rope: rotary embedding.
        tied: whether output and embedding are one matrix; None when the configuration is silent.
        attention_bias: whether q, k, v and o have biases.
        mlp_bias: whether gate, up and down have biases.
    """

    architecture: str
    n_layers: int
    n_embd: int
    n_ff: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    head_dim_is_given: bool
    n_vocab: int
    n_ctx: int
    norm_eps: float
    rope: Rope
    tied: bool | None
    attention_bias: bool
    mlp_bias: bool


class Config:
    """`config.json` as typed questions; every wrong answer is a `ConvertError` that names the key."""

    def __init__(self, values: Mapping[str, Any], path: Path) -> None:
        self._values = values
        self.path = path

    def get(self, key: str) -> Any:
        """Return a raw value, None when it is missing or null."""
        return self._values.get(key)

    def has(self, key: str) -> bool:
        """Return whether the key is there, with null too."""
        return key in self._values

    def error(self, message: str, hint: str = "") -> ConvertError:
        """Return an error about this file."""
        return ConvertError(message, path=self.path, hint=hint or _ORIGINAL)

    def count(self, key: str, most: int, default: int | None = None) -> int:
        """Return a whole number from 1 to `most`."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        if type(value) is not int or not 1 <= value <= most:
            shown = "is missing" if value is None else f"is {str(value)[:60]!r}"
            raise self.error(f"{key} {shown}; a whole number from 1 to {most} is needed")
        return value

    def real(self, key: str) -> float:
        """Return a number above zero that float32 holds."""
        return self.checked_real(key, self.get(key))

    def checked_real(self, key: str, value: Any) -> float:
        """Check a number that may lie deeper in the file; `key` is for the message."""
        good = type(value) in (int, float) and _MIN_REAL <= value <= _MAX_REAL
        if not good:
            shown = "is missing" if value is None else f"is {str(value)[:60]!r}"
            raise self.error(f"{key} {shown}; a number above zero that float32 holds is needed")
        return float(value)

    def flag(self, key: str) -> bool | None:
        """Return true, false, or None when the file is silent."""
        value = self.get(key)
        if value is not None and type(value) is not bool:
            raise self.error(f"{key} is {str(value)[:60]!r}; true or false is needed")
        return value


def architecture_of(config: Config) -> str:
    """Return the one architecture the file names.

    Raises:
        ConvertError: it names none, or several.
    """
    names = config.get("architectures")
    if isinstance(names, list) and len(names) == 1 and isinstance(names[0], str):
        return names[0]
    kind = config.get("model_type")
    if not names and kind == "llama":
        return "LlamaForCausalLM"
    shown = f"model_type {str(kind)[:60]!r}, no architecture" if not names else str(names)[:120]
    raise config.error(
        f"architectures must name one class; found {shown}",
        'add "architectures": ["LlamaForCausalLM"] if that is what it is',
    )


def refuse_quantized(config: Config) -> None:
    """Refuse a checkpoint whose weights are quantised already.

    Raises:
        ModelUnsupported: the configuration announces it.
    """
    quantized = config.get("quantization_config")
    if quantized is None:
        return
    method = quantized.get("quant_method") if isinstance(quantized, dict) else None
    raise ModelUnsupported(
        f"the checkpoint is quantised already ({str(method or quantized)[:60]})",
        path=config.path,
        hint="convert the original f32, f16 or bf16 checkpoint it was made from",
    )


def read_spec(config: Config) -> ModelSpec:
    """Read and check what a llama-like configuration says.

    Raises:
        ConvertError: a key is missing or has a value that cannot be; names the key.
    """
    n_embd = config.count("hidden_size", _MAX_WIDTH)
    n_heads = config.count("num_attention_heads", _MAX_WIDTH)
    n_kv_heads = config.count("num_key_value_heads", _MAX_WIDTH, default=n_heads)
    if n_heads % n_kv_heads:
        raise config.error(f"{n_heads} attention heads do not divide by {n_kv_heads} key heads")
    given = config.get("head_dim") is not None
    if not given and n_embd % n_heads:
        raise config.error(f"hidden_size {n_embd} does not divide by {n_heads} attention heads")
    head_dim = config.count("head_dim", _MAX_WIDTH) if given else n_embd // n_heads
    if head_dim % 2:
        raise config.error(f"head_dim {head_dim} is odd; rotary embedding needs pairs")
    n_ctx = config.count("max_position_embeddings", _MAX_TOKENS)
    return ModelSpec(
        architecture=architecture_of(config),
        n_layers=config.count("num_hidden_layers", _MAX_LAYERS),
        n_embd=n_embd,
        n_ff=config.count("intermediate_size", _MAX_WIDTH),
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        head_dim_is_given=given,
        n_vocab=config.count("vocab_size", _MAX_VOCAB),
        n_ctx=n_ctx,
        norm_eps=config.real("rms_norm_eps"),
        rope=read_rope(config, n_ctx),
        tied=config.flag("tie_word_embeddings"),
        attention_bias=bool(config.flag("attention_bias")),
        mlp_bias=bool(config.flag("mlp_bias")),
    )
