"""A state made under other settings, laid out anew for this engine: rounded otherwise, not read again.

Flash attention changes how values lie, which the canonical form has undone already, and how sums
are rounded. A quantised KV type stores `quantize(H x)`: H turns each head by Hadamard matrices, so
that no channel stands out. Nothing here restores the bits that a prefill under this engine's
settings would have made; only a caller that allows loss may use it.
Source: `llama_kv_cache::llama_kv_cache`, `build_input_k_rot`, `build_input_v_rot` and
`ggml_gen_hadamard` (llama-kv-cache.cpp), `build_attn` (llama-graph.cpp; the form for MLA turns
nothing), `load_hparams` (llama-model.cpp), llama.cpp 0c1e57098.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from edgellm.errors import SnapshotIncompatible
from edgellm.formats.gguf_keys import Keys
from edgellm.kernels import f16_to_f32, f32_to_f16
from edgellm.kernels.ggml import GgmlType, dequantize, quantize
from edgellm.store.state import ELEMENT_BYTES, Fingerprint, KVState, Section

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from edgellm.core import ModelInfo
    from edgellm.formats.gguf import GgufHeader

CONVERTED: Final = ("f16", "q8_0")
"""KV types between which rows are converted."""

_FLASH, _TYPES, _DISABLED = "flash_attention", ("kv_type_k", "kv_type_v"), "attention_rotation"
_TURN: Final = 64  # the smallest matrix; heads are turned when it divides them
_BLOCK: Final = 32  # values of a q8_0 block
_MAX_F16: Final = np.float32(65504)
_NUMBER: Final = re.compile(r"\s*[+-]?\d+")  # what C's atoi reads
# An indexer picks the tokens that are attended to: a little rounding there is another answer, and
# with flash attention off some models do not use it at all.
_KINDS: Final = (
    ("dense",),
    ("dense", "window"),
    ("dense", "recurrent"),
    ("dense", "window", "recurrent"),
)
_NEVER: Final = ("indexer",)


@dataclass(frozen=True, slots=True)
class Turns:
    """Sizes of the matrices that turn keys and values of a quantised type; 0 turns nothing."""

    keys: int
    values: int


@dataclass(frozen=True, slots=True)
class Relayout:
    """What is needed to lay out a model's states anew.

    Attributes:
        turns: of its heads, None where they are not known.
        allowed: whether its kind of memory stands any rounding.
    """

    turns: Turns | None
    allowed: bool

    def relatives(self, own: Fingerprint, kinds: Sequence[str]) -> tuple[Fingerprint, ...]:
        """Return the fingerprints whose states can be laid out for `own`, the nearest first.

        Args:
            own: of the engine that would use them.
            kinds: of its memories.
        """
        hard = dict(own.hard)
        if not self.allowed or tuple(kinds) not in _KINDS:
            return ()
        mine = (hard[_TYPES[0]], hard[_FLASH])
        types = [mine[0]]
        if self.turns is not None and mine[0] in CONVERTED:
            types += [name for name in CONVERTED if name != mine[0]]
        pairs = [(kv, flash) for kv in types for flash in sorted(("on", "off"), key=mine[1].__ne__)]
        return tuple(
            Fingerprint(tuple(sorted((hard | _settings(kv, flash)).items())), own.soft)
            for kv, flash in pairs
            if (kv, flash) != mine and (kv in ELEMENT_BYTES or flash == "on")
        )

    def adapt(
        self, state: KVState, source: Fingerprint, own: Fingerprint, kinds: Sequence[str]
    ) -> KVState:
        """Return `state`, made under `source`, as an engine of fingerprint `own` would keep it.

        Raises:
            SnapshotIncompatible: `source` is none of `own`'s relatives, or the state is not its.
        """
        if source.hard not in [found.hard for found in self.relatives(own, kinds)]:
            raise SnapshotIncompatible("the snapshot's settings cannot be laid out for this engine")
        if tuple(part.kind for part in state.parts) != tuple(kinds):
            raise SnapshotIncompatible("the snapshot's memories are not this engine's")
        wanted, had = dict(own.hard), dict(source.hard)
        turns = self.turns
        if turns is None or _is_set(wanted[_DISABLED]):
            turns = Turns(0, 0)
        parts = []
        for part in state.parts:
            sections = tuple(
                _section(section, had[_TYPES[0]], wanted[_TYPES[0]], turns)
                for section in part.sections
            )
            parts.append(replace(part, sections=sections))
        return KVState(state.n_tokens, tuple(parts))


def relayout(header: GgufHeader, model: ModelInfo) -> Relayout:
    """Return how states of a model can be laid out anew, from its header."""
    return Relayout(_turns(Keys(header, model.path), model), model.memory not in _NEVER)


def _turns(keys: Keys, model: ModelInfo) -> Turns | None:
    """Return what turns the heads, None where layers have heads of different sizes."""
    if model.memory == "mla" or not model.n_heads:
        return Turns(0, 0)
    first = keys.each_layer("attention.head_count", model.n_layers)[0]
    usual = model.n_embd // first if first else 0
    sizes = []
    for name in ("attention.key_length", "attention.value_length"):
        size = keys.count(name, low=0, default=usual)
        if not size or keys.count(f"{name}_swa", low=0, default=size) != size:
            return None
        sizes.append(size)
    key, value = sizes
    # Keys are turned whole where a power of two fits, values always by the smallest matrix.
    largest = key & -key if not key % _TURN else 0
    return Turns(largest, _TURN if not value % _TURN else 0)


def _settings(kv_type: str, flash: str) -> dict[str, str]:
    return {_FLASH: flash, **dict.fromkeys(_TYPES, kv_type)}


def _is_set(text: str) -> bool:
    """Return whether the library takes a variable's text for true."""
    found = _NUMBER.match(text)
    return found is not None and int(found.group()) != 0


