"""Ends of an answer that did not come: the error that a caller gets, and how a stream hands it out.

A stream that is open when the program ends is closed before Python takes apart what that needs: the worker
is told, and the record written, as where its reader closes it.
"""

from __future__ import annotations

import atexit
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from edgellm.core import Failure
from edgellm.errors import EdgeLLMError, NoRoute

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from edgellm.core import Event
    from edgellm.policy.route import Decision
    from edgellm.runtime.supervising.turn import Turn

_OPEN: Final[WeakSet[Generator[Event, None, None]]] = WeakSet()


def end_error(turn: Turn, decision: Decision) -> EdgeLLMError:
    """Return what the caller gets when no route is left: the first failure, and the last with it."""
    first, last = turn.first_failure, turn.failure
    if first is None or last is None:
        return NoRoute(
            "no route may be taken: " + "; ".join(decision.reasons),
            reasons=decision.reasons,
            hint=decision.remedy,
        )
    if last is not first:
        first.error.__cause__ = last.error
    return first.error


def with_failure(events: Iterator[Event]) -> Iterator[Event]:
    """Let an error be the last event of a stream, and the end of the program an end of it."""
    stream = _with_failure(events)
    _OPEN.add(stream)
    return stream


def _with_failure(events: Iterator[Event]) -> Generator[Event, None, None]:
    try:
        yield from events
    except EdgeLLMError as err:
        yield Failure(err.code, str(err), err.exit_code)


@atexit.register
def _close_all() -> None:
    for stream in list(_OPEN):
        with suppress(ValueError, EdgeLLMError):  # a thread is inside; it cannot be recorded
            stream.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_OPEN.clear)  # they are the parent's
