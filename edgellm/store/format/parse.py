"""Reading a header: each member checked as it is taken, and the whole held against its own encoding.

Parsing ends by encoding again: another spelling of the same values (other order, repeated keys,
spaces, 1.0 for 1) is refused, and so is a list of features other than those that are used.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, cast

from edgellm.core import Tier
from edgellm.errors import SnapshotCorrupt, SnapshotIncompatible
from edgellm.store.format.fields import MAX_NUMBER, TEXT, Fields, choice, members, number, text
from edgellm.store.format.header import (
    CUTS,
    DELTA,
    FEATURES,
    FORMAT,
    KINDS,
    KINDS_2,
    MORE_KINDS,
    MORE_ROLES,
    PLANES,
    RESERVED,
    ROLES,
    Extent,
    PartRow,
    SectionRow,
    SnapshotHeader,
)
from edgellm.store.format.tiers import EXACTNESS, KV_CODEC, TIER_NAMES, exactness
from edgellm.store.state import Anchor, Fingerprint

if TYPE_CHECKING:
    from edgellm.store.format.header import Stored
    from edgellm.store.state import PartKind, Role

_HEX32: Final = re.compile(r"[0-9a-f]{32}")
_HEX64: Final = re.compile(r"[0-9a-f]{64}")
_SECTION: Final = ("layer", "role", "type", "shape")
_EXTENT: Final = ("offset", "n_bytes", "xxh3")


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
    tier, words = _demands(values)
    parent = _parent(values, words)
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
        parts=tuple(_part(Fields("a part", item), words) for item in values.items("parts")),
        tier=tier,
        parent=parent,
        extra=values.fields("extra").rest(),
        cuts=_cuts(values) if words.has_cuts else (),
    )
    values.finish()
    return header


class _Words:
    """The words that may stand in a file with these required features."""

    def __init__(self, features: list[Any]) -> None:
        has_more = KINDS_2 in features
        self.kinds = KINDS + MORE_KINDS * has_more
        self.roles = ROLES + MORE_ROLES * has_more
        self.has_parent = DELTA in features
        self.has_cuts = CUTS in features
        packed, planes = KV_CODEC in features, PLANES in features
        more = ("packed",) * packed + ("planes",) * planes
        self.stored = ("exact", *more) if more else ()
        self.members = (*_SECTION, *("stored",) * bool(more), *_EXTENT)


def _demands(values: Fields) -> tuple[Tier, _Words]:
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
    in_order = wanted == [feature for feature in FEATURES if feature in wanted]
    is_packed = tier is not Tier.EXACT
    if promise != exactness(tier) or not in_order or (KV_CODEC in wanted) != is_packed:
        raise SnapshotCorrupt(f"tier {name!r} with exactness {promise!r} and features {wanted}")
    return tier, _Words(wanted)


def _parent(values: Fields, words: _Words) -> Anchor | None:
    if not words.has_parent:
        if values.take("parent") is not None:
            raise SnapshotIncompatible("field 'parent' is set")
        return None
    parent = values.fields("parent")
    anchor = Anchor(
        key=parent.text("key", _HEX32),
        n_tokens=parent.number("n_tokens", low=1),
        identity=parent.text("identity", _HEX32),
    )
    parent.finish()
    return anchor


def _cuts(values: Fields) -> tuple[int, ...]:
    """Take the cuts, each behind the one before; `check_layout` knows how far they may reach."""
    found: list[int] = []
    for item in values.items("cuts"):
        found.append(number("the header", "cuts", item, found[-1] + 1 if found else 1))
    return tuple(found)


def _part(values: Fields, words: _Words) -> PartRow:
    rows = [_section(item, words) for item in values.items("sections")]
    part = PartRow(
        kind=cast("PartKind", values.choice("kind", words.kinds)),
        first=values.number("first"),
        n_tokens=values.number("n_tokens"),
        sections=tuple(rows),
    )
    values.finish()
    return part


def _section(item: object, words: _Words) -> SectionRow:
    where = "a section"
    values = members(where, item, words.members)
    layer, role, type_name, shape = values[:4]
    offset, n_bytes, xxh3 = values[-3:]
    if not _is_shape(shape):
        raise SnapshotCorrupt(f"{where}: 'shape' is not two sizes")
    stored = choice(where, "stored", values[4], words.stored) if words.stored else None
    return SectionRow(
        layer=number(where, "layer", layer),
        role=cast("Role", choice(where, "role", role, words.roles)),
        type=text(where, "type", type_name, TEXT),
        shape=(shape[0], shape[1]),
        extent=Extent(
            offset=number(where, "offset", offset),
            n_bytes=number(where, "n_bytes", n_bytes, low=1),
            xxh3=text(where, "xxh3", xxh3, _HEX32),
        ),
        stored=cast("Stored | None", stored),
    )


def _is_shape(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(type(n) is int and 1 <= n <= MAX_NUMBER for n in value)
    )


def _extent(values: Fields) -> Extent:
    extent = Extent(
        offset=values.number("offset"),
        n_bytes=values.number("n_bytes", low=1),
        xxh3=values.text("xxh3", _HEX32),
    )
    values.finish()
    return extent
