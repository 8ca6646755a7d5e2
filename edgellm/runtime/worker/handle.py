"""Worker: a model in a process of its own, as the program holds it.

Whatever becomes of that process, its holder gets an event, an error of ours or `WorkerEnded`, and
never waits for it in vain: it is killed where it does not hear a cancel or a close.
"""

from __future__ import annotations

import os
import secrets
import sys
import threading
import weakref
from contextlib import contextmanager, suppress
from dataclasses import replace
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Final

from edgellm.core import Done, Token, event_from_wire
from edgellm.errors import EdgeLLMError, EngineFailed, UsageError
from edgellm.runtime.session import Step
from edgellm.runtime.worker import opening
from edgellm.runtime.worker.channel import Channel
from edgellm.runtime.worker.ending import Ending, WorkerEnded
from edgellm.runtime.worker.frames import FrameError
from edgellm.runtime.worker.messages import (
    Cancel,
    Close,
    Opened,
    Raised,
    StepMade,
    Stream,
    Warm,
    Warmed,
)
from edgellm.runtime.worker.raising import error_from_wire
from edgellm.runtime.worker.spawning import SPAWNER

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from pathlib import Path

    from edgellm.core import Event, Message, ModelInfo, Request, SnapshotUse, Tools
    from edgellm.routing import Phase
    from edgellm.runtime.session import SessionFacts, SessionOptions

CANCEL_S: Final = 2.0
"""How long a worker may take to end an answer that was cancelled."""

CLOSE_S: Final = 4.0
"""How long it may take to close: two seconds belong to snapshots, as in a session."""

_SEED_BITS: Final = 32
_POLL_S: Final = 0.1