def _section(section: Section, had: str, wanted: str, turns: Turns) -> Section:
    if section.role not in ("K", "V"):
        return section
    if section.type != had:
        raise SnapshotIncompatible(f"{section.type} rows in a snapshot of {had}")
    if had == wanted:
        return section
    turn = turns.keys if section.role == "K" else turns.values
    convert = _to_blocks if wanted == CONVERTED[1] else _to_halves
    return Section(section.layer, section.role, wanted, convert(section.rows, turn))


def _to_blocks(rows: NDArray[np.unsignedinteger], turn: int) -> NDArray[np.uint8]:
    """Return rows of f16 as q8_0, shape (n_tokens, row_bytes)."""
    if rows.shape[1] % max(_BLOCK, turn):
        raise SnapshotIncompatible(f"rows of {rows.shape[1]} values do not fill blocks of q8_0")
    values = f16_to_f32(np.ascontiguousarray(rows, np.uint16))
    return quantize(_turned(values, turn), GgmlType.Q8_0)


def _to_halves(rows: NDArray[np.unsignedinteger], turn: int) -> NDArray[np.uint16]:
    """Return rows of q8_0 as f16, shape (n_tokens, n_channels)."""
    n_blocks, rest = divmod(rows.shape[1], _BLOCK + 2)
    n = n_blocks * _BLOCK
    if rest or n % max(_BLOCK, turn):
        raise SnapshotIncompatible(f"rows of {rows.shape[1]} bytes are no rows of q8_0")
    values = dequantize(np.ascontiguousarray(rows, np.uint8), GgmlType.Q8_0, n)
    return f32_to_f16(np.clip(_turned(values, turn), -_MAX_F16, _MAX_F16))


def _turned(values: NDArray[np.float32], turn: int) -> NDArray[np.float32]:
    """Return H x of each `turn` values; H is its own inverse."""
    if not turn:
        return values
    return (values.reshape(-1, turn) @ _hadamard(turn)).reshape(values.shape)


@functools.cache
def _hadamard(n: int) -> NDArray[np.float32]:
    """Return the normed Hadamard matrix of a power of two, in Sylvester's order."""
    made = np.full((1, 1), 1 / np.sqrt(n), np.float32)
    while len(made) < n:
        made = np.block([[made, made], [made, -made]])
    return made
