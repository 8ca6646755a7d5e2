"""Rotary embedding: what a configuration says, in both dialects, and llama3's frequency factors.

A kind that is not known here is refused: dropping it would give a model that answers, wrongly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .spec import Config

KINDS: Final = ("default", "linear", "llama3", "yarn")
_FULL: Final = "full_attention"
_MAX_N_CTX: Final = 1 << 26
_KNOWN: Final = {
    "default": frozenset[str](),
    "linear": frozenset({"factor"}),
    "llama3": frozenset(
        {
            "factor",
            "low_freq_factor",
            "high_freq_factor",
            "original_max_position_embeddings",
        }
    ),
    "yarn": frozenset(
        {
            "factor",
            "original_max_position_embeddings",
            "attention_factor",
            "beta_fast",
            "beta_slow",
            "finetuned",
        }
    ),
}
_COMMON: Final = frozenset({"rope_type", "type", "rope_theta", "partial_rotary_factor"})


@dataclass(frozen=True, slots=True)
class Rope:
    """A rotary embedding; fields that a kind does not use are None.

    Attributes:
        kind: one of `KINDS`.
        theta: the base of the frequencies.
        factor: by how much positions are stretched.
        n_ctx_original: context before stretching, in tokens.
        low_freq_factor: llama3's lower bound, as a fraction of the original context.
        high_freq_factor: llama3's upper bound.
        attention_factor: yarn's scale of the attention, when the configuration sets it.
        beta_fast: yarn's bound of rotations that are left as they are.
        beta_slow: yarn's bound of rotations that are stretched whole.
    """

    kind: str
    theta: float
    factor: float | None = None
    n_ctx_original: int | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    attention_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None


def read_rope(config: Config, n_ctx: int) -> Rope:
    """Read the rotary embedding of a configuration.

    Raises:
        ConvertError: the base is missing, the kind is unknown, or a value it needs is.
    """
    values = _values(config)
    kind = _kind(config, values)
    theta = values.get("rope_theta", config.get("rope_theta"))
    if theta is None:
        raise config.error(
            "rope_theta is missing",
            'add "rope_theta": 10000.0 if the model was trained with what the llama family assumes',
        )
    unknown = sorted(set(values) - _KNOWN[kind] - _COMMON)
    if unknown:
        key = unknown[0][:60]
        raise config.error(f"rope kind {kind!r} has a key that is not understood: {key!r}")
    _refuse_partial(config, values)

    def real(key: str) -> float:
        return config.checked_real(f"rope {key}", values.get(key))

    def optional(key: str) -> float | None:
        return None if values.get(key) is None else real(key)

    rope_theta = config.checked_real("rope_theta", theta)
    if kind == "default":
        return Rope(kind, rope_theta)
    if kind == "linear":
        return Rope(kind, rope_theta, factor=real("factor"))
    if kind == "llama3":
        low, high = real("low_freq_factor"), real("high_freq_factor")
        if low >= high:
            raise config.error(f"rope low_freq_factor {low} is not below high_freq_factor {high}")
        original = _n_ctx(config, real("original_max_position_embeddings"))
        return Rope(kind, rope_theta, real("factor"), original, low, high)
    original = _n_ctx(config, optional("original_max_position_embeddings") or n_ctx)
    return Rope(
        kind,
        rope_theta,
        _yarn_factor(config, real("factor")),
        original,
        attention_factor=optional("attention_factor"),
        beta_fast=optional("beta_fast"),
        beta_slow=optional("beta_slow"),
    )


def _refuse_partial(config: Config, values: dict[str, Any]) -> None:
    """Refuse a rotation of a part of each head; the factor stands in either of two places."""
    for part in (values.get("partial_rotary_factor"), config.get("partial_rotary_factor")):
        if part is not None and (isinstance(part, bool) or part != 1):
            shown = str(part)[:60] if isinstance(part, (int, float)) else repr(str(part)[:60])
            raise config.error(f"partial_rotary_factor is {shown}; only 1 is understood here")


def _yarn_factor(config: Config, factor: float) -> float:
    if factor < 1:  # engines then leave the attention's scale alone, the formula does not
        raise config.error(f"rope factor is {factor}; yarn needs at least 1")
    return factor


def _n_ctx(config: Config, value: float) -> int:
    """Check an original context, which files also write as 8192.0."""
    if not (1 <= value <= _MAX_N_CTX and value == int(value)):
        raise config.error(f"rope original_max_position_embeddings is {value}")
    return int(value)


def _values(config: Config) -> dict[str, Any]:
    """Return the rotary keys of either dialect as one flat dict."""
    old, new = config.get("rope_scaling"), config.get("rope_parameters")
    for key, value in (("rope_scaling", old), ("rope_parameters", new)):
        if value is not None and not isinstance(value, dict):
            raise config.error(f"{key} is {str(value)[:60]!r}; an object is needed")
    if new and all(isinstance(value, dict) for value in new.values()):
        if set(new) != {_FULL}:
            shown = str(sorted(new))[:200]
            raise config.error(f"rope_parameters differ by layer type: {shown}")
        new = new[_FULL]
    values = {**(old or {}), **(new or {})}
    for key in set(old or ()) & set(new or ()):
        if old[key] != new[key]:
            raise config.error(f"rope_scaling and rope_parameters disagree about {key!r}")
    theta = config.get("rope_theta")
    if theta is not None and values.get("rope_theta", theta) != theta:
        both = f"{str(theta)[:60]} and {str(values['rope_theta'])[:60]}"
        raise config.error(f"rope_theta is {both} in one file")
    return values


def _kind(config: Config, values: dict[str, Any]) -> str:
    named = values.get("rope_type", values.get("type"))
    if named is None:
        if set(values) - _COMMON:
            raise config.error("rope_scaling names no rope_type")
        return "default"
    if named not in KINDS:
        raise config.error(
            f"rope kind {str(named)[:40]!r} is not understood",
            f"known: {', '.join(KINDS)}",
        )
    return str(named)


def llama3_factors(rope: Rope, head_dim: int) -> NDArray[np.float32]:
    """Return by what llama3 scaling divides each frequency.

    Returns:
        Shape (head_dim / 2,): 1 for short wavelengths, `factor` for long ones, smooth between.

    Source: `_compute_llama3_parameters`, modeling_rope_utils.py of transformers; the layout is
    `rope_freqs.weight` of llama.cpp. In float32, step by step, as both do.
    """
    import numpy as np

    factor, low, high = rope.factor, rope.low_freq_factor, rope.high_freq_factor
    if rope.n_ctx_original is None or factor is None or low is None or high is None:
        raise ValueError(f"not a llama3 rope: {rope}")
    f32 = np.float32
    steps = np.arange(0, head_dim, 2, dtype=f32) / f32(head_dim)
    wavelengths = f32(2 * math.pi) / (f32(1.0) / f32(rope.theta) ** steps)
    smooth = (f32(rope.n_ctx_original) / wavelengths - f32(low)) / f32(high - low)
    between = f32(1.0) / ((f32(1.0) - smooth) / f32(factor) + smooth)
    factors = np.where(wavelengths > f32(rope.n_ctx_original / low), f32(factor), between)
    factors = np.where(wavelengths < f32(rope.n_ctx_original / high), f32(1.0), factors)
    return factors.astype(f32)
