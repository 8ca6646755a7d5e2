"""Ends of an answer that did not come: the error that a caller gets, and how a stream hands it out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgellm.core import Failure
from edgellm.errors import EdgeLLMError, NoRoute

if TYPE_CHECKING:
    from collections.abc import Iterator

    from edgellm.core import Event
    from edgellm.policy.route import Decision
    from edgellm.runtime.supervising.turn import Turn


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
    """Let an error be the last event of a stream."""
    try:
        yield from events
    except EdgeLLMError as err:
        yield Failure(err.code, str(err), err.exit_code)
