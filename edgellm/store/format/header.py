"""The header of a snapshot file: which model and tokens it belongs to, and where its arrays lie.

One canonical JSON form, made here and read in `parse.py`. What a reader must know besides version 1
follows from what is in the header, so a file that uses nothing new says nothing new. No field holds
text of a prompt. The prose specification of the format is the store's README.md.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from edgellm.core import Tier
from edgellm.store.format.tiers import KV_CODEC, exactness

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgellm.store.state import Anchor, Fingerprint, PartKind, Role

FORMAT: Final = 1
RESERVED: Final = ("cipher", "signature")
KINDS: Final = ("dense", "window", "opaque")
ROLES: Final = ("K", "V", "blob")
MORE_KINDS: Final = ("recurrent",)
MORE_ROLES: Final = ("R", "S", "X")

KINDS_2: Final = "kinds-2"
"""Parts of kind `recurrent`, sections of roles R, S and X."""

DELTA: Final = "delta-1"
"""Dense parts that begin where those of another file end."""

PLANES: Final = "planes-1"
"""Sections whose high bytes are compressed."""

CUTS: Final = "cuts-1"
"""A prefix that was cut before its end, where decoding began anew."""

FEATURES: Final = (KV_CODEC, KINDS_2, DELTA, PLANES, CUTS)
Stored = Literal["exact", "packed", "planes"]


@dataclass(frozen=True, slots=True)
class Extent:
    """A run of bytes after the header, with its checksum.

    Attributes:
        offset: of the first byte, from the end of the padded header.
        n_bytes: how many.
        xxh3: 32 hex digits of their XXH3-128.
    """

    offset: int
    n_bytes: int
    xxh3: str

    def to_json(self) -> dict[str, Any]:
        """Return the fields in file order."""
        return {"offset": self.offset, "n_bytes": self.n_bytes, "xxh3": self.xxh3}


@dataclass(frozen=True, slots=True)
class SectionRow:
    """Where the keys or values of one layer lie; the fields are those of `Section`.

    Attributes:
        stored: how the run holds the rows; None in files whose runs are all plain rows, which do
            not say so.
    """

    layer: int
    role: Role
    type: str
    shape: tuple[int, int]
    extent: Extent
    stored: Stored | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields in file order."""
        own: dict[str, Any] = {
            "layer": self.layer,
            "role": self.role,
            "type": self.type,
            "shape": [*self.shape],
        }
        if self.stored is not None:
            own["stored"] = self.stored
        return own | self.extent.to_json()


@dataclass(frozen=True, slots=True)
class PartRow:
    """One memory of the engine; the fields are those of `Part`."""

    kind: PartKind
    first: int
    n_tokens: int
    sections: tuple[SectionRow, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the fields in file order."""
        return {
            "kind": self.kind,
            "first": self.first,
            "n_tokens": self.n_tokens,
            "sections": [row.to_json() for row in self.sections],
        }


@dataclass(frozen=True, slots=True)
class SnapshotHeader:
    """Everything a snapshot file says before its arrays.

    Attributes:
        fingerprint: of the model, engine and settings; its digest is in the file too.
        n_tokens: length of the prefix.
        tokens_sha256: 64 hex digits over the token ids as little-endian int32.
        created_s: when it was written, in whole seconds of the Unix clock.
        tokens: where the token ids lie.
        parts: the engine's memories.
        tier: how the sections are stored.
        parent: the snapshot whose rows come before those of the dense parts here, or None.
        extra: values that a reader may ignore.
        cuts: all places strictly inside the prefix where it was cut, ascending.
    """

    fingerprint: Fingerprint
    n_tokens: int
    tokens_sha256: str
    created_s: int
    tokens: Extent
    parts: tuple[PartRow, ...]
    tier: Tier = Tier.EXACT
    parent: Anchor | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    cuts: tuple[int, ...] = ()

    def extents(self) -> tuple[Extent, ...]:
        """Return all runs of bytes, in file order."""
        rows = (row.extent for part in self.parts for row in part.sections)
        return (self.tokens, *rows)

    def features(self) -> tuple[str, ...]:
        """Return what a reader must know, in the order of `FEATURES`."""
        rows = [row for part in self.parts for row in part.sections]
        uses = {
            KV_CODEC: self.tier is not Tier.EXACT,
            KINDS_2: any(part.kind in MORE_KINDS for part in self.parts)
            or any(row.role in MORE_ROLES for row in rows),
            DELTA: self.parent is not None,
            PLANES: any(row.stored == "planes" for row in rows),
            CUTS: bool(self.cuts),
        }
        return tuple(name for name in FEATURES if uses[name])

    def encode(self) -> bytes:
        """Return the canonical JSON form, ASCII."""
        values = {
            "format": FORMAT,
            "required_features": [*self.features()],
            "fingerprint": self.fingerprint.digest(),
            "hard": [[*pair] for pair in self.fingerprint.hard],
            "soft": [[*pair] for pair in self.fingerprint.soft],
            "n_tokens": self.n_tokens,
            "tokens_sha256": self.tokens_sha256,
            **({"cuts": [*self.cuts]} if self.cuts else {}),
            "tier": self.tier.value,
            "exactness": exactness(self.tier),
            "created": self.created_s,
            "parent": None if self.parent is None else _anchor(self.parent),
            **dict.fromkeys(RESERVED),
            "tokens": self.tokens.to_json(),
            "parts": [part.to_json() for part in self.parts],
            "extra": {name: self.extra[name] for name in sorted(self.extra)},
        }
        text = json.dumps(values, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
        return text.encode("ascii")


def _anchor(anchor: Anchor) -> dict[str, Any]:
    return {"key": anchor.key, "n_tokens": anchor.n_tokens, "identity": anchor.identity}
