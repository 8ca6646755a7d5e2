"""An answer as its reader sees it, who may stop it where more of it is on the way already."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from edgellm.core import Done, Token

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgellm.runtime.session import Step


class Shown:
    """One answer, which ends where it was stopped.

    Its text is then what was given, as if it had been made just in time.

    Args:
        journal: the tokens it was gone on with.
        load_ms: how long loading took as it was seen here, for the end of the answer.

    Attributes:
        is_whole: whether its end was given.
    """

    def __init__(self, journal: Sequence[int], load_ms: float) -> None:
        self._n_tokens = len(journal)
        self._load_ms = load_ms
        self._n_dropped = 0
        self._n_dropped_characters = 0
        self.is_whole = False

    def taken(self, step: Step, *, cancelled: bool) -> Step | None:
        """Return the step as it is shown, None for one that came too late."""
        event = step.event
        if isinstance(event, Done):
            self.is_whole = True
            return replace(step, event=self._end(event))
        if cancelled and (step.ids or isinstance(event, Token)):
            self._n_dropped += 1
            self._n_dropped_characters += len(event.text) if isinstance(event, Token) else 0
            return None
        self._n_tokens += len(step.ids)
        return step

    def _end(self, done: Done) -> Done:
        done = replace(done, timings=replace(done.timings, load_ms=self._load_ms))
        if not self._n_dropped:
            return done
        n_shown = len(done.text) - self._n_dropped_characters
        usage = replace(done.usage, completion_tokens=self._n_tokens)
        return replace(done, text=done.text[:n_shown], finish_reason="cancelled", usage=usage)
