"""From the fields of a dataclass to the flags of a command, and flags that are more than one value."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast, get_type_hints

from edgellm.cli.inputs import whole_text
from edgellm.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    Command = Callable[..., None]

INT_MAX: Final = (1 << 31) - 1
_SCALE: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)

T = TypeVar("T")


def gpu_layers(text: str) -> int | None:
    """Read `auto` (None: what fits) or a number of layers.

    Raises:
        UsageError: it is neither.
    """
    if text == "auto":
        return None
    if text.isascii() and text.isdigit() and int(text[:10]) <= INT_MAX and len(text) <= 10:
        return int(text)
    raise UsageError(f"--gpu-layers must be auto or a number from 0, not {text!r}")


def lora_adapters(values: Iterable[str]) -> tuple[tuple[str, float], ...]:
    """Read `FILE` or `FILE:SCALE` of each adapter; what follows the last colon is a scale if it is a number.

    Raises:
        UsageError: one names no file, or is not UTF-8.
    """
    found = []
    for value in values:
        file, _, scale = whole_text(value, "--lora").rpartition(":")
        is_scale = _SCALE.fullmatch(scale) is not None and ":" in value
        name = file if is_scale else value
        if not name:
            raise UsageError(f"--lora {value!r} names no file", hint="use --lora FILE[:SCALE]")
        found.append((name, float(scale) if is_scale else 1.0))
    return tuple(found)


def with_options(
    options_class: type[T], only: Collection[str] | None = None
) -> Callable[[Command], Command]:
    """Give a command one flag for each field of a dataclass.

    The command takes its own parameters and `options`, an instance of the class.

    Args:
        options_class: the dataclass.
        only: the fields that become flags, None for all; the others keep their defaults.
    """
    hints = get_type_hints(options_class, include_extras=True)
    own_names = options_class.__annotations__.keys()
    fields = [
        field
        for field in dataclasses.fields(cast("Any", options_class))
        if only is None or field.name in only
    ]
    fields.sort(key=lambda field: field.name not in own_names)  # a base class's flags come last
    flags = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=hints[field.name],
        )
        for field in fields
    ]

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def call(**values: Any) -> None:
            chosen = {field.name: values.pop(field.name) for field in fields}
            command(**values, options=options_class(**chosen))

        # Not get_type_hints: on Python 3.10 it hides `Annotated` where the default is None.
        own = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for name, parameter in inspect.signature(command, eval_str=True).parameters.items()
            if name != "options"
        ]
        call.__signature__ = inspect.Signature([*own, *flags])  # type: ignore[attr-defined]  # read by inspect.signature
        call.__annotations__ = {p.name: p.annotation for p in (*own, *flags)}
        return call

    return decorate
