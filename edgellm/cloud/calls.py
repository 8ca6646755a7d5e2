"""Calls of tools out of the pieces in which they are streamed.

A piece belongs to the call with its index, unless it brings another id: some servers give every call
index 0, some give none. Two calls are never glued into one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from edgellm.cloud.events import CloudToolCall

MAX_CALLS: Final = 128


@dataclass(slots=True)
class _Growing:
    index: int | None
    id: str
    name: str
    arguments: list[str]


class ToolCalls:
    """Gathers the calls of one answer."""

    def __init__(self) -> None:
        self._calls: list[_Growing] = []

    def take(self, pieces: object) -> bool:
        """Add the `tool_calls` of one chunk; whether they could be read."""
        if not isinstance(pieces, list):
            return False
        for piece in pieces:
            if not isinstance(piece, dict) or len(self._calls) > MAX_CALLS:
                return False
            function = piece.get("function") or {}
            if not isinstance(function, dict):
                return False
            arguments = function.get("arguments")
            if isinstance(arguments, dict):  # whole, where a text belongs
                arguments = json.dumps(arguments, ensure_ascii=False)
            call = self._call_of(piece, _text(function.get("name")), _text(arguments))
            call.arguments.append(_text(arguments))
        return len(self._calls) <= MAX_CALLS

    def calls(self) -> tuple[CloudToolCall, ...]:
        """Return what is there of each call."""
        return tuple(CloudToolCall(c.id, c.name, "".join(c.arguments)) for c in self._calls)

    def _call_of(self, piece: dict[str, Any], name: str, arguments: str) -> _Growing:
        index = piece.get("index") if isinstance(piece.get("index"), int) else None
        named = _text(piece.get("id"))
        call = self._found(index)
        if call is None or _is_another(call, named, name, arguments):
            call = _Growing(index, named, name, [])
            self._calls.append(call)
        call.id = call.id or named
        call.name = call.name or name
        return call

    def _found(self, index: int | None) -> _Growing | None:
        """Return the last call with this index, the last of all where no index is given."""
        same = (c for c in reversed(self._calls) if index is None or c.index == index)
        return next(same, None)


def _is_another(call: _Growing, named: str, name: str, arguments: str) -> bool:
    if named and call.id:
        return named != call.id
    # Without ids: a name again, with arguments that begin again.
    return bool(name and call.name and any(call.arguments) and arguments.startswith("{"))


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
