"""What reaches the terminal: every line that the command line prints goes through here.

Results go to stdout and all else to stderr. On a terminal no control character of a model, a file
or a path is sent on, so that none of them can move the cursor or rename the window.

An error that ends a command has its hint in a paragraph of its own. What is one text by nature, an
event of a stream and a warning, has the hint behind a semicolon: an event carries no more.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import TYPE_CHECKING, Any, Final, Protocol, TextIO

from edgellm.core import Failure, Switch, Token, Warn, event_to_wire

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from edgellm.core import Event
    from edgellm.errors import EdgeLLMError

_KEPT: Final = "\n\t"
_CONTROLS: Final = {
    code: "\N{REPLACEMENT CHARACTER}"
    for code in (*range(0x20), *range(0x7F, 0xA0))
    if chr(code) not in _KEPT
}


class StdoutClosed(Exception):  # a reader that has enough is no error
    """Whoever read stdout went away; nothing is left to say."""


class Printer(Protocol):
    """Shows the events of an answer as they come."""

    def event(self, event: Event) -> None:
        """Show one event."""


def write_out(text: str) -> None:
    """Write to stdout at once; after an error what follows goes nowhere.

    Raises:
        StdoutClosed: the other end of the pipe is gone, or stdout was closed from the start.
        OSError: it cannot be written, such as on a full disk; names stdout.
    """
    if sys.stdout is None:
        raise StdoutClosed
    try:
        sys.stdout.write(_safe(text, sys.stdout))
        sys.stdout.flush()
    except OSError as err:
        silence_stdout()
        if isinstance(err, BrokenPipeError):
            raise StdoutClosed from err
        raise OSError(err.errno, err.strerror, "stdout") from err


def write_err(text: str) -> None:
    """Write to stderr at once; a closed stderr is no reason to fail."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(_safe(text, sys.stderr))
            sys.stderr.flush()


def write_err_raw(text: str) -> None:
    """Write our own control characters to stderr, such as the return of a progress line."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)
            sys.stderr.flush()


def json_line(value: Mapping[str, Any]) -> None:
    """Write one JSON object as a line; ASCII, as U+2028 would end a line for some readers."""
    write_out(json.dumps(value, ensure_ascii=True) + "\n")


def table(rows: Sequence[Sequence[str]]) -> None:
    """Write rows of text in columns wide enough for each; the first row is the heading."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        write_out("  ".join(cells).rstrip() + "\n")


def facts(pairs: Sequence[tuple[str, str]], *, to_stderr: bool = False) -> None:
    """Write `label: value` lines, the values in one column."""
    width = max(len(label) for label, _ in pairs) + 1
    lines = "".join(f"{label + ':':<{width}} {value}\n" for label, value in pairs)
    (write_err if to_stderr else write_out)(lines)


def warning(message: str) -> None:
    """Write a warning as one line on stderr."""
    write_err(f"warning: {_one_line(message)}\n")


def error(message: str, hint: str = "") -> None:
    """Write an error as one line on stderr and, after a blank one, what to do about it."""
    write_err(f"error: {_one_line(message)}\n")
    if hint:
        write_err(f"\nhint: {hint}\n")


def report(err: EdgeLLMError, *, as_json: bool) -> None:
    """Write an error for people on stderr and, if asked, as the last JSON line on stdout.

    The error stays what went wrong even when stdout cannot be written: it was told on stderr.
    """
    error(str(err).removesuffix(f"; {err.hint}"), err.hint)
    if as_json:
        with contextlib.suppress(StdoutClosed, OSError):
            json_line(event_to_wire(failure_of(err)))


def failure_of(err: EdgeLLMError) -> Failure:
    """Return an error as the event that ends a stream."""
    return Failure(code=err.code, message=str(err), exit=err.exit_code)


def shell_word(text: str) -> str:
    """Return text as it can be pasted into a shell."""
    import shlex

    return shlex.quote(text)


def silence_stdout() -> None:
    """Send what is still buffered nowhere, so that the interpreter's exit does not stumble."""
    if sys.stdout is None:
        return
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


class JsonPrinter:
    """Events as JSON lines on stdout, one object a line."""

    def event(self, event: Event) -> None:
        """Write the event; a failure also shows on stderr, as every error does."""
        json_line(event_to_wire(event))
        if isinstance(event, Failure):
            error(event.message)


class TextPrinter:
    """The answer's text on stdout, piece by piece; warnings and switches on stderr."""

    def __init__(self) -> None:
        self._last = ""

    def event(self, event: Event) -> None:
        """Write a piece of text, a warning, or the newline that the answer lacks."""
        if isinstance(event, Token):
            write_out(event.text)
            self._last = event.text[-1:] or self._last
        elif isinstance(event, Warn):
            warning(event.message)
        elif isinstance(event, Switch):
            warning(f"the answer goes on at the {event.target} route: {event.reason}")
        else:
            failed = isinstance(event, Failure)
            if self._last != "\n" and (self._last or not failed):
                write_out("\n")
            self._last = ""
            if isinstance(event, Failure):
                error(event.message)


def printer(*, as_json: bool) -> Printer:
    """Return the printer that `--json` asks for."""
    return JsonPrinter() if as_json else TextPrinter()


def _safe(text: str, stream: TextIO) -> str:
    if stream.isatty():
        text = text.translate(_CONTROLS)
    encoding = stream.encoding or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)


def _one_line(text: str) -> str:
    return " ".join(text.split())
