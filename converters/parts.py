"""The parts of a normalizer, pre-tokenizer or decoder of tokenizer.json, as values to compare.

Sequences are laid out flat. Nests and lengths are bounded: what exceeds them stays a Sequence, which
nobody knows, so it is refused.
"""

from __future__ import annotations

from typing import Any, Final

Part = tuple[Any, ...]

_MAX_PARTS: Final = 16
_MAX_DEPTH: Final = 8


def leaves(value: Any, inner: str, depth: int = 0) -> list[Any]:
    """Return the JSON values that do the work, in order.

    Args:
        value: the JSON value; None has no parts.
        inner: where a Sequence keeps its parts.
        depth: how deep this value stands.
    """
    if value is None:
        return []
    if isinstance(value, dict) and value.get("type") == "Sequence":
        rows = value.get(inner)
        if isinstance(rows, list) and len(rows) <= _MAX_PARTS and depth < _MAX_DEPTH:
            return [leaf for row in rows for leaf in leaves(row, inner, depth + 1)]
    return [value]


def parts_of(value: Any, inner: str) -> list[Part]:
    """Return tuples of each part's type and what decides. Arguments as in `leaves`."""
    return [_part(leaf) for leaf in leaves(value, inner)]


def _part(value: Any) -> Part:
    if not isinstance(value, dict):
        return ("?", str(value)[:60])
    kind = value.get("type")
    pattern = value.get("pattern")
    text = pattern.get("String") if isinstance(pattern, dict) else None
    fields: list[Any] = [None]
    if kind == "Replace":
        fields = [text, value.get("content")]
    elif kind == "Prepend":
        fields = [value.get("prepend")]
    elif kind == "Split":
        fields = [text, value.get("behavior"), value.get("invert", False)]
    elif kind == "Metaspace":
        # Older files have add_prefix_space where newer ones have prepend_scheme.
        older = "always" if value.get("add_prefix_space", True) else "never"
        scheme = value.get("prepend_scheme", older)
        fields = [value.get("replacement"), scheme, value.get("split", True)]
    return (str(kind)[:60], *map(_plain, fields))


def _plain(value: Any) -> Any:
    return value if isinstance(value, (str, bool, type(None))) else str(value)[:60]
