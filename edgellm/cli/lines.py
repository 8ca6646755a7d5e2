"""Lines for a chat: from a terminal with editing and history, or from a pipe; and turns from lines.

A turn is one line, or several: a line that ends with a backslash goes on, and three double quotes
open a block that the next three close.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Final, Protocol

from edgellm.cli import render
from edgellm.cli.inputs import MAX_TEXT_BYTES, decode_text
from edgellm.errors import EdgeLLMError, UsageError
from edgellm.fileio import private_dir, write_atomic

if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO

HISTORY_LINES: Final = 1000
_MAX_HISTORY_BYTES: Final = 1 << 20
_FENCE: Final = '"""'
_PROMPT: Final = ">>> "
_MORE: Final = "... "


class Lines(Protocol):
    """Where a chat's lines come from."""

    interactive: bool

    def next_line(self, prompt: str) -> str | None:
        """Return the next line without its end, or None when there is no more.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed on a terminal.
            UsageError: the line is not UTF-8.
        """

    def close(self) -> None:
        """Keep the history, where there is one."""


class PipedLines:
    """Lines of a pipe or a file."""

    interactive = False

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._number = 0

    def next_line(self, prompt: str) -> str | None:  # noqa: ARG002  # nobody is there to see it
        """Return the next line without its end, or None at the end of the file."""
        raw = self._file.readline(MAX_TEXT_BYTES + 1)
        self._number += 1
        return decode_text(raw, f"stdin line {self._number}") if raw else None

    def close(self) -> None:
        """Do nothing."""


class TerminalLines:
    """Lines typed by a person; with readline where Python has it, which then keeps a history.

    Without a history file the lines of this chat can be called back, and are gone with it.
    """

    interactive = True

    def __init__(self, history: Path | None) -> None:
        self._history = history
        self._typed: list[str] = []
        with contextlib.suppress(ImportError):  # Windows has none; typing works all the same
            import readline

            for line in [] if history is None else read_history(history):
                readline.add_history(line)

    def next_line(self, prompt: str) -> str | None:
        """Ask for a line; None at Ctrl-D."""
        if sys.stdout is None:  # `input` would fail without it
            raise render.StdoutClosed
        try:
            if sys.stdout.isatty():
                line = input(prompt)
            else:
                render.write_err(prompt)
                line = input()
        except EOFError:
            render.write_err("\n")
            return None
        except UnicodeDecodeError as err:
            raise UsageError(f"the line is not UTF-8 at byte offset {err.start}") from err
        line = typed_text(line)
        if line.strip():
            self._typed.append(line.replace("\n", " "))
        return line

    def close(self) -> None:
        """Add the typed lines to the history file, readable by its owner alone."""
        if self._history is None or not self._typed:
            return
        kept = [*read_history(self._history), *self._typed][-HISTORY_LINES:]
        data = "".join(f"{line}\n" for line in kept).encode("utf-8", "replace")
        try:
            private_dir(self._history.parent)
            write_atomic(self._history, data)
        except (OSError, EdgeLLMError) as err:  # no reason to fail a chat that went well
            render.warning(f"the history was not kept: {err}")
        self._typed.clear()


def typed_text(line: str) -> str:
    """Return a typed line as text: where the locale is ASCII, its bytes are UTF-8 all the same.

    Raises:
        UsageError: they are not.
    """
    try:
        return line.encode("utf-8", "surrogateescape").decode("utf-8")
    except UnicodeDecodeError as err:
        raise UsageError(f"the line is not UTF-8 at byte offset {err.start}") from err


def read_history(path: Path) -> list[str]:
    """Return the last lines of a history file, or none if it cannot be read."""
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_HISTORY_BYTES)
    except OSError:
        return []
    return raw.decode("utf-8", "replace").split("\n")[:-1][-HISTORY_LINES:]


def read_turn(lines: Lines) -> str | None:
    """Return the next turn, of one line or of several, or None when there is no more.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed; what was typed of the turn is dropped.
        UsageError: a line is not UTF-8.
    """
    line = lines.next_line(_PROMPT)
    if line is None:
        return None
    if line.lstrip().startswith(_FENCE):
        return _read_block(lines, line.lstrip().removeprefix(_FENCE))
    parts = []
    while line is not None and line.endswith("\\"):
        parts.append(line[:-1])
        line = lines.next_line(_MORE)
    return "\n".join([*parts, *([] if line is None else [line])])


def _read_block(lines: Lines, line: str | None) -> str:
    parts = []
    while line is not None:
        text, fence, _ = line.partition(_FENCE)
        parts.append(text)
        if fence:
            break
        line = lines.next_line(_MORE)
    return "\n".join(parts).strip("\n")
