"""Which layers of a model forget (windows), which keep a state instead of rows, and which keep both.

Each architecture has its own rule in the engine, and only these ones follow it: others may announce a
window that the engine does not use. One row of a table each; what is not in a table keeps all.
Source: `load_arch_hparams` in src/models/*.cpp, `load_swa_pattern` and `create_memory` in
llama-model.cpp, llama.cpp 0c1e57098.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgellm.formats.gguf_keys import Keys


class _Window(NamedTuple):
    """How an architecture spreads its windows.

    Attributes:
        period: every so many layers one keeps all; 0 leaves it to the list in the file.
        dense_first: whether that one is the first of them, not the last.
        default: tokens of the window where the file does not say.
        fixed: tokens of the window whatever the file says, as long as it does not say none.
        n_layers: only models of so many layers have windows, 0 for all.
    """

    period: int
    dense_first: bool = False
    default: int = 0
    fixed: int = 0
    n_layers: int = 0


_WINDOWS: Final[Mapping[str, _Window]] = {
    "afmoe": _Window(4),
    "cohere2": _Window(4),
    "cohere2moe": _Window(4, dense_first=True),
    "dots3note": _Window(0),
    "exaone-moe": _Window(4),
    "exaone4": _Window(4, default=4096, n_layers=64),
    "gemma2": _Window(2, default=4096),
    "gemma3": _Window(6),
    "gemma3n": _Window(5),
    "gemma4": _Window(0),
    "gpt-oss": _Window(2),
    "granite_swa": _Window(0),
    "laguna": _Window(4, dense_first=True),
    "llama4": _Window(4, default=8192, fixed=8192),
    "maple": _Window(0),
    "mellum": _Window(4),
    "mimo2": _Window(0),
    "muse-glimmer": _Window(4),
    "olmo2": _Window(4),
    "plamo3": _Window(8),
    "smallthinker": _Window(4, dense_first=True, fixed=4096),
    "spark2_5": _Window(0),
    "step35": _Window(0),
}
_ALL_WINDOWS: Final = ("deepseek4", "lfm2")  # every layer that keeps rows
_RECURRENT: Final = ("mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7")
_BOTH: Final = ("falcon-h1",)
_NO_KV_HEADS: Final = (
    *("bailingmoe3", "glm5-next", "granitehybrid", "jamba", "kimi-k3", "kimi-linear"),
    *("lfm2", "lfm2moe", "plamo2"),
)
_NO_KV_HEADS_NO_FEED: Final = ("nemotron_h", "nemotron_h_moe")
_INTERVALS: Final = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4, "qwen4exp": 4, "minimax-01": 8}
_FIRST_20: Final = 20  # layers of gemma3n that keep rows of their own


class Layer(NamedTuple):
    """What one layer keeps.

    Attributes:
        rows: whether it keeps rows of tokens.
        state: whether it keeps a state of fixed size.
        window: tokens after which its rows are reused, 0 if never.
    """

    rows: bool
    state: bool
    window: int


def kept_by_layers(keys: Keys, n_all: int, n_main: int, heads: list[int]) -> list[Layer]:
    """Return what each layer keeps.

    Args:
        keys: the metadata.
        n_all: layers in the file.
        n_main: those that are not for guessing ahead, which the engine leaves alone.
        heads: key heads of each layer.

    Raises:
        ModelCorrupt: a number is of the wrong type or out of range.
    """
    states = _states(keys, n_all, n_main, heads)
    rows = _rows(keys, n_all, heads, states)
    window, slides = _windows(keys, n_all, n_main)
    return [
        Layer(kept, state, window if slid else 0)
        for kept, state, slid in zip(rows, states, slides, strict=True)
    ]


def _states(keys: Keys, n_all: int, n_main: int, heads: list[int]) -> list[bool]:
    name = keys.architecture
    if name in _RECURRENT or name in _BOTH:
        return [True] * n_all
    if name in _NO_KV_HEADS:
        return [count == 0 for count in heads]
    if name in _NO_KV_HEADS_NO_FEED:
        feed = keys.each_layer("feed_forward_length", n_all, default=0)
        return [not count and not width for count, width in zip(heads, feed, strict=True)]
    if name not in _INTERVALS:
        return [False] * n_all
    given = _flags(keys, "attention.recurrent_layers", n_all)
    if given is not None:
        return given
    interval = keys.count("full_attention_interval", low=1, default=_INTERVALS[name])
    return [i < n_main and (i + 1) % interval != 0 for i in range(n_all)]


def _rows(keys: Keys, n_all: int, heads: list[int], states: list[bool]) -> list[bool]:
    name = keys.architecture
    if name in _BOTH:
        return [True] * n_all
    if name in _NO_KV_HEADS_NO_FEED:
        feed = keys.each_layer("feed_forward_length", n_all, default=0)
        return [bool(count) and not width for count, width in zip(heads, feed, strict=True)]
    if name == "gemma3n":
        return [i < _FIRST_20 for i in range(n_all)]
    if name == "gemma4":
        shared = keys.count("attention.shared_kv_layers", low=0, default=0)
        return [i < n_all - shared for i in range(n_all)]
    return [not state for state in states]


def _windows(keys: Keys, n_all: int, n_main: int) -> tuple[int, list[bool]]:
    """Return the window, and which layers have it."""
    name = keys.architecture
    asked = keys.count("attention.sliding_window", low=0, default=0)
    if name in _ALL_WINDOWS:
        return asked, [asked > 0] * n_all
    rule = _WINDOWS.get(name)
    if rule is None or (rule.n_layers and n_main != rule.n_layers):
        return 0, [False] * n_all
    if keys.get("attention.sliding_window") is None:
        asked = rule.default
    if not asked:
        return 0, [False] * n_all
    window = rule.fixed or asked
    given = _flags(keys, "attention.sliding_window_pattern", n_all)
    if given is not None:
        return window, given
    period = keys.count("attention.sliding_window_pattern", low=0, default=rule.period)
    slides = [_slides(i, period, dense_first=rule.dense_first) for i in range(n_main)]
    return window, slides + [False] * (n_all - n_main)


def _slides(i: int, period: int, *, dense_first: bool) -> bool:
    if period == 0:
        return True
    return i % period != 0 if dense_first else i % period < period - 1


def _flags(keys: Keys, name: str, n_layers: int) -> list[bool] | None:
    """Return a list of yes and no for the layers, None where the file has none.

    Layers beyond its end are not in it, as in the engine.
    """
    value = keys.get(name)
    if not isinstance(value, np.ndarray):
        return None
    if value.dtype.kind not in "biu":
        raise keys.corrupt(name, "must be a list of yes and no")
    flags = [bool(item) for item in value[:n_layers]]
    return flags + [False] * (n_layers - len(flags))


def indexed_layers(keys: Keys, n_layers: int) -> list[bool]:
    """Return which layers have a sparse-attention index of their own."""
    name = keys.architecture
    if name == "minimax-m3":
        dense = keys.count("leading_dense_block_count", low=0, default=0)
        return [i >= dense for i in range(n_layers)]
    if name in ("glm-dsa", "glm5-next", "hy_v4", "dots3note"):
        given = _flags(keys, "attention.indexer.types", n_layers)
        return given if given is not None else [True] * n_layers
    return [True] * n_layers
