"""The worker's side: open a model as it is told, then answer one call after the other.

The main thread works, another one reads orders, so that a cancel is heard while the engine computes.
When the orders end, so does the process: the program is gone.
"""

from __future__ import annotations

import os
import sys
from datetime import datetime
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

from edgellm.core import Done, Token, event_to_wire
from edgellm.errors import Cancelled, EdgeLLMError, EngineUnavailable
from edgellm.runtime.worker import messages
from edgellm.runtime.worker.frames import Raw, TokenMade, encode_token, read_frame
from edgellm.runtime.worker.hardening import enforced
from edgellm.runtime.worker.loading import check_ahead, import_ahead, load_session
from edgellm.runtime.worker.messages import (
    Announce,
    Broke,
    Cancel,
    Close,
    Open,
    Opened,
    Raised,
    StepMade,
    Stream,
    TierAnswer,
    Warm,
    Warmed,
    to_wire,
)
from edgellm.runtime.worker.pacing import Pacing
from edgellm.runtime.worker.raising import error_to_wire
from edgellm.runtime.worker.threads import start_thread
from edgellm.runtime.worker.tier import FramedTier

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO, Any

    from edgellm.runtime.local import LocalSession
    from edgellm.runtime.session import Step
    from edgellm.runtime.worker.frames import Sender
    from edgellm.runtime.worker.life import Life
    from edgellm.wire import Wire

BROKE_CODE: Final = 70
"""Exit code where this process could not go on, and said why in a last frame or on stderr."""
_GONE_CODE: Final = 1

Job = tuple[Stream, "Iterator[Step]"] | Warm | Close


class Worker:
    """Serves one program.

    Args:
        orders: where frames come from.
        sender: where they go.
        life: says what is being done.
    """

    def __init__(self, orders: IO[bytes], sender: Sender, life: Life) -> None:
        self._orders = orders
        self._sender = sender
        self._life = life
        self._pacing = Pacing(sender)
        self._tier = FramedTier(sender)
        self._session: LocalSession | None = None
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        self._newest_call = 0
        self._cancelled_call = 0
        self._clock_s: float | None = None

    def refuse(self, version: str) -> int:
        """Say that the program runs in another version of Python; return the exit code."""
        error = EngineUnavailable(
            f"the process for the model runs in Python {sys.version_info.major}."
            f"{sys.version_info.minor}, and the program in {version}",
            hint='open the model with isolation="none"',
        )
        self._send(Raised(0, error_to_wire(error)))
        return 0

    def run(self) -> int:
        """Serve until the program has had enough; return the exit code."""
        try:
            return self._served()
        except BrokenPipeError:  # nobody reads what is sent
            return _GONE_CODE
        except MemoryError as err:
            self._sender.send(to_wire(Broke(f"MemoryError: {err}" if str(err) else "MemoryError")))
            return BROKE_CODE

    def _served(self) -> int:
        import_ahead()
        order, checked = self._next(), None
        if isinstance(order, Announce):
            checked = check_ahead(order)
            order = self._next()
        if not isinstance(order, Open):
            return _GONE_CODE
        secrets = {raw.tag: raw.content for raw in self._raws(order.has_key + order.has_secret)}
        try:
            start_thread(self._hear, "edgellm-orders")
            session = load_session(order, secrets, self._life, self._tier, self._clock, checked)
            opened = Opened(session.model, session.facts(), enforced())
        except EdgeLLMError as err:
            self._send(Raised(0, error_to_wire(err)))
            return 0
        self._session = session
        self._send(opened)
        while True:
            job = self._jobs.get()
            if isinstance(job, Close):
                session.close()
                return 0
            self._answer(session, job)

    def _clock(self) -> datetime:
        """Return the time that templates see: the program's, for an answer that is gone on with."""
        now_s = self._clock_s
        return datetime.now() if now_s is None else datetime.fromtimestamp(now_s)  # noqa: DTZ005, DTZ006  # local, as written

    def _answer(self, session: LocalSession, job: tuple[Stream, Iterator[Step]] | Warm) -> None:
        """Work on a call, and let its error be its end."""
        call = job.call if isinstance(job, Warm) else job[0].call
        self._life.call = call
        try:
            if isinstance(job, Warm):
                if call == self._cancelled_call:
                    raise Cancelled("the warming was stopped")
                use = session.warm(job.messages, job.tools)
                self._life.phase = "snapshot"
                self._send(Warmed(call, use, session.facts()))
            else:
                self._clock_s = job[0].clock_s
                self._stream(session, *job)
        except EdgeLLMError as err:
            self._send(Raised(call, error_to_wire(err)))

    def _stream(self, session: LocalSession, order: Stream, steps: Iterator[Step]) -> None:
        """Send an answer step by step.

        Text that no token of the journal stands for goes with the end, in one frame: an answer that
        is gone on with would show it a second time.
        """
        held: list[dict[str, Any]] = []
        is_ending = False
        self._pacing.begin()
        for step in steps:
            self._life.phase = step.phase
            frame = None if held or is_ending else _token_frame(order.call, step)
            if frame is not None:
                self._pacing.put(frame)
                continue
            event = step.event
            if event is not None:
                held.append(event_to_wire(event))
            is_ending = is_ending or (isinstance(event, Token) and not step.ids)
            is_done = isinstance(event, Done)
            if is_ending and not is_done:
                continue
            facts = session.facts() if is_done else None
            events, n_prompt = tuple(held), step.prompt_tokens
            self._send(StepMade(order.call, step.phase, events, step.ids, facts, n_prompt))
            held = []

    def _hear(self) -> None:
        """Read orders until they end, and end the process with them."""
        try:
            while (order := self._next()) is not None:
                self._take(order)
        finally:  # also where the program sent nonsense
            os._exit(_GONE_CODE)

    def _take(self, order: Wire | Raw | TokenMade) -> None:
        session = self._session
        if isinstance(order, Raw):
            self._tier.came(order)
        elif isinstance(order, TierAnswer):
            self._tier.answered(order)
        elif isinstance(order, Cancel):
            self._cancel(order.call)
        elif isinstance(order, Stream) and session is not None:
            self._newest_call = order.call
            # Made here, so that a cancel behind it counts.
            self._jobs.put((order, session.steps(order.request, order.journal)))
        elif isinstance(order, Warm):
            self._newest_call = order.call
            self._jobs.put(order)
        elif isinstance(order, Close):
            if session is not None:
                session.cancel()
            self._jobs.put(order)

    def _cancel(self, call: int) -> None:
        """End a call, which may not have come yet; not the one after it, where it came too late."""
        if call >= self._newest_call:
            self._cancelled_call = call
            if self._session is not None:
                self._session.cancel()

    def _next(self) -> Wire | Raw | TokenMade | None:
        frame = read_frame(self._orders)
        return messages.from_wire(frame) if isinstance(frame, dict) else frame

    def _raws(self, n: int) -> Iterator[Raw]:
        for _ in range(n):
            frame = read_frame(self._orders)
            if isinstance(frame, Raw):
                yield frame

    def _send(self, message: Wire) -> None:
        self._sender.send(to_wire(message))


def _token_frame(call: int, step: Step) -> bytes | None:
    """Return the short form of a step that is one token, as most are; None for others."""
    event = step.event
    if step.phase != "decode" or len(step.ids) != 1:
        return None
    if event is None:
        return encode_token(TokenMade(call, step.ids[0], None, ""))
    if not isinstance(event, Token) or event.route != "local":
        return None
    return encode_token(TokenMade(call, step.ids[0], event.seq, event.text))
