"""--help: examples that parse, exit codes, variables, and a width that follows the terminal."""

from __future__ import annotations

import functools
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import edgellm
from edgellm.cli import commands, manual, variables
from edgellm.cli.tree import tree_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    import typer

    from edgellm.cli.tree import Command

PACKAGE = Path(edgellm.__file__).parent


def all_commands(command: Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Give the path of every command and group, the program itself first."""
    yield path
    for below in command.commands:
        yield from all_commands(below, (*path, below.name))


COMMANDS = tuple(all_commands(tree_of(commands.app)))


def examples_of(help_text: str) -> list[str]:
    """Give the lines of the paragraph of examples."""
    paragraph = help_text.partition("Examples:\n")[2].partition("\n\n")[0]
    return [line.strip() for line in paragraph.splitlines()]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Let every command note what it was called with, and do nothing."""
    seen: list[dict[str, Any]] = []

    def stub(app: typer.Typer) -> None:
        for info in app.registered_commands:
            noting = functools.wraps(info.callback)(lambda **values: seen.append(values))
            monkeypatch.setattr(info, "callback", noting)
        for group in app.registered_groups:
            stub(group.typer_instance)

    stub(commands.app)
    return seen


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_examples_parse(cli: Any, calls: list[dict[str, Any]], path: tuple[str, ...]) -> None:
    """Every command shows two or more, of itself, and each is a line that it takes."""
    examples = examples_of(cli(*path, "--help").out)
    assert len(examples) >= 2
    for line in examples:
        found = re.search(r"edgellm ([^|<>)]*)", line)
        assert found, line
        words = shlex.split(found[1], comments=True)
        assert tuple(words[: len(path)]) == path, line
        result = cli(*words)
        assert (0, "") == (result.code, result.err), line
        assert calls.pop()


def test_exit_codes_are_all_listed(cli: Any) -> None:
    """Those of every error, and those of a closed pipe and of signals."""
    shown = cli("--help").out.partition("Exit codes:")[2].partition("Variables:")[0]
    listed = {int(code) for code in re.findall(r"^ +(\d+)  +\S", shown, re.MULTILINE)}
    known = {
        int(found[1])
        for name in ("errors.py", "cli/manual.py", "cli/interrupts.py")
        for found in re.finditer(
            r"^EXIT_\w+(?:: Final)? = (\d+)",
            (PACKAGE / name).read_text(encoding="utf-8"),
            re.MULTILINE,
        )
    }
    assert known | {0} == listed


def test_variables_are_all_listed(cli: Any) -> None:
    """Every variable that a module of the package reads is in `edgellm --help`."""
    shown = cli("--help").out.partition("Variables:")[2]
    named = {
        name
        for path in PACKAGE.rglob("*.py")
        for name in re.findall(r"\"(EDGELLM_[A-Z_]+)\"", path.read_text(encoding="utf-8"))
    }
    assert {variables.OFFLINE_VARIABLE, variables.HISTORY_VARIABLE} < named
    assert named == set(re.findall(r"EDGELLM_[A-Z_]+", shown))


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_is_plain_ascii(cli: Any, path: tuple[str, ...]) -> None:
    """No box is drawn, nothing is coloured, and any code page shows it."""
    text = cli(*path, "--help").out
    assert text.isascii()
    assert "\x1b" not in text


@pytest.mark.parametrize(("columns", "widest"), [(50, 48), (80, 78), (90, 88), (500, 100)])
def test_width_follows_the_terminal(
    cli: Any, monkeypatch: pytest.MonkeyPatch, columns: int, widest: int
) -> None:
    """Up to a hundred columns; what must be copied whole is not broken."""
    monkeypatch.setenv("COLUMNS", str(columns))
    text = cli("run", "--help").out.partition("Examples:")[0]
    lines = [line for line in text.splitlines() if not line.lstrip().startswith(("-", "Usage"))]
    assert widest - 15 < max(len(line) for line in lines) <= widest
    assert manual.width(columns) == widest
    assert manual.width(1) == 40
