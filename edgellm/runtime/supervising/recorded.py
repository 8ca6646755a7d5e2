"""Recorded: the session in this process (`isolation="none"`), each of whose answers is written down as well.

There is one route, and no policy to ask: where its engine ends, the program ends, and no other answers.
"""

from __future__ import annotations

import dataclasses
from contextlib import closing
from typing import TYPE_CHECKING

from edgellm.closing import Closing
from edgellm.config import allowed_mode
from edgellm.core import Done, Token
from edgellm.errors import EngineFailed
from edgellm.paths import home_dir
from edgellm.policy.route import Decision
from edgellm.runtime.supervising.ending import with_failure
from edgellm.runtime.supervising.recording import Recorder
from edgellm.runtime.supervising.turn import Turn

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from edgellm.core import Event, Message, Request, SnapshotUse, Tools
    from edgellm.runtime.local import LocalSession
    from edgellm.runtime.session import SessionFacts, SessionOptions, Step

_HERE = Decision("local", "start", "the engine runs in this process")


class Recorded(Closing):
    """A `Session` over one in this process.

    Args:
        session: answers.
        options: the user's.
    """

    def __init__(self, session: LocalSession, options: SessionOptions) -> None:
        self._session = session
        self.model = session.model
        options = dataclasses.replace(options, mode=allowed_mode(options.mode))
        self._recorder = Recorder(options, session.model.name, None, home_dir())

    def facts(self) -> SessionFacts:
        """Return the resolved settings."""
        return self._session.facts()

    def stream(self, request: Request) -> Iterator[Event]:
        """Answer a request piece by piece; `cancel` counts from this call on."""
        return with_failure(self._answer(request))

    def generate(self, request: Request) -> Done:
        """Answer a request whole."""
        for event in self._answer(request):
            if isinstance(event, Done):
                return event
        raise EngineFailed("the answer ended without a result")

    def _answer(self, request: Request) -> Generator[Event, None, None]:
        turn = Turn.begin(request)
        turn.route, turn.decision = "local", _HERE
        sampling = dataclasses.replace(request.sampling, seed=turn.seed)
        steps = self._session.steps(dataclasses.replace(request, sampling=sampling))
        return self._recorded(turn, steps)

    def _recorded(
        self, turn: Turn, steps: Generator[Step, None, None]
    ) -> Generator[Event, None, None]:
        with self._recorder.recording(turn), closing(steps):
            for step in steps:
                yield from turn.told()
                turn.journal.extend(step.ids)
                if isinstance(step.event, Done):
                    done = self._recorder.finished(turn, step.event)
                    yield from turn.told()
                    yield done
                elif isinstance(step.event, Token):
                    yield turn.token(step.event.text)
                elif step.event is not None:
                    yield step.event

    def warm(self, messages: Sequence[Message], tools: Tools = ()) -> SnapshotUse:
        """Read the prefix of a conversation and wait until the disk has it; see `Session.warm`."""
        return self._session.warm(messages, tools)

    def cancel(self) -> None:
        """End the answer asked for last; callable from any thread and from a signal handler."""
        self._session.cancel()

    def close(self) -> None:
        """Cancel what is running, wait for snapshots at most two seconds, then free the model."""
        self._session.close()
