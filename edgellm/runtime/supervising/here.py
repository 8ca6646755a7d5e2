"""Here: an answer, or the rest of one, by the worker on this machine.

Each piece is in the turn's journal before it is handed out. Whatever ends the worker becomes a failed
route, except where the caller wanted the answer to end.
"""

from __future__ import annotations

import dataclasses
from contextlib import closing
from time import perf_counter
from typing import TYPE_CHECKING, Final

from edgellm.core import Done, Message, Request, Sampling, Token, Warn
from edgellm.errors import EdgeLLMError, EngineFailed, PromptTooLong
from edgellm.routing import Trigger
from edgellm.runtime.supervising.turn import RouteFailed
from edgellm.runtime.supervising.watching import Watch
from edgellm.runtime.worker.ending import WorkerEnded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from edgellm.core import Event
    from edgellm.policy.progress import Pace
    from edgellm.routing import Phase
    from edgellm.runtime.session import Step
    from edgellm.runtime.supervising.place import Place
    from edgellm.runtime.supervising.turn import Turn
    from edgellm.runtime.worker.handle import Worker

_WARM_UP: Final = Request(
    (Message("user", "Hello"),), max_tokens=1, sampling=Sampling(temperature=0)
)
_BLIND: Final = (
    "no thread can be started to look whether the answer gets on: "
    "a stall or a deadline passes unseen"
)
_SLOW: Final = (
    "the answer comes far slower than it did, or memory is under pressure: "
    "close other programs, or use a smaller model or --ctx"
)


class _Short(Exception):  # it never leaves this module
    """The context that a rung left is too small; 0 tokens needed stand for a number not known."""

    def __init__(self, needed_tokens: int) -> None:
        super().__init__(needed_tokens)
        self.needed_tokens = needed_tokens


