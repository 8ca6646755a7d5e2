"""Errors over a pipe: an `EdgeLLMError` becomes an object, and the same class with its attributes again.

Only classes of `edgellm.errors` are made, and only from texts, numbers, truth values and lists of
texts: what comes is a stranger's.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

from edgellm import errors
from edgellm.errors import EdgeLLMError, EngineFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_TEXT: Final = 64 << 10
_KNOWN: Final[dict[str, type[EdgeLLMError]]] = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, EdgeLLMError)
}


def error_to_wire(error: EdgeLLMError) -> dict[str, Any]:
    """Return an error as JSON values; one of a class unknown here goes as the nearest known one."""
    kind = next(one for one in type(error).__mro__ if _KNOWN.get(one.__name__) is one)
    fields = {}
    for name in _parameters(kind):
        value = getattr(error, name, None)
        fields[name] = list(value) if isinstance(value, tuple) else value
    return {"class": kind.__name__, "message": error.message, "fields": fields}


def error_from_wire(value: Mapping[str, Any]) -> EdgeLLMError:
    """Return the error; `EngineFailed` says so where the object is none of ours."""
    name, message = value.get("class"), value.get("message")
    fields, kind = value.get("fields"), _KNOWN.get(str(name))
    if kind is None or not isinstance(message, str) or not isinstance(fields, dict):
        return EngineFailed("the worker sent an error that nobody here knows")
    wanted = _parameters(kind)
    given: dict[str, Any] = {
        key: tuple(item) if isinstance(item, list) else item
        for key, item in fields.items()
        if key in wanted and item is not None and _is_plain(item)
    }
    return kind(message[:_MAX_TEXT], **given)


def _parameters(kind: type[EdgeLLMError]) -> tuple[str, ...]:
    """Return what can be given by name to the constructor of an error; each is an attribute too."""
    found = inspect.signature(kind).parameters.values()
    return tuple(one.name for one in found if one.kind is one.KEYWORD_ONLY)


def _is_plain(value: object) -> bool:
    if isinstance(value, list):
        return len(value) < _MAX_TEXT and all(isinstance(item, str) for item in value)
    return isinstance(value, (str, bool, int, float))
