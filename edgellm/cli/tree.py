"""The commands as data: names, options, arguments and what their values can be.

Read from the functions and their annotations, which is where they are declared. The objects that
typer makes of them change from one version of typer to the next.
"""

from __future__ import annotations

import enum
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import typer


@dataclass(frozen=True, slots=True)
class Parameter:
    """An option or an argument of a command.

    Attributes:
        names: of an option, such as `--prompt` and `-p`; an argument has none.
        metavar: what --help shows for its value.
        values: the words it is one of, if it is.
        is_flag: it takes no value.
        is_many: it may be given more than once.
    """

    names: tuple[str, ...]
    metavar: str
    help: str
    values: tuple[str, ...]
    is_flag: bool
    is_many: bool
    is_hidden: bool


@dataclass(frozen=True, slots=True)
class Command:
    """A command, or a group of them."""

    name: str
    help: str
    parameters: tuple[Parameter, ...]
    commands: tuple[Command, ...]

    def command(self, name: str) -> Command | None:
        """Return the command of a group that has this name."""
        return next((command for command in self.commands if command.name == name), None)

    def option(self, name: str) -> Parameter | None:
        """Return the option with this name."""
        return next((p for p in self.parameters if name in p.names), None)

    def argument(self, place: int) -> Parameter | None:
        """Return the argument at a place, counted from 0; the last may take all that follow."""
        found = [p for p in self.parameters if not p.names]
        if found and place >= len(found) and found[-1].is_many:
            return found[-1]
        return found[place] if place < len(found) else None


def tree_of(app: typer.Typer, name: str = "") -> Command:
    """Return the tree of commands of a typer program."""
    root = None if app.registered_callback is None else app.registered_callback.callback
    leaves = (_leaf(info.name, info.callback) for info in app.registered_commands)
    groups = (
        tree_of(info.typer_instance, info.name or "")
        for info in app.registered_groups
        if info.typer_instance is not None
    )
    return Command(
        name=name,
        help="" if root is None else inspect.getdoc(root) or "",
        parameters=() if root is None else tuple(_parameters(root)),
        commands=(*(leaf for leaf in leaves if leaf is not None), *groups),
    )


def _leaf(name: str | None, function: Callable[..., Any] | None) -> Command | None:
    if function is None:
        return None
    help_text = inspect.getdoc(function) or ""
    return Command(name or function.__name__, help_text, tuple(_parameters(function)), ())


def _parameters(function: Callable[..., Any]) -> Iterator[Parameter]:
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        kind, *declared = get_args(parameter.annotation) or (parameter.annotation,)
        if declared and hasattr(declared[0], "param_decls"):
            yield _parameter(kind, declared[0])


def _parameter(kind: Any, declared: Any) -> Parameter:
    """Read one declaration; the first name of an annotated option stands where a default would."""
    names = (declared.default, *(declared.param_decls or ()))
    parts = (kind,) if get_origin(kind) is Literal else get_args(kind) or (kind,)
    plain = next(part for part in parts if part is not type(None))
    is_many = list in (plain, get_origin(kind), get_origin(plain))
    return Parameter(
        names=tuple(
            part
            for name in names
            if isinstance(name, str) and name.startswith("-")
            for part in name.split("/")  # `--snapshot/--no-snapshot` is two
        ),
        metavar=declared.metavar or "",
        help=declared.help or "",
        values=_choices(plain),
        is_flag=plain is bool,
        is_many=is_many,
        is_hidden=bool(declared.hidden),
    )


def _choices(kind: Any) -> tuple[str, ...]:
    """Return the only values of a kind, or nothing where there are others."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return tuple(str(member.value) for member in kind)
    return ()
