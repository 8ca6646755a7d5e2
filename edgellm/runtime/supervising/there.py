"""There: an answer, or the rest of one, by the endpoint. The one loop in the program that asks again.

Nothing is sent without a decision that says so, a consent, budget put aside, and a record of it on the
disk. A request is sent again only while nothing of its answer was shown, and never earlier than the endpoint asked.
"""

from __future__ import annotations

import dataclasses
import random
import threading
from typing import TYPE_CHECKING, Final

from edgellm.cloud.events import CloudToolCall
from edgellm.core import Done, Warn
from edgellm.errors import EdgeLLMError, EndpointError, NoRoute, RecordsUnavailable
from edgellm.policy.budget import ANSWER_TOKENS, need_of
from edgellm.policy.route import clear
from edgellm.routing import Trigger
from edgellm.runtime.supervising.purse import Bill
from edgellm.runtime.supervising.received import Received
from edgellm.runtime.supervising.turn import RouteFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from edgellm.cloud.client import ChatClient
    from edgellm.cloud.reading import CloudStream
    from edgellm.core import Event, Request, Token
    from edgellm.policy.budget import Need
    from edgellm.policy.route import BreakerState, BudgetState, ConsentState, Decision
    from edgellm.routing import Clearance
    from edgellm.runtime.session import CloudOptions
    from edgellm.runtime.supervising.purse import Purse
    from edgellm.runtime.supervising.recording import Recorder
    from edgellm.runtime.supervising.turn import Turn

MAX_ATTEMPTS: Final = 3
LONGEST_WAIT_S: Final = 60.0
"""The longest that one answer waits in all; an endpoint that wants more gets no second request."""

_FIRST_WAIT_S: Final = 0.5
_JITTER: Final = 1.25
_LOOK_S: Final = 0.05
_SPARE_BYTES: Final = 64
"""What a body may grow by when an endpoint wants a field called otherwise."""


class There:
    """Answers by one endpoint.

    Args:
        options: where, and the key.
        purse: consent, budget and breaker.
        recorder: writes down what is about to be sent.
    """

    def __init__(self, options: CloudOptions, purse: Purse, recorder: Recorder) -> None:
        self.endpoint = options.endpoint
        self._api_key = options.api_key
        self._purse = purse
        self._recorder = recorder
        self._client: ChatClient | None = None

    def consent_state(self) -> ConsentState:
        """Return the state of the user's leave."""
        return self._purse.consent()[0]

    def breaker_state(self) -> BreakerState:
        """Return the state of the endpoint's breaker. The key is looked up for it."""
        self._known()
        return self._purse.breaker()

    def rest_s(self) -> float:
        """Return the seconds that the endpoint is still left alone, 0 where nobody knows."""
        return self._purse.rest_s()

    def budget_state(self, turn: Turn) -> BudgetState:
        """Return whether the worst case of a turn's request fits what is left."""
        return self._purse.budget(self._need(turn, _bounded(turn, ""), ""))

    def answer(self, turn: Turn, decision: Decision) -> Iterator[Event]:
        """Make an answer, or go on with one; the last event is `Done`.

        Raises:
            RouteFailed: the endpoint failed, and something may follow from that.
        """
        turn.n_cloud += 1
        begun = turn.text if decision.action == "continue" else ""
        request = _bounded(turn, begun)
        n_before, waits = turn.n_shown, _Waits()
        while True:
            try:
                yield from self._once(turn, decision, request, begun)
            except (NoRoute, RecordsUnavailable) as err:  # open when it was decided, and no more
                raise RouteFailed(err, Trigger.CLOUD_FAILED, "decode") from err
            except EndpointError as err:
                self._purse.failed(err)
                wait_s = None if turn.n_shown > n_before else waits.next_s(err)
                if wait_s is None:
                    raise RouteFailed(err, Trigger.CLOUD_FAILED, "decode") from err
                said = f"{err}; asking again in {wait_s:.0f} s" if wait_s >= 1 else ""
            else:
                return
            if said:
                yield Warn(said)
            if not _slept(turn, wait_s):
                yield Done(turn.text, "cancelled", "cloud", seed=turn.seed)
                return

    def _once(
        self, turn: Turn, decision: Decision, request: Request, begun: str
    ) -> Iterator[Event]:
        """Send the request once; what it cost is booked however it ends."""
        client = self._known()
        bill = Bill(self._purse, self._need(turn, request, begun))
        received = Received(request.stop, bill.reservation.answer_tokens)
        clearance = self._noted(turn, decision, bill)
        try:
            with client.stream(
                request,
                clearance,
                begun=begun,
                cancelled=lambda: turn.is_cancelled,
                traffic=received.traffic,
            ) as events:
                yield from _shown(turn, events, received, bill)
        finally:
            self._settle(turn, bill, received)
        if received.finish_reason == "cancelled":
            self._purse.stopped()
        else:
            self._purse.answered()
        yield from turn.told()
        if received.end is not None and received.end.note:
            yield Warn(received.end.note)
        if received.cut:
            yield Warn(f"{self._purse.origin} {received.cut}: the answer was cut there")
        yield Done(turn.text, received.finish_reason, "cloud", seed=turn.seed)

    def _noted(self, turn: Turn, decision: Decision, bill: Bill) -> Clearance:
        """Write down that a request is about to leave, and return the leave for it."""
        reservation, consent = bill.reservation, bill.consent
        try:
            clearance = clear(decision, consent, reservation, self.endpoint)
            names = (consent.consent_id, reservation.reservation_id)
            self._recorder.sending(turn, self._purse.most(reservation), *names)
        except EdgeLLMError:
            self._purse.give_back(reservation)
            raise
        return clearance

    def _settle(self, turn: Turn, bill: Bill, received: Received) -> None:
        use = self._purse.taken(received.traffic, received.end, received.n_chars)
        try:
            if received.cut:
                bill.owes(max(received.n_tokens, use.completion_tokens))
            use = self._purse.settle(bill.reservation, use)
        except EdgeLLMError as err:  # what was put aside stays taken: nothing is overspent
            turn.warnings.append(f"the cost could not be booked: {err}")
        if use.bytes_out:
            turn.bill(use, bill.consent.consent_id, bill.reservation.reservation_id)

    def _need(self, turn: Turn, request: Request, begun: str) -> Need:
        n_bytes = len(self._known().body_of(request, begun)) + _SPARE_BYTES
        return need_of(self.endpoint, n_bytes, request.max_tokens, turn.micro_usd)

    def _known(self) -> ChatClient:
        """Return the client; its key is looked up when it is first needed."""
        if self._client is None:
            from edgellm.cloud.client import ChatClient

            key = self._api_key() if callable(self._api_key) else self._api_key
            self._purse.know_key(key)
            self._client = ChatClient(self.endpoint, key)
        return self._client