class Worker:
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
        self._facts = opened.facts
        self._n_calls = 0
        self._call: int | None = None
        self._n_cancels = 0
        self._cancelled_s: float | None = None
        self._calling = threading.Lock()
        self._owner = os.getpid()
        self._closed = False
        self.model: ModelInfo = opened.model
        self.pid = channel.pid
        self.enforced = opened.enforced
        self.load_ms = load_ms
        self.seed: int | None = None
        weakref.finalize(self, _put_down, channel, self._owner)

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
        try:
            if on_spawn is not None:
                on_spawn(channel.pid)
            channel.tier = orders.serve(channel.put)
            for frame in orders.frames:
                channel.put(frame)
            opened = _opened(channel)
        except BaseException:
            channel.kill("kill")
            raise
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
        return self._answered(request, tuple(journal), clock_s, self._n_cancels)

    def _answered(
        self, request: Request, journal: tuple[int, ...], clock_s: float | None, n_cancels: int
    ) -> Generator[Step, None, None]:
        with self._one_call() as call:
            self._begin(Stream(call, request, journal, clock_s))
            if self._n_cancels != n_cancels:  # it came before the first step was asked for
                self._send_cancel(call)
            answer = _Answer(journal)
            for message in self._messages(call):
                if not isinstance(message, StepMade):
                    raise EngineFailed(f"the worker answered with {type(message).__name__}")
                self._facts = message.facts or self._facts
                for step in self._steps(message):
                    shown = answer.taken(step, cancelled=self._n_cancels != n_cancels)
                    if shown is not None:
                        yield self._timed(shown)

    def warm(self, messages: Sequence[Message], tools: Tools = ()) -> SnapshotUse:
        """Read what stays of a conversation, and wait until the disk has it; see `Session.warm`.

        Raises:
            EdgeLLMError: the worker's own, also `Cancelled`.
            WorkerEnded: its process ended.
        """
        with self._one_call() as call:
            self._begin(Warm(call, tuple(messages), tuple(tools)))
            for message in self._messages(call):
                if isinstance(message, Warmed):
                    self._facts = message.facts
                    return message.use
        raise EngineFailed("the warming ended without a result")

    def cancel(self) -> None:
        """End the call made last, begun or not; from any thread and from a signal handler."""
        self._n_cancels += 1
        if (call := self._call) is not None:
            self._send_cancel(call)

    def close(self) -> None:
        """Cancel what is running, let snapshots be written for two seconds, and end the process."""
        if os.getpid() != self._owner:
            return
        self._closed = True
        try:
            self.cancel()
            self._channel.expect_close()
            self._channel.send(Close())
            if not self._channel.ended.wait(CLOSE_S):
                self._channel.kill("close")
        except BaseException:
            self._channel.kill("close")
            raise
        self._channel.ended.wait(CANCEL_S)

    def kill(self) -> None:
        """End the process at once; who waits for it gets `WorkerEnded`, with `asked` as `kill`."""
        if os.getpid() == self._owner:
            self._channel.kill("kill")

    @contextmanager
    def _one_call(self) -> Iterator[int]:
        """Number a call; whatever ends it early, the worker has ended it before the next."""
        if os.getpid() != self._owner:
            raise EngineFailed("the model was loaded before a fork", hint="load it in the child")
        if self._closed:
            raise EngineFailed("the session is closed")
        if not self._calling.acquire(blocking=False):
            raise UsageError(
                "this session is making another answer",
                hint="read that one to its end or close its iterator first",
            )
        try:
            self._n_calls += 1
            self._cancelled_s = None
            self._call = call = self._n_calls
            try:
                yield call
            finally:
                self._finish(call)
        finally:
            self._call = None
            self._calling.release()

    def _messages(self, call: int) -> Iterator[StepMade | Warmed]:
        """Give what comes for a call, to its end.

        Raises:
            EdgeLLMError: the worker's own.
            WorkerEnded: its process ended.
        """
        while self._call == call:
            message = self._channel.next(_POLL_S)
            if isinstance(message, Ending):
                self._call = None
                raise WorkerEnded(message)
            if isinstance(message, Raised) and message.call == call:
                self._call = None
                raise error_from_wire(message.error)
            if isinstance(message, (StepMade, Warmed)) and message.call == call:
                if message.facts is not None:  # the last one
                    self._call = None
                yield message
            self._lose_patience()

    def _lose_patience(self) -> None:
        """Kill a worker that does not hear a cancel."""
        if self._cancelled_s is not None and monotonic() - self._cancelled_s > CANCEL_S:
            self._channel.kill("cancel")

    def _finish(self, call: int) -> None:
        """See to it that the worker is done with a call, or with everything."""
        if self._call is None:
            return
        if sys.is_finalizing():  # what would hear the worker's answer runs no more
            self._channel.kill("kill")
            return
        self._send_cancel(call)
        with suppress(WorkerEnded, EdgeLLMError):
            for _ in self._messages(call):
                pass

    def _steps(self, message: StepMade) -> Iterator[Step]:
        """Give the steps of a message; what is none ends the worker."""
        try:
            events: list[Event | None] = [event_from_wire(event) for event in message.events]
        except UsageError:
            self._channel.kill("damage")
            return
        ids = message.ids
        for event in events or [None]:
            yield Step(event, ids, message.phase)
            ids = ()

    def _timed(self, step: Step) -> Step:
        """Let the end of an answer tell how long loading took as it was seen here."""
        if not isinstance(step.event, Done):
            return step
        timings = replace(step.event.timings, load_ms=self.load_ms)
        return replace(step, event=replace(step.event, timings=timings))

    def _send_cancel(self, call: int) -> None:
        if self._cancelled_s is None:
            self._cancelled_s = monotonic()
        self._channel.send(Cancel(call))

    def _begin(self, message: Stream | Warm) -> None:
        """Send what begins a call.

        Raises:
            UsageError: it is longer than a message may be; the worker knows nothing of the call.
        """
        self._channel.phase = "prefill"
        try:
            self._channel.send(message)
        except FrameError as err:
            self._call = None
            raise UsageError(f"the request cannot be sent to the worker: {err}") from err

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Answer:
    """One answer as its reader sees it, who may stop it where more of it is on the way already.

    Then it ends where it was stopped: the text is what was given, as if it had been made just in time.

    Args:
        journal: the tokens it was gone on with.
    """

    def __init__(self, journal: Sequence[int]) -> None:
        self._n_tokens = len(journal)
        self._n_dropped = 0
        self._n_dropped_characters = 0

    def taken(self, step: Step, *, cancelled: bool) -> Step | None:
        """Return the step as it is shown, None for one that came too late."""
        event = step.event
        if isinstance(event, Done):
            return replace(step, event=self._end(event)) if self._n_dropped else step
        if cancelled and (step.ids or isinstance(event, Token)):
            self._n_dropped += 1
            self._n_dropped_characters += len(event.text) if isinstance(event, Token) else 0
            return None
        self._n_tokens += len(step.ids)
        return step

    def _end(self, done: Done) -> Done:
        n_shown = len(done.text) - self._n_dropped_characters
        usage = replace(done.usage, completion_tokens=self._n_tokens)
        return replace(done, text=done.text[:n_shown], finish_reason="cancelled", usage=usage)


def _opened(channel: Channel) -> Opened:
    """Wait for a model to be loaded."""
    while True:
        message = channel.next()
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
