"""Supervisor: the session whose engine runs in a worker, and which outlives it.

One answer is a loop: decide on a route, tell of it, take it; where it fails, decide again. Each failure
is counted against its route, so that the loop ends.
"""

from __future__ import annotations

import logging
import sys
import threading
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Final

from edgellm.closing import Closing
from edgellm.core import Done, Message, Request, Warn
from edgellm.errors import Cancelled, EdgeLLMError, EngineFailed, PromptTooLong, UsageError
from edgellm.runtime.supervising.ending import end_error, with_failure
from edgellm.runtime.supervising.here import Here
from edgellm.runtime.supervising.turn import RouteFailed, Turn
from edgellm.runtime.worker.ending import WorkerEnded

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from edgellm.core import Event, ModelInfo, SnapshotUse, Tools
    from edgellm.policy.route import Decision
    from edgellm.runtime.session import SessionFacts, SessionOptions
    from edgellm.runtime.supervising.choosing import Chooser
    from edgellm.runtime.supervising.place import Place
    from edgellm.runtime.supervising.recording import Recorder
    from edgellm.runtime.supervising.there import There

_LOG: Final = logging.getLogger(__name__)
_OPENING: Final = Request((Message("user", "."),))  # stands for any: nobody sends it


class Supervisor(Closing):
    """A `Session` over a worker and, where the policy allows it, an endpoint.

    Args:
        model: what the file says of itself.
        options: the user's.
        place: the model on this machine.
        chooser: asks the policy.
        recorder: writes down what was done.
        there: the endpoint, or None.
    """

    def __init__(
        self,
        model: ModelInfo,
        options: SessionOptions,
        place: Place,
        chooser: Chooser,
        recorder: Recorder,
        there: There | None = None,
    ) -> None:
        self.model = model
        self._place = place
        self._chooser = chooser
        self._recorder = recorder
        self._there = there
        self._here = Here(place, chooser.may_leave, options.deadline_s)
        self._opening: RouteFailed | None = None
        self._notes: list[str] = []
        self._turn: Turn | None = None
        self._closed = False
        self._n_cancels = 0
        self._claiming = threading.Lock()

    def open(self) -> None:
        """Load the model, so that the first request need not wait for it.

        Where it cannot be loaded and an endpoint may be asked, the session is open all the same.

        Raises:
            EdgeLLMError: it cannot be loaded, and no other route may be taken.
        """
        turn = Turn(_OPENING)
        decision = self._chooser.decide(turn, None)
        while decision.route == "local":
            self._notes += [e.message for e in self._go(turn, decision) if isinstance(e, Warn)]
            turn.n_local += 1
            try:
                worker = self._place.ready(lambda: False)
            except RouteFailed as failed:
                self._failed(turn, failed)
                decision = self._chooser.decide(turn, failed)
            else:
                self.model = self.model if worker is None else worker.model
                return
        if decision.route == "none":
            for event in self._chooser.explained(turn, decision):
                if isinstance(event, Warn):
                    _LOG.warning(event.message)  # nobody reads events yet
            raise end_error(turn, decision)
        self._opening = turn.failure

    def note(self, text: str) -> None:
        """Say something with the first answer."""
        self._notes.append(text)

    def facts(self) -> SessionFacts:
        """Return the resolved settings."""
        return self._place.facts()

    def stream(self, request: Request) -> Iterator[Event]:
        """Answer a request piece by piece; `cancel` counts from this call on."""
        return with_failure(self._answer(request, self._n_cancels))

    def generate(self, request: Request) -> Done:
        """Answer a request whole."""
        for event in self._answer(request, self._n_cancels):
            if isinstance(event, Done):
                return event
        raise EngineFailed("the answer ended without a result")

    def _answer(self, request: Request, n_cancels: int) -> Generator[Event, None, None]:
        turn = Turn.begin(request)
        with (
            self._one_at_a_time(turn, n_cancels),
            self._recorder.recording(turn),
            closing(self._events(turn)) as events,
        ):
            for event in events:
                if not isinstance(event, Done):
                    yield event
                    continue
                done = self._recorder.finished(turn, event)
                yield from turn.told()
                yield done

    def _events(self, turn: Turn) -> Generator[Event, None, None]:
        """Take one route after the other until one brings the answer to its end."""
        notes, self._notes = self._notes, []
        for note in notes:
            turn.warn_once(note)
        turn.failure = turn.first_failure = self._opening
        self._opening = None
        decision = self._chooser.decide(turn, turn.failure)
        while decision.route != "none":
            yield from self._go(turn, decision)
            try:
                yield from self._route(turn, decision)
            except RouteFailed as failed:
                self._failed(turn, failed)
                decision = self._chooser.decide(turn, failed)
            else:
                return
        yield from turn.told()
        yield from self._chooser.explained(turn, decision)
        raise end_error(turn, decision)

    def _go(self, turn: Turn, decision: Decision) -> list[Event]:
        """Turn to a route, one rung lower where memory ran out, and say so."""
        failure, what = turn.failure, ""
        if failure is not None and decision.route == "local":
            rung = self._place.lower(failure, turn.needed_tokens)
            if rung is not None:
                what = rung.reason
                turn.degraded |= rung.changes_numerics
        return turn.go(decision, what)

    def _route(self, turn: Turn, decision: Decision) -> Iterator[Event]:
        if decision.route == "local":
            return self._here.answer(turn, warms_up="warm_up" in decision.obligations)
        if self._there is None:
            raise EngineFailed("an endpoint was chosen, and there is none")
        return self._there.answer(turn, decision)

    def _failed(self, turn: Turn, failed: RouteFailed) -> None:
        turn.failure, turn.first_failure = failed, turn.first_failure or failed
        self._recorder.failed(failed)

    def warm(self, messages: Sequence[Message], tools: Tools = ()) -> SnapshotUse:
        """Read the prefix of a conversation and wait until the disk has it; see `Session.warm`."""
        turn = Turn(Request(tuple(messages) or _OPENING.messages, tools=tools))
        with self._one_at_a_time(turn, self._n_cancels):
            try:
                return self._warm(turn, messages, tools)
            except RouteFailed as failed:
                self._failed(turn, failed)
            decision = self._chooser.decide_here(turn, turn.failure)
            if decision.route != "local":
                raise end_error(turn, decision)
            self._go(turn, decision)
            try:
                return self._warm(turn, messages, tools)
            except RouteFailed as failed:
                self._failed(turn, failed)
                raise end_error(turn, decision) from failed

    def _warm(self, turn: Turn, messages: Sequence[Message], tools: Tools) -> SnapshotUse:
        turn.n_local += 1
        worker = self._place.ready(lambda: turn.is_cancelled)
        if worker is None:
            raise Cancelled("reading was stopped before the model was loaded")
        try:
            return worker.warm(messages, tools)
        except WorkerEnded as ended:
            death = self._place.death(ended.ending)
            if turn.is_cancelled:
                raise Cancelled("reading was stopped") from ended
            raise death from ended
        except EdgeLLMError as err:
            if isinstance(err, PromptTooLong) and self._place.grow(0):
                return self._warm(turn, messages, tools)
            raise self._place.failure(err, worker.phase) from err

    @contextmanager
    def _one_at_a_time(self, turn: Turn, n_cancels: int) -> Iterator[None]:
        """Let one answer be made; a cancel that came before it began ends it at once."""
        with self._claiming:
            if self._closed:
                raise EngineFailed("the session is closed")
            if sys.is_finalizing():  # what hears a worker runs no more
                raise EngineFailed("the program is ending")
            if self._turn is not None:
                raise UsageError(
                    "this session is making another answer",
                    hint="read that one to its end or close its iterator first",
                )
            self._turn = turn
            turn.is_cancelled = self._n_cancels != n_cancels
        try:
            yield
        finally:
            self._turn = None
            if self._closed:  # while a worker was on its way, which nobody would end
                self._place.end()

    def cancel(self) -> None:
        """End the answer asked for last; callable from any thread and from a signal handler."""
        self._n_cancels += 1
        turn, worker = self._turn, self._place.worker
        if turn is not None:
            turn.is_cancelled = True
            if worker is not None:
                worker.cancel()

    def close(self) -> None:
        """Cancel what is running, wait for snapshots at most two seconds, then free the model."""
        self._closed = True
        self.cancel()
        self._place.end()
