"""KVState: the sequence memory of a token prefix, in canonical form, and the forms that files keep.

Canonical means: one 2-D array per (part, layer, K or V), row t holding token t's values. Strides are
free, so an engine whose own layout is channel-major hands over a transposed view and pays for the
transposition only when the bytes are written.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from typing import Any

    import numpy as np
    from numpy.typing import NDArray

    from edgellm.core import Tier

PartKind = Literal["dense", "window", "recurrent", "opaque"]
Role = Literal["K", "V", "R", "S", "X", "blob"]

ELEMENT_BYTES = {"f32": 4, "f16": 2, "bf16": 2}
"""Types stored element by element. Any other type is stored as rows of bytes (`uint8`)."""


@dataclass(frozen=True, slots=True)
class Section:
    """The keys or the values of one layer.

    Attributes:
        layer: index among the layers of this part, from 0.
        role: `K` and `V` in attention memories, with `X` for what else the engine keeps of each
            position; `R` and `S` in a recurrent part, its two kinds of state; `blob` in an opaque one.
        type: ggml's name of the element type, such as `f16` or `q8_0`; `u8` for `X` and a blob.
        rows: shape (n_tokens, n_channels), dtype uint16 for 2-byte and uint32 for 4-byte elements
            (raw bits, no arithmetic); shape (n_tokens, row_bytes), dtype uint8 for block types;
            shape (1, n_bytes), dtype uint8 for a blob. Any strides; read-only is fine.
    """

    layer: int
    role: Role
    type: str
    rows: NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True, slots=True)
class Part:
    """One of the engine's memories: all positions (dense), the last ones (window), or no rows.

    Attributes:
        kind: how the sections are to be read. `recurrent` memories hold what became of all positions
            in one row, which stands at the last of them.
        first: position of the first token held.
        n_tokens: how many positions are held, without gaps.
        sections: K of layers 0, 1, ..., then V of all of them or of none, then at most one X; R of
            layers 0, 1, ..., then S likewise; blobs 0, 1, ....
    """

    kind: PartKind
    first: int
    n_tokens: int
    sections: tuple[Section, ...]


@dataclass(frozen=True, slots=True)
class KVState:
    """The whole sequence memory after `n_tokens` tokens.

    Attributes:
        n_tokens: length of the prefix; the next token goes to this position.
        parts: the engine's memories in the engine's order.
    """

    n_tokens: int
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class SectionOutline:
    """A `Section` before its rows are there; `shape` is theirs."""

    layer: int
    role: Role
    type: str
    shape: tuple[int, int]


@dataclass(frozen=True, slots=True)
class PartOutline:
    """A `Part` before its rows are there."""

    kind: PartKind
    first: int
    n_tokens: int
    sections: tuple[SectionOutline, ...]


Landing = Callable[[tuple[PartOutline, ...]], "KVState | None"]
"""Gives a state whose rows, of these shapes and writable, are where an engine wants them, or None."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """A stored snapshot that a longer one may lean on, keeping only what comes after it.

    Attributes:
        key: its name.
        n_tokens: length of its prefix.
        identity: 32 hex digits, the checksum of its header, and so of everything in it.
    """

    key: str
    n_tokens: int
    identity: str


@dataclass(frozen=True, slots=True)
class EncodedSection:
    """The rows of one layer, in another form than their own.

    Attributes:
        layer, role, type: those of the `Section` that comes out when it is decoded.
        shape: of its rows, (n_tokens, n_channels).
        run: shape (n_bytes,), dtype uint8: the very bytes in the file.
    """

    layer: int
    role: Role
    type: str
    shape: tuple[int, int]
    run: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class PackedSection(EncodedSection):
    """The keys or the values of one layer, rounded to a tier's grid; `format/runs.py` says how it lies."""


@dataclass(frozen=True, slots=True)
class PackedPart:
    """A `Part` of which some sections are packed, and the others exact."""

    kind: PartKind
    first: int
    n_tokens: int
    sections: tuple[Section | PackedSection, ...]


@dataclass(frozen=True, slots=True)
class PackedState:
    """A `KVState` as a tier other than `exact` keeps it; made and undone by `format/codec.py`."""

    n_tokens: int
    parts: tuple[PackedPart, ...]
    tier: Tier


@dataclass(frozen=True, slots=True)
class PlaneSection(EncodedSection):
    """The rows of one layer, exact, with their high bytes compressed; see `format/planes.py`."""


@dataclass(frozen=True, slots=True)
class PlanePart:
    """A `Part` of which some sections are kept as byte planes, and the others as they are."""

    kind: PartKind
    first: int
    n_tokens: int
    sections: tuple[Section | PlaneSection, ...]


@dataclass(frozen=True, slots=True)
class PlaneState:
    """A `KVState` of which some sections are kept as byte planes."""

    n_tokens: int
    parts: tuple[PlanePart, ...]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What must be equal for a snapshot to be valid, and what is only worth knowing.

    Attributes:
        hard: sorted (name, value) pairs that change the numbers in the memory: model content,
            adapters, KV types, attention kernel, rope settings, engine build, format.
        soft: sorted pairs that change at most the rounding: threads, batch size, CPU features.
    """

    hard: tuple[tuple[str, str], ...]
    soft: tuple[tuple[str, str], ...] = ()

    def digest(self) -> str:
        """Return 64 hex digits of the SHA-256 over the hard pairs, in canonical JSON."""
        return _digest(self.hard)


@functools.lru_cache(maxsize=64)
def _digest(hard: tuple[tuple[str, str], ...]) -> str:
    import hashlib
    import json

    text = json.dumps(sorted(hard), separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()