class _Waits:
    """How long to wait before asking again, and when to stop."""

    def __init__(self) -> None:
        self._n_failed = 0
        self._waited_s = 0.0

    def next_s(self, error: EndpointError) -> float | None:
        """Return seconds to wait after a failure, None to ask no more."""
        self._n_failed += 1
        if not error.may_retry or self._n_failed >= MAX_ATTEMPTS:
            return None
        # Programs that failed together do not all come again together.
        back_off_s = _FIRST_WAIT_S * 2 ** (self._n_failed - 1) * random.uniform(1, _JITTER)  # noqa: S311  # no secret
        wait_s = error.retry_after_s or back_off_s
        if self._waited_s + wait_s > LONGEST_WAIT_S:
            return None
        self._waited_s += wait_s
        return wait_s


def _shown(turn: Turn, events: CloudStream, received: Received, bill: Bill) -> Iterator[Token]:
    """Give the text of an answer while it comes, and is paid for."""
    for event in events:
        turn.tool_call_shown |= isinstance(event, CloudToolCall)
        text = received.take(event, events.counted_tokens)
        if not received.is_over and not bill.covers(received.n_tokens):
            text += received.end_here("may have sent more tokens than the budget pays for")
        if text:
            yield turn.token(text)
        if received.is_over:
            break


def _bounded(turn: Turn, begun: str) -> Request:
    """Return the request with the limit that is paid for, less what there is of the answer."""
    asked = turn.request.max_tokens or ANSWER_TOKENS
    left = max(1, asked - len(turn.journal)) if begun else asked
    return dataclasses.replace(turn.request, max_tokens=left)


def _slept(turn: Turn, wait_s: float) -> bool:
    """Wait; False as soon as the caller wants no answer any more."""
    pause, left_s = threading.Event(), wait_s
    while left_s > 0 and not turn.is_cancelled:
        pause.wait(min(_LOOK_S, left_s))
        left_s -= _LOOK_S
    return not turn.is_cancelled
