"""The header of a snapshot file: which model and tokens it belongs to, and where its arrays lie.

One canonical JSON form: parsing ends by encoding again, and another spelling of the same values
(other order, repeated keys, spaces, 1.0 for 1) is refused. No field holds text of a prompt.
The prose specification of the format is README.md in this folder.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

from edgellm.core import Tier
from edgellm.errors import SnapshotCorrupt, SnapshotIncompatible
from edgellm.store.fields import MAX_NUMBER, TEXT, Fields
from edgellm.store.state import Fingerprint
from edgellm.store.tiers import EXACTNESS, FEATURES, TIER_NAMES, exactness, features

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgellm.store.state import PartKind, Role

FORMAT: Final = 1
RESERVED: Final = ("parent", "cipher", "signature")
KINDS: Final = ("dense", "window", "opaque")
ROLES: Final = ("K", "V", "blob")
STORED: Final = ("exact", "packed")
_HEX32: Final = re.compile(r"[0-9a-f]{32}")
_HEX64: Final = re.compile(r"[0-9a-f]{64}")


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
        is_packed: whether the run is that of a `PackedSection`; None in files of tier `exact`,
            whose rows do not say.
    """

    layer: int
    role: Role
    type: str
    shape: tuple[int, int]
    extent: Extent
    is_packed: bool | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields in file order."""
        own = {"layer": self.layer, "role": self.role, "type": self.type, "shape": [*self.shape]}
        if self.is_packed is not None:
            own["stored"] = STORED[self.is_packed]
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
        extra: values that a reader may ignore.
    """

    fingerprint: Fingerprint
    n_tokens: int
    tokens_sha256: str
    created_s: int
    tokens: Extent
    parts: tuple[PartRow, ...]
    tier: Tier = Tier.EXACT
    extra: Mapping[str, Any] = field(default_factory=dict)

    def extents(self) -> tuple[Extent, ...]:
        """Return all runs of bytes, in file order."""
        rows = (row.extent for part in self.parts for row in part.sections)
        return (self.tokens, *rows)

    def encode(self) -> bytes:
        """Return the canonical JSON form, ASCII."""
        values = {
            "format": FORMAT,
            "required_features": [*features(self.tier)],
            "fingerprint": self.fingerprint.digest(),
            "hard": [[*pair] for pair in self.fingerprint.hard],
            "soft": [[*pair] for pair in self.fingerprint.soft],
            "n_tokens": self.n_tokens,
            "tokens_sha256": self.tokens_sha256,
            "tier": self.tier.value,
            "exactness": exactness(self.tier),
            "created": self.created_s,
            **dict.fromkeys(RESERVED),
            "tokens": self.tokens.to_json(),
            "parts": [part.to_json() for part in self.parts],
            "extra": {name: self.extra[name] for name in sorted(self.extra)},
        }
        text = json.dumps(values, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
        return text.encode("ascii")


def parse_header(raw: bytes) -> SnapshotHeader:
    """Read the canonical JSON form.

    Raises:
        SnapshotIncompatible: it asks for something this version cannot do.
        SnapshotCorrupt: a value is missing, of the wrong type, or spelled another way.
    """
    try:
        values = Fields("the header", json.loads(raw.decode("ascii")))
        header = _header(values)
        same = header.encode() == raw
    except (ValueError, RecursionError) as err:
        raise SnapshotCorrupt(f"the header is not JSON ({type(err).__name__})") from err
    if not same:
        raise SnapshotCorrupt("the header is not in canonical form")
    return header


def _header(values: Fields) -> SnapshotHeader:
    tier = _demands(values)
    digest = values.text("fingerprint", _HEX64)
    fingerprint = Fingerprint(values.pairs("hard"), values.pairs("soft"))
    if fingerprint.digest() != digest:
        raise SnapshotCorrupt("the fingerprint is not that of its own fields")
    header = SnapshotHeader(
        fingerprint=fingerprint,
        n_tokens=values.number("n_tokens", low=1),
        tokens_sha256=values.text("tokens_sha256", _HEX64),
        created_s=values.number("created"),
        tokens=_extent(values.fields("tokens")),
        parts=tuple(_part(Fields("a part", item), tier) for item in values.items("parts")),
        tier=tier,
        extra=values.fields("extra").rest(),
    )
    values.finish()
    return header


def _demands(values: Fields) -> Tier:
    """Refuse what only a later version can read, before anything else is looked at."""
    if (found := values.number("format")) != FORMAT:
        raise SnapshotIncompatible(f"format {found}, this version reads {FORMAT}")
    wanted = values.items("required_features")
    for feature in wanted:
        if feature not in FEATURES:
            raise SnapshotIncompatible(f"requires {str(feature)[:40]!r}")
    for name in RESERVED:
        if values.take(name) is not None:
            raise SnapshotIncompatible(f"field {name!r} is set")
    name, promise = values.text("tier", TEXT), values.text("exactness", TEXT)
    if name not in TIER_NAMES:
        raise SnapshotIncompatible(f"tier {name[:40]!r}")
    if promise not in EXACTNESS:
        raise SnapshotIncompatible(f"exactness {promise[:40]!r}")
    tier = Tier(name)
    if promise != exactness(tier) or tuple(wanted) != features(tier):
        raise SnapshotCorrupt(f"tier {name!r} with exactness {promise!r} and features {wanted}")
    return tier


def _part(values: Fields, tier: Tier) -> PartRow:
    rows = [_section(Fields("a section", item), tier) for item in values.items("sections")]
    part = PartRow(
        kind=cast("PartKind", values.choice("kind", KINDS)),
        first=values.number("first"),
        n_tokens=values.number("n_tokens"),
        sections=tuple(rows),
    )
    values.finish()
    return part


def _section(values: Fields, tier: Tier) -> SectionRow:
    shape = values.items("shape")
    if len(shape) != 2 or any(type(n) is not int or not 1 <= n <= MAX_NUMBER for n in shape):
        raise SnapshotCorrupt("a section: 'shape' is not two sizes")
    stored = None if tier is Tier.EXACT else values.choice("stored", STORED)
    return SectionRow(
        layer=values.number("layer"),
        role=cast("Role", values.choice("role", ROLES)),
        type=values.text("type", TEXT),
        shape=(shape[0], shape[1]),
        extent=_extent(values),
        is_packed=None if stored is None else stored == "packed",
    )


def _extent(values: Fields) -> Extent:
    extent = Extent(
        offset=values.number("offset"),
        n_bytes=values.number("n_bytes", low=1),
        xxh3=values.text("xxh3", _HEX32),
    )
    values.finish()
    return extent