class Here:
    """Answers on this machine.

    Args:
        place: where the worker is.
        may_leave: asked whether an answer that is late may be made elsewhere; called in a thread of
            its own.
        deadline_s: to the first token, or None.
    """

    def __init__(
        self,
        place: Place,
        may_leave: Callable[[Turn, Trigger], bool],
        deadline_s: float | None = None,
    ) -> None:
        self._place = place
        self._may_leave = may_leave
        self._deadline_s = deadline_s
        self._said: dict[str, int] = {}
        self._answered_pid = 0  # of the worker whose memory holds an answer

    def answer(self, turn: Turn, *, warms_up: bool = False) -> Iterator[Event]:
        """Make an answer, or go on with one; the last event is `Done`.

        Args:
            turn: what was asked, and what there is of the answer.
            warms_up: let the model decode something harmless first.

        Raises:
            RouteFailed: it broke off, and something may follow from that.
            EdgeLLMError: it failed for good.
        """
        turn.n_local += 1
        turn.leaving = None
        yield from self._with_room(turn, warms_up=warms_up)

    def _with_room(self, turn: Turn, *, warms_up: bool) -> Iterator[Event]:
        """Make an answer; where a rung made the context too small for it, it grows before."""
        try:
            yield from self._made(turn, warms_up=warms_up)
        except _Short as short:
            needed_tokens = short.needed_tokens
        else:
            return
        self._place.grow(needed_tokens)
        yield from self._with_room(turn, warms_up=warms_up)

    def _made(self, turn: Turn, *, warms_up: bool) -> Iterator[Event]:
        """Make an answer with the worker that there is, or a new one."""
        worker = self._place.ready(self._gives_up(turn))
        if worker is None:
            if not turn.is_cancelled:
                raise _late(turn, "load")
            yield Done(turn.text, "cancelled", seed=turn.seed)
            return
        if not turn.journal:
            has_answers = any(message.role == "assistant" for message in turn.request.messages)
            turn.went_on = has_answers and worker.pid == self._answered_pid
        self._place.inquest.begin(worker.pid)
        with self._watch(turn, worker) as watch:
            try:
                if warms_up:
                    for _ in worker.stream(_WARM_UP, seed=0):
                        pass
                yield from self._steps(turn, worker, watch)
            except WorkerEnded as ended:
                death = self._place.death(ended.ending, available_bytes=watch.available_bytes)
                if not turn.is_cancelled:
                    # One that was told to leave and did not hear it was killed for that, and did not fail.
                    left = turn.leaving is not None and ended.ending.asked
                    raise (_late(turn, ended.ending.phase) if left else death) from ended
                yield Done(turn.text, "cancelled", seed=turn.seed)
            except EdgeLLMError as err:
                if isinstance(err, PromptTooLong) and self._place.descent.is_short(0):
                    raise _Short(0) from err
                raise self._place.failure(err, worker.phase) from err

    def _steps(self, turn: Turn, worker: Worker, watch: Watch) -> Iterator[Event]:
        steps = worker.stream(
            turn.request, journal=tuple(turn.journal), seed=turn.seed, clock_s=turn.clock_s
        )
        if turn.is_cancelled:
            worker.cancel()  # it came while the worker was started
        with closing(steps):  # which ends the answer in the worker, where it has not ended
            while True:
                watch.wait()
                step = next(steps, None)
                if step is None:
                    raise EngineFailed("the worker's answer ended without a result")
                watch.came(len(step.ids))
                self._note_prompt(turn, step)
                yield from turn.told()
                event = self._event(turn, step, worker.pid)
                if event is not None:
                    yield event
                if isinstance(event, Done):
                    return

    def _note_prompt(self, turn: Turn, step: Step) -> None:
        """Remember how long the prompt is, and stop where its answer would be cut short for that."""
        if step.prompt_tokens > 0:
            turn.n_prompt_tokens = step.prompt_tokens
            if self._place.descent.is_short(turn.needed_tokens):
                raise _Short(turn.needed_tokens)

    def _event(self, turn: Turn, step: Step, pid: int) -> Event | None:
        """Return what the caller gets of one step; it is written down first."""
        turn.journal.extend(step.ids)
        event = step.event
        if isinstance(event, Token):
            return turn.token(event.text)
        if isinstance(event, Done):
            is_late = turn.leaving is not None and event.finish_reason == "cancelled"
            if is_late and not turn.is_cancelled:
                raise _late(turn, step.phase)
            turn.usage = event.usage
            self._answered_pid = pid
            turn.degraded |= event.degraded
            return dataclasses.replace(event, text=turn.text)
        if isinstance(event, Warn) and self._said.setdefault(event.message, pid) != pid:
            return None  # a worker started anew says again what the one before opened with
        return event

    def _watch(self, turn: Turn, worker: Worker) -> Watch:
        """Return a watch over one answer; its thread touches nothing of the answer's text."""

        def leave(trigger: Trigger) -> bool:
            if turn.is_cancelled or turn.leaving is not None or not self._may_leave(turn, trigger):
                return False
            turn.leaving = trigger
            worker.cancel()
            return True

        def warn(text: str) -> None:
            if self._said.setdefault(text, worker.pid):  # once in this session
                self._said[text] = 0
                turn.warnings.append(text)

        def on_pace(word: Pace) -> None:
            if word == "stalled":
                worker.kill()
            elif not leave(Trigger.PRESSURE):
                warn(_SLOW)

        def on_late() -> None:
            leave(Trigger.DEADLINE)

        left_s = self._left_s(turn)
        return Watch(on_pace, on_late, left_s, on_blind=lambda: warn(_BLIND))

    def _left_s(self, turn: Turn) -> float | None:
        """Return the seconds to the deadline, None where there is none or it was met."""
        if self._deadline_s is None or turn.first_s is not None:
            return None
        spent_s = perf_counter() - turn.started_s  # from the request, loading included
        return max(0.0, self._deadline_s - spent_s)

    def _gives_up(self, turn: Turn) -> Callable[[], bool]:
        """Return whether a worker on its way is waited for no more; the books are asked once."""
        has_asked = False

        def gives_up() -> bool:
            nonlocal has_asked
            if self._left_s(turn) == 0 and not has_asked:
                has_asked = True
                if self._may_leave(turn, Trigger.DEADLINE):
                    turn.leaving = Trigger.DEADLINE
            return turn.is_cancelled or turn.leaving is not None

        return gives_up


def _late(turn: Turn, phase: Phase) -> RouteFailed:
    """Return the failed route of an answer that leaves this machine though it works."""
    error = EngineFailed("the answer was too late, or too slow, on this machine")
    return RouteFailed(error, turn.leaving or Trigger.DEADLINE, phase)
