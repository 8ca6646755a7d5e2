"""One answer on the terminal: open the model, stream, and end early on Ctrl-C.

The first Ctrl-C asks the session to end the answer, so that what was printed is kept and the stream
closes in order; a second one breaks off at once.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Generator
from typing import TYPE_CHECKING

from edgellm.cli import render, streams
from edgellm.cli.interrupts import interrupts, orderly_end, raise_swallowed
from edgellm.cli.rewritten import RewrittenLine
from edgellm.core import Done, Failure, Token
from edgellm.errors import EngineFailed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from edgellm.cli.render import Printer
    from edgellm.core import Event, Request
    from edgellm.runtime.session import Session, SessionOptions


class Status:
    """A line on stderr that says what is being waited for; only on a terminal."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._on = not quiet and streams.is_terminal(sys.stderr)
        self._line = RewrittenLine(on=False if quiet else None)

    def show(self, text: str) -> None:
        """Replace the line by `text`; "" takes it away."""
        self._line.show(text)

    def note(self, text: str) -> None:
        """Write a line that stays."""
        if self._on:
            self.show("")
            render.write_err(f"{text}\n")


def open_model(path: Path, options: SessionOptions, status: Status) -> Session:
    """Open a model through the runtime, saying so while it takes time.

    Raises:
        EdgeLLMError: it cannot be opened.
    """
    from edgellm.runtime.opening import open_session

    raise_swallowed()
    status.show(f"loading {path.name}")
    try:
        if options.isolation == "worker":  # another process loads it, and this one may go at once
            with orderly_end():
                return open_session(path, options)
        # A KeyboardInterrupt inside a library's callback would be lost: a note is not.
        with interrupts(lambda: None) as asked:
            session = open_session(path, options)
    finally:
        status.show("")
    if asked.signal is not None:
        session.close()
        raise asked.error()
    return session


def stream_answer(
    session: Session, request: Request, printer: Printer, status: Status
) -> Done | Failure:
    """Show the events of one answer and return the last.

    Raises:
        EngineFailed: the stream ended without saying how.
        StdoutClosed: nobody reads the answer any more; the stream is closed.
        Terminated: SIGTERM or SIGHUP ended it; what there was of the answer is shown.
    """
    last: Event | None = None
    events = session.stream(request)
    try:
        with interrupts(session.cancel) as asked:
            status.show("reading the prompt")
            for event in events:
                status.show("")
                printer.event(event)
                last = event
    finally:
        status.show("")
        if isinstance(events, Generator):
            events.close()
    if asked.signal not in (None, signal.SIGINT):
        raise asked.error()
    if isinstance(last, (Done, Failure)):
        return last
    raise EngineFailed("the answer broke off without an end")


def note_cut(done: Done, request: Request, hint: str) -> None:
    """Warn when an answer ended because the context is full, which is no end of its own."""
    if done.finish_reason != "length":
        return
    if done.route == "cloud":  # whose context is not known here; without -n, so many are paid for
        if request.max_tokens is None:
            render.warning("the answer was cut by the endpoint; a larger -n may bring more")
    elif request.max_tokens is None or done.usage.completion_tokens < request.max_tokens:
        render.warning(f"the answer was cut: the context is full; {hint}")


class FirstToken:
    """A printer that notes when the first text came and passes everything on."""

    def __init__(self, inner: Printer, clock: Callable[[], float]) -> None:
        self._inner = inner
        self._clock = clock
        self.at_s: float | None = None

    def event(self, event: Event) -> None:
        """Show one event."""
        if self.at_s is None and isinstance(event, Token):
            self.at_s = self._clock()
        self._inner.event(event)
