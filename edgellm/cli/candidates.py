"""What can stand at the cursor of a command line: read from the commands themselves.

The tree of commands is walked as the parser would walk it, so no second list of options can grow
old. What a value may be comes from its choices, or from the metavar that --help shows for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from edgellm.cli.tree import Command, Parameter

_OPTIONS_END: Final = "--"
_FILES_BY_METAVAR: Final = {"MODEL": "model", "FILE": "file", "SRC": "model", "OUT": "file"}
_MAX_HELP: Final = 60


@dataclass(frozen=True, slots=True)
class Candidate:
    """A word that may stand there, and what it is."""

    value: str
    help: str = ""


@dataclass(frozen=True, slots=True)
class Completion:
    """What may stand at the cursor.

    Attributes:
        words: in the order of --help.
        files: `model` or `file` where the shell shall offer names of files, else "".
            Folders are offered with either.
        word: the word at the cursor, without the `--option=` before it.
    """

    words: tuple[Candidate, ...] = ()
    files: str = ""
    word: str = ""


@dataclass(slots=True)
class _Walk:
    """Where the parser stands after the words before the cursor."""

    command: Command
    pending: Parameter | None = None
    n_arguments: int = 0
    only_arguments: bool = False
    seen: tuple[str, ...] = ()


def complete(root: Command, words: Sequence[str], keys: Callable[[], Iterable[str]]) -> Completion:
    """Return what can stand where the last of `words` stands.

    Args:
        root: the tree of all commands.
        words: those behind the program's name; the last one, possibly "", is at the cursor.
        keys: gives the snapshots that there are.
    """
    walk = _Walk(root)
    if not all(_step(walk, word) for word in words[:-1]):
        return Completion()
    word = words[-1] if words else ""
    if walk.pending is not None:
        return _values(walk.pending, word, keys)
    if word.startswith("-") and not walk.only_arguments:
        name, equals, value = word.partition("=")
        option = walk.command.option(name)
        if equals:
            return Completion() if option is None else _values(option, value, keys)
        return _starting(_options(walk), word)
    if walk.command.commands:
        return _starting(_commands(walk.command), word)
    argument = walk.command.argument(walk.n_arguments)
    return Completion(word=word) if argument is None else _values(argument, word, keys)


def _step(walk: _Walk, word: str) -> bool:
    """Go past a word; of what follows an unknown command nothing is known."""
    if walk.pending is not None:
        walk.pending = None
    elif word == _OPTIONS_END and not walk.only_arguments:
        walk.only_arguments = True
    elif word.startswith("-") and word != "-" and not walk.only_arguments:
        name, equals, _ = word.partition("=")
        option = walk.command.option(name)
        if option is not None:
            walk.seen += () if option.is_many else option.names
            walk.pending = None if equals or option.is_flag else option
    elif walk.command.commands:
        command = walk.command.command(word)
        if command is None:
            return False
        walk.command, walk.seen = command, ()
    else:
        walk.n_arguments += 1
    return True


def _commands(group: Command) -> Iterator[Candidate]:
    return (Candidate(command.name, _short(command.help)) for command in group.commands)


def _options(walk: _Walk) -> Iterator[Candidate]:
    for option in walk.command.parameters:
        if not option.is_hidden and not set(option.names) & set(walk.seen):
            for name in sorted(option.names, key=len, reverse=True):
                yield Candidate(name, _short(option.help))
    yield Candidate("--help", "Show this message and exit.")


def _values(parameter: Parameter, word: str, keys: Callable[[], Iterable[str]]) -> Completion:
    """Return the values a parameter can have: choices, alternatives, keys or files."""
    if parameter.values:
        return _starting(map(Candidate, parameter.values), word)
    if parameter.metavar == "KEY":
        return _starting(map(Candidate, sorted(keys())), word)
    if parameter.metavar == "SETTING":
        from edgellm.config import KEYS

        return _starting((Candidate(name, key.meaning) for name, key in KEYS.items()), word)
    if "|" in parameter.metavar:  # a letter alone, as in `auto|N`, is a number
        parts = (part for part in parameter.metavar.split("|") if part != "N")
        return _starting(map(Candidate, parts), word)
    files = _FILES_BY_METAVAR.get(parameter.metavar, "")
    if files == "file" and not parameter.names:
        files = "model"
    return Completion(files=files, word=word)


def _starting(candidates: Iterable[Candidate], word: str) -> Completion:
    return Completion(tuple(c for c in candidates if c.value.startswith(word)), word=word)


def _short(text: str) -> str:
    """Return the first sentence of a help text, on one line."""
    sentence = " ".join(text.split()).partition(". ")[0].removesuffix(".")
    return sentence if len(sentence) <= _MAX_HELP else f"{sentence[: _MAX_HELP - 3]}..."
