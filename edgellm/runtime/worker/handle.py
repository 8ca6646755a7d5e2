"""Worker: a model in a process of its own, as the program holds it.

Whatever becomes of that process, its holder gets an event, an error of ours or `WorkerEnded`, and
never waits for it in vain: it is killed where it does not hear a cancel or a close.
"""

from __future__ import annotations

import os
import secrets
import weakref
from contextlib import ExitStack
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Final

from edgellm.closing import Closing
from edgellm.core import Token, event_from_wire
from edgellm.errors import EngineFailed, UsageError
from edgellm.runtime.session import Step
from edgellm.runtime.worker import opening
from edgellm.runtime.worker.calls import CANCEL_S, POLL_S, Calls
from edgellm.runtime.worker.channel import Channel
from edgellm.runtime.worker.ending import Ending, WorkerEnded
from edgellm.runtime.worker.frames import TokenMade
from edgellm.runtime.worker.messages import Close, Opened, Raised, StepMade, Stream, Warm, Warmed
from edgellm.runtime.worker.raising import error_from_wire
from edgellm.runtime.worker.shown import Shown
from edgellm.runtime.worker.spawning import SPAWNER

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from pathlib import Path

    from edgellm.core import Event, Message, ModelInfo, Request, SnapshotUse, Tools
    from edgellm.routing import Phase
    from edgellm.runtime.session import SessionFacts, SessionOptions

CLOSE_S: Final = 4.0
"""How long a worker may take to close: two seconds belong to snapshots, as in a session."""

_SEED_BITS: Final = 32


