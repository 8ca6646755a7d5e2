"""What reaches the terminal: every line that the command line prints goes through here.

Results go to stdout and all else to stderr. No control character of a model, a file or a path
reaches a terminal or stderr, so that none can move the cursor, rename the window or turn the
reading order; an answer in a pipe or a file, and JSON, is what the model wrote.

An error that ends a command has its hint in a paragraph of its own. What is one text by nature, an
event of a stream and a warning, has the hint behind a semicolon: an event carries no more.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from typing import TYPE_CHECKING, Any, Final, Protocol

from edgellm.cli import streams
from edgellm.core import Failure, Switch, Token, Warn, event_to_wire

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from edgellm.core import Event
    from edgellm.errors import EdgeLLMError

_LINE_END: Final = re.compile(r"\s*[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]\s*")
_HALF_PAIR: Final = re.compile(
    r"\\ud[89ab][0-9a-f]{2}(?!\\ud[c-f])|(?<!\\ud[89ab][0-9a-f]{2})\\ud[c-f]"
)


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
        if streams.is_terminal(sys.stdout):
            text = streams.without_controls(text)
        sys.stdout.write(streams.encodable(streams.as_text(text), sys.stdout))
        sys.stdout.flush()
    except OSError as err:
        silence_stdout()
        if streams.is_closed_pipe(err):
            raise StdoutClosed from err
        raise OSError(err.errno, err.strerror, "stdout") from err


def write_err(text: str) -> None:
    """Write to stderr at once, without control characters; a closed one is no reason to fail."""
    write_err_raw(streams.without_controls(text))


def write_err_raw(text: str) -> None:
    """Write our own control characters to stderr, such as the return of a progress line."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(streams.encodable(streams.as_text(text), sys.stderr))
            sys.stderr.flush()


def json_line(value: Mapping[str, Any]) -> None:
    """Write one JSON object as a line; ASCII, as U+2028 would end a line for some readers.

    Bytes of a file's name that are not UTF-8 are shown as elsewhere: many readers of JSON refuse
    half a surrogate pair.
    """
    line = json.dumps(value, ensure_ascii=True)
    if _HALF_PAIR.search(line):
        line = json.dumps(_with_text(value), ensure_ascii=True)
    write_out(line + "\n")


def table(rows: Sequence[Sequence[str]]) -> None:
    """Write rows of text in columns wide enough for each; the first row is the heading."""
    rows = [[streams.one_line(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        write_out("  ".join(cells).rstrip() + "\n")


def facts(pairs: Sequence[tuple[str, str]], *, to_stderr: bool = False) -> None:
    """Write `label: value` lines, the values in one column; a value is one line, whatever it holds."""
    width = max(len(label) for label, _ in pairs) + 1
    lines = "".join(f"{label + ':':<{width}} {streams.one_line(value)}\n" for label, value in pairs)
    (write_err if to_stderr else write_out)(lines)


def finding(path: Path, text: str) -> None:
    """Write `PATH: text` as one line on stdout, whatever the file is called."""
    write_out(f"{streams.one_line(str(path))}: {streams.one_line(text)}\n")


def warning(message: str) -> None:
    """Write a warning as one line on stderr."""
    labelled("warning", message)


def labelled(label: str, message: str) -> None:
    """Write `label: message` as one line on stderr."""
    write_err(f"{label}: {_one_line(message)}\n")


def error(message: str, hint: str = "") -> None:
    """Write an error as one line on stderr and, after a blank one, what to do about it."""
    labelled("error", message)
    if hint:
        write_err(f"\nhint: {_one_line(hint)}\n")


def report(err: EdgeLLMError, *, as_json: bool) -> None:
    """Write an error for people on stderr and, if asked, as the last JSON line on stdout.

    The error stays what went wrong even when stdout cannot be written: it was told on stderr.
    """
    message = str(err).removesuffix(f"; {err.hint}")
    if err.path:  # shown whole: a line end in a name is no line end of the message
        message = message.replace(err.path, streams.one_line(err.path))
    error(message, err.hint)
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
            self._switch(event)
        else:
            failed = isinstance(event, Failure)
            if self._last != "\n" and (self._last or not failed):
                write_out("\n")
            self._last = ""
            if isinstance(event, Failure):
                error(event.message)

    def _switch(self, event: Switch) -> None:
        """Say it on a line of its own, also where the answer stands in the middle of one."""
        begun = self._last not in ("", "\n")
        if event.discard_from_seq is not None and begun:
            write_out("\n")
            self._last = "\n"
        elif begun and streams.same_place(sys.stdout, sys.stderr):
            write_err("\n")
        labelled("switch", switch_text(event, begun=bool(self._last)))


def switch_text(event: Switch, *, begun: bool) -> str:
    """Return what a person is told of a change of route.

    Args:
        event: the change.
        begun: whether some of the answer was shown.
    """
    if event.target == "cloud":
        place = "at the endpoint"
    elif event.source == "cloud":
        place = "on this machine"
    else:
        place = "in a new process on this machine"
    if event.discard_from_seq is not None and begun:
        told = f"discard the text above, the answer begins anew {place}: {event.reason}"
    elif begun:
        told = f"the answer goes on {place}: {event.reason}"
    else:
        told = f"the answer is made {place}: {event.reason}"
    return f"{told}; it may differ from the undisturbed one" if event.degraded else told


def printer(*, as_json: bool) -> Printer:
    """Return the printer that `--json` asks for."""
    return JsonPrinter() if as_json else TextPrinter()


def _one_line(text: str) -> str:
    """Join lines of a message; a library may report in several."""
    return streams.one_line(_LINE_END.sub(" ", text).strip())


def _with_text(value: Any) -> Any:
    """Return a JSON value in which every string is text."""
    if isinstance(value, str):
        return streams.as_text(value)
    if isinstance(value, dict):
        return {streams.as_text(str(key)): _with_text(item) for key, item in value.items()}
    return [_with_text(item) for item in value] if isinstance(value, (list, tuple)) else value
