"""Calls: what is asked of a worker, one call at a time, each ended before the next is heard.

Nothing is waited for in vain: a worker that does not end a call that was given up is killed, and so is
one whose next call waits for that.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import contextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING, Final

from edgellm.errors import EdgeLLMError, EngineFailed, UsageError
from edgellm.runtime.worker.ending import Ending, WorkerEnded
from edgellm.runtime.worker.frames import FrameError, TokenMade
from edgellm.runtime.worker.messages import Cancel, Raised, StepMade, Warmed
from edgellm.runtime.worker.raising import error_from_wire
from edgellm.runtime.worker.threads import is_needed_here

if TYPE_CHECKING:
    from collections.abc import Iterator

    from edgellm.runtime.worker.channel import Channel
    from edgellm.runtime.worker.messages import Stream, Warm

CANCEL_S: Final = 2.0
"""How long a worker may take to end a call that was cancelled."""

POLL_S: Final = 0.1
_LOOK_S: Final = 1.0
"""How often is looked around where nothing was cancelled; not for long, as Windows hears Ctrl-C then."""


class Calls:
    """The calls of one worker.

    Args:
        channel: to it.

    Attributes:
        n_cancels: how often `cancel` was called.
        is_closed: whether there will be no more calls.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._owner = os.getpid()
        self._calling = threading.Lock()
        self._n_calls = 0
        self._call: int | None = None  # being made
        self._given_up = 0  # whose end nobody waited for
        self._cancelled = (-1, 0.0)  # which call last, and when
        self.n_cancels = 0
        self.is_closed = False

    @property
    def is_owner(self) -> bool:
        """Return whether this process started the worker; one that was forked since did not."""
        return os.getpid() == self._owner

    def _check_owner(self) -> None:
        if not self.is_owner:
            raise EngineFailed("the model was loaded before a fork", hint="load it in the child")

    @contextmanager
    def one(self) -> Iterator[int]:
        """Number a call; whatever ends it early, the worker ends it before the next.

        Raises:
            EngineFailed: the worker is closed, or another process's.
            UsageError: another call is being made.
        """
        self._check_owner()
        if self.is_closed:
            raise EngineFailed("the session is closed")
        if not self._calling.acquire(blocking=False):
            raise UsageError(
                "this session is making another answer",
                hint="read that one to its end or close its iterator first",
            )
        try:
            self._n_calls += 1
            self._call = call = self._n_calls
            try:
                yield call
            finally:
                self._finish(call)
        finally:
            self._call = None
            self._calling.release()

    def begin(self, message: Stream | Warm) -> None:
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

    def messages(self, call: int) -> Iterator[StepMade | TokenMade | Warmed]:
        """Give what comes for a call, to its end.

        Raises:
            EdgeLLMError: the worker's own.
            WorkerEnded: its process ended.
        """
        begun_s = monotonic()
        while self._call == call:
            is_cancelled = self._cancelled[0] in (call, self._given_up)
            message = self._channel.next(POLL_S if is_cancelled else _LOOK_S)
            self._check_owner()  # a fork in the middle of an answer: nothing ever comes here
            if isinstance(message, TokenMade):
                if message.call == call:
                    yield message
            elif isinstance(message, Ending):
                self._call = None
                raise WorkerEnded(message)
            elif isinstance(message, (StepMade, Warmed, Raised)):
                is_last = isinstance(message, Raised) or message.facts is not None
                if is_last:
                    self._is_over(message.call)
                if message.call == call:
                    if isinstance(message, Raised):
                        raise error_from_wire(message.error)
                    yield message
            if is_cancelled:
                self._lose_patience(begun_s)

    def _is_over(self, call: int) -> None:
        """Note that the worker has ended a call."""
        if call == self._call:
            self._call = None
        if call >= self._given_up:
            self._given_up = 0

    def cancel(self) -> None:
        """End the call made last; from any thread and from a signal handler."""
        self.n_cancels += 1
        if (call := self._call) is not None:
            self.send_cancel(call)

    def send_cancel(self, call: int) -> None:
        """Ask the worker to end a call, and remember since when."""
        if call > self._cancelled[0]:
            self._cancelled = (call, monotonic())
        self._channel.send(Cancel(call))
        self._channel.wake()

    def _lose_patience(self, begun_s: float) -> None:
        """Kill a worker that has not ended what it was asked to end, waited for since `begun_s`."""
        if monotonic() - max(self._cancelled[1], begun_s) > CANCEL_S:
            self._channel.kill("cancel")

    def _finish(self, call: int) -> None:
        """See to it that the worker is done with a call, or with everything."""
        if self._call is None or not self.is_owner:
            return
        if sys.is_finalizing():  # what would hear the worker's answer runs no more
            self._channel.kill("kill")
            return
        self._given_up = call
        self.send_cancel(call)
        if is_needed_here():  # the next call waits for it
            return
        with suppress(WorkerEnded, EdgeLLMError):
            for _ in self.messages(call):
                pass