class Worker(Closing):
    """A loaded model in another process. One call at a time; `cancel`, `kill`, `close` from any thread.

    Attributes:
        model: what its file says of itself.
        pid: of the process.
        enforced: what keeps the process apart, of `hardening.MEASURES`.
        load_ms: from the wish for it to the loaded model, the start of the process included.
        seed: of the last answer's random numbers.
    """

    def __init__(self, channel: Channel, opened: Opened, load_ms: float) -> None:
        self._channel = channel
        self._calls = Calls(channel)
        self._facts = opened.facts
        self.model: ModelInfo = opened.model
        self.pid = channel.pid
        self.enforced = opened.enforced
        self.load_ms = load_ms
        self.seed: int | None = None
        weakref.finalize(self, _put_down, channel, os.getpid())

    @classmethod
    def start(
        cls,
        path: Path,
        options: SessionOptions,
        *,
        listener: Callable[[str], None] | None = None,
        on_spawn: Callable[[int], None] | None = None,
    ) -> Worker:
        """Start a process and load a model in it.

        Args:
            path: the model's file.
            options: of the session; what concerns routes is not the worker's.
            listener: called in a thread with each line that the process and its libraries write to
                stderr: errors of the engine, and where a crash happened. Never text of a prompt.
            on_spawn: called with the process's id as soon as there is one.

        Raises:
            EdgeLLMError: as `runtime.local.open_session`, and `EngineUnavailable` where no process
                can be started.
            WorkerEnded: the process ended before the model was loaded.
        """
        started_s = perf_counter()
        orders = opening.orders_for(path, options)
        channel = Channel(SPAWNER.spawn(), listener)
        with ExitStack() as failed:
            failed.callback(channel.kill, "kill")
            if on_spawn is not None:
                on_spawn(channel.pid)
            channel.tier = orders.serve(channel.put)
            for frame in orders.frames:
                channel.put(frame)
            opened = _opened(channel)
            failed.pop_all()
        return cls(channel, opened, (perf_counter() - started_s) * 1000)

    @property
    def phase(self) -> Phase:
        """Return what the worker is doing, as it last said; `snapshot` between two answers."""
        return self._channel.phase

    @property
    def heard_s(self) -> float:
        """Return when something came from the worker last, by `time.monotonic`."""
        return self._channel.heard_s

    @property
    def ending(self) -> Ending | None:
        """Return how the process ended, or None while it runs."""
        return self._channel.ending

    def facts(self) -> SessionFacts:
        """Return the resolved settings, as of the end of the last call."""
        return replace(self._facts, load_ms=self.load_ms)

    def stream(
        self,
        request: Request,
        *,
        journal: Sequence[int] = (),
        seed: int | None = None,
        clock_s: float | None = None,
    ) -> Generator[Step, None, None]:
        """Answer a request step by step; the last step's event is a `Done`.

        A step without an event is a sign of life. Closing the iterator stops the answer.

        Args:
            request: the request; its own seed is used where `seed` is None, and one is drawn where
                that is None as well.
            journal: the `ids` of the steps of an answer that broke off, in order. Their text is not
                given again; what follows is what would have followed.
            seed: of the answer's random numbers; that of the answer that broke off.
            clock_s: the time that chat templates see, in seconds since 1970; likewise.

        Raises:
            EdgeLLMError: the worker's own.
            WorkerEnded: its process ended.
        """
        seed = request.sampling.seed if seed is None else seed
        self.seed = secrets.randbits(_SEED_BITS) if seed is None else seed
        request = replace(request, sampling=replace(request.sampling, seed=self.seed))
        return self._answered(request, tuple(journal), clock_s, self._calls.n_cancels)

    def _answered(
        self, request: Request, journal: tuple[int, ...], clock_s: float | None, n_cancels: int
    ) -> Generator[Step, None, None]:
        calls = self._calls
        with calls.one() as call:
            calls.begin(Stream(call, request, journal, clock_s))
            if calls.n_cancels != n_cancels:  # it came before the first step was asked for
                calls.send_cancel(call)
            answer = Shown(journal, self.load_ms)
            for message in calls.messages(call):
                for step in self._steps(message):
                    shown = answer.taken(step, cancelled=calls.n_cancels != n_cancels)
                    if shown is not None:
                        yield shown
            if not answer.is_whole:
                raise EngineFailed("the worker ended an answer without a result")

    def warm(self, messages: Sequence[Message], tools: Tools = ()) -> SnapshotUse:
        """Read what stays of a conversation, and wait until the disk has it; see `Session.warm`.

        Raises:
            EdgeLLMError: the worker's own, also `Cancelled`.
            WorkerEnded: its process ended.
        """
        with self._calls.one() as call:
            self._calls.begin(Warm(call, tuple(messages), tuple(tools)))
            for message in self._calls.messages(call):
                if isinstance(message, Warmed):
                    self._facts = message.facts
                    return message.use
        raise EngineFailed("the warming ended without a result")

    def cancel(self) -> None:
        """End the call made last, begun or not; from any thread and from a signal handler."""
        self._calls.cancel()

    def close(self) -> None:
        """Cancel what is running, let snapshots be written for two seconds, and end the process."""
        if not self._calls.is_owner:
            return
        self._calls.is_closed = True
        with ExitStack() as late:  # or interrupted
            late.callback(self._channel.kill, "close")
            self.cancel()
            self._channel.expect_close()
            self._channel.send(Close())
            if self._channel.ended.wait(CLOSE_S):
                late.pop_all()
        self._channel.ended.wait(CANCEL_S)

    def kill(self) -> None:
        """End the process at once; who waits for it gets `WorkerEnded`, with `asked` as `kill`."""
        if self._calls.is_owner:
            self._channel.kill("kill")

    def _steps(self, message: StepMade | TokenMade | Warmed) -> Iterator[Step]:
        """Give the steps of a message; what is none ends the worker."""
        if isinstance(message, TokenMade):
            token = None if message.seq is None else Token(message.seq, message.text)
            yield Step(token, (message.token,))
            return
        if not isinstance(message, StepMade):
            raise EngineFailed(f"the worker answered with {type(message).__name__}")
        try:
            events: list[Event | None] = [event_from_wire(event) for event in message.events]
        except UsageError:
            self._channel.kill("damage")
            return
        self._facts = message.facts or self._facts
        ids = message.ids
        for event in events or [None]:
            yield Step(event, ids, message.phase, message.prompt_tokens)
            ids = ()


def _opened(channel: Channel) -> Opened:
    """Wait for a model to be loaded."""
    while True:
        message = channel.next(POLL_S)
        if isinstance(message, Opened):
            return message
        if isinstance(message, Raised):
            raise error_from_wire(message.error)
        if isinstance(message, Ending):
            raise WorkerEnded(message)


def _put_down(channel: Channel, owner: int) -> None:
    """End a process that nobody holds any more; a forked child holds none."""
    if os.getpid() == owner and not channel.ended.is_set():
        channel.kill("kill")
