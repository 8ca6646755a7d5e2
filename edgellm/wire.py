"""The JSON form of frozen dataclasses: what is written can be read, what is read was checked.

What comes over a pipe or in an HTTP body is a stranger's. Every field is held against its annotation
before a value is made of it; the value's own `__post_init__` then checks ranges.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from edgellm.errors import UsageError

T = TypeVar("T", bound="Wire")
# Below what a chat template may be handed; real tool descriptions nest some ten deep.
MAX_JSON_DEPTH = 24
_MAX_JSON_INT = 1 << 64


@dataclass(frozen=True)
class Wire:
    """A value with a JSON form.

    Fields are text, numbers, `Literal` texts, other `Wire` values, any JSON value, and tuples,
    mappings or None of these. A class attribute `type` names the value in a stream of several kinds.
    """

    __slots__ = ()

    def to_wire(self) -> dict[str, Any]:
        """Return the fields as plain JSON values, copied."""
        return {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}

    @classmethod
    def from_wire(cls: type[T], value: Mapping[str, Any]) -> T:
        """Build the value again from its JSON form.

        Raises:
            UsageError: a field is unknown, missing or of the wrong type.
        """
        return cls(**read_fields(cls, value, cls.__name__))


def read_fields(cls: type[Any], value: object, where: str) -> dict[str, Any]:
    """Return the constructor's arguments from the JSON form of a value.

    Args:
        cls: what is to be made.
        value: anything; a mapping if it is right.
        where: the value's name in messages.

    Raises:
        UsageError: `value` is no mapping, or a field is unknown, missing or of the wrong type.
    """
    if not isinstance(value, Mapping):
        raise UsageError(f"{where} must be an object, not {type(value).__name__}")
    kinds = _kinds(cls)  # type: ignore[arg-type]  # mypy takes the class for its instance
    given = dict(value)
    named = getattr(cls, "type", None)
    if given.pop("type", named) != named:
        raise UsageError(f"{where} has type {value['type']!r}")
    for name in given:
        if name not in kinds:
            raise UsageError(f"{where}: unknown field {name!r}")
    for field in dataclasses.fields(cls):
        no_default = field.default is field.default_factory is dataclasses.MISSING
        if no_default and field.name not in given:
            raise UsageError(f"{where}: field {field.name!r} is missing")
    return {name: _read(given[name], kinds[name], f"{where}.{name}") for name in given}


@functools.cache
def _kinds(cls: type[Any]) -> dict[str, Any]:
    """Return the annotated type of every field."""
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def _read(value: object, kind: Any, where: str) -> Any:
    """Return `value` as a field of type `kind`: lists become tuples, objects the values they are."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return json_copy(value, where)
    if origin in (types.UnionType, Union):
        kinds = [one for one in inner if one is not types.NoneType]
        return None if value is None else _read(value, kinds[0], where)
    if origin is Literal and isinstance(value, str) and value in inner:
        return value
    if origin is tuple and isinstance(value, (list, tuple)):
        return tuple(_read(one, inner[0], f"{where}[{n}]") for n, one in enumerate(value))
    if origin is Mapping and isinstance(value, Mapping):
        return {_read(k, inner[0], where): _read(v, inner[1], where) for k, v in value.items()}
    if isinstance(kind, type) and issubclass(kind, Wire):
        return kind(**read_fields(kind, value, where))
    if origin is None and _is_plain(value, kind):
        return value
    raise UsageError(f"{where} must be {_name(kind)}, not {type(value).__name__}")


def json_copy(value: object, where: str, depth: int = 0) -> Any:
    """Return a JSON value made anew: objects keep the order of their keys, tuples become lists.

    Args:
        value: text, a number, a bool, None, or sequences and mappings of these.
        where: the value's name in messages.
        depth: in how many others it lies.

    Raises:
        UsageError: it is none; a set has no order, so that its text would be another every time.
    """
    if depth > MAX_JSON_DEPTH:
        raise UsageError(f"{where}: values lie more than {MAX_JSON_DEPTH} deep in each other")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _whole_text(value, where)
    if isinstance(value, int) and abs(value) <= _MAX_JSON_INT:
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if isinstance(value, (list, tuple)):
        return [json_copy(item, f"{where}[{n}]", depth + 1) for n, item in enumerate(value)]
    if isinstance(value, Mapping):
        wrong = next((key for key in value if not isinstance(key, str)), None)
        if wrong is not None:
            raise UsageError(f"{where}: a key must be text, not {type(wrong).__name__}")
        return {
            _whole_text(key, where): json_copy(item, f"{where}.{key}", depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, (set, frozenset)):
        raise UsageError(
            f"{where}: a set has no order", hint="give a list, sorted once and for all"
        )
    raise UsageError(
        f"{where} must be a JSON value, not "
        f"{value if isinstance(value, float) else type(value).__name__}"
    )


def _whole_text(text: str, where: str) -> str:
    """Return a text unless it cannot be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError as err:
        raise UsageError(f"{where}: half a surrogate at character {err.start}") from err
    return str(text)


def _is_plain(value: object, kind: type) -> bool:
    """Return whether a JSON value is a text or number of that type; a bool is no number."""
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, bool) and kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


def _name(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return f"one of {', '.join(get_args(kind))}"
    named = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
    return named.get(kind, "a list or an object")


def _plain(value: object) -> Any:
    if isinstance(value, Wire):
        return value.to_wire()
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
