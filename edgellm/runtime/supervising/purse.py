"""Purse: what one program may send to one endpoint: its consent, its budget, the endpoint's breaker."""

from __future__ import annotations

import dataclasses
import hashlib
from contextlib import suppress
from math import ceil
from typing import TYPE_CHECKING

from edgellm.errors import EdgeLLMError, NoRoute, RecordsUnavailable
from edgellm.policy.budget import MICRO, Limits, limits_of, more_of, prices_of
from edgellm.policy.consent import ALL_DATA, Wanted
from edgellm.routing import CloudUse, origin_of
from edgellm.runtime.books.breakers import BreakerBook
from edgellm.runtime.books.consents import ConsentBook
from edgellm.runtime.books.ledger import Ledger
from edgellm.runtime.supervising.received import MOST_CHARS_PER_TOKEN

if TYPE_CHECKING:
    from pathlib import Path

    from edgellm.cloud.events import CloudEnd, Traffic
    from edgellm.errors import EndpointError
    from edgellm.policy.budget import Need, Reservation
    from edgellm.policy.consent import Consent
    from edgellm.policy.route import BreakerState, BudgetState, ConsentState
    from edgellm.routing import Budget, Endpoint

_CHARS_PER_TOKEN = 4


class Purse:
    """The books of one program about one endpoint.

    Every method raises `RecordsDamaged` where a book is not what was written: then nothing is sent.

    Args:
        endpoint: that may be asked.
        budget: the user's.
        app: the program's name.
        home: the folder of the books.
    """

    def __init__(self, endpoint: Endpoint, budget: Budget, app: str, home: Path) -> None:
        self.origin = origin_of(endpoint.url)
        self._app = app
        self._endpoint = endpoint
        self._budget = budget
        self._wanted = Wanted(app, self.origin, endpoint.model, ALL_DATA)
        self._consents = ConsentBook(home)
        self._ledger = Ledger(home)
        self._breakers = BreakerBook(home)
        self.settings = ""

    def know_key(self, api_key: str | None) -> None:
        """Note the key, as a fingerprint: a breaker that it opened closes when it is another one."""
        marks = f"{self._endpoint.url}\0{self._endpoint.model}\0{api_key or ''}"
        self.settings = hashlib.sha256(marks.encode("utf-8", "replace")).hexdigest()[:16]

    def consent(self) -> tuple[ConsentState, Consent | None]:
        """Return the state of the user's leave, and the leave."""
        return self._consents.find(self._wanted)

    def breaker(self) -> BreakerState:
        """Return the state of the endpoint's breaker."""
        return self._breakers.cloud_state(self.origin, self.settings)

    def rest_s(self) -> float:
        """Return the seconds that the endpoint is still left alone, 0 where nobody knows."""
        return self._breakers.cloud_rest_s(self.origin)

    def budget(self, need: Need) -> BudgetState:
        """Return whether a request would fit."""
        return self._ledger.allowance(need, self._limits(self.consent()[1]), self._app).state

    def put_aside(self, need: Need) -> tuple[Consent, Reservation]:
        """Put aside what a request can take, at most; it is on the disk when this returns.

        Raises:
            NoRoute: consent or budget went between the decision and now.
        """
        state, consent = self.consent()
        if state != "valid" or consent is None:
            raise NoRoute(
                f"the consent for {self.origin} is not valid any more: {state}",
                hint="`edgellm consent grant`",
            )
        if not self._breakers.begin_trial(self.origin, self.settings):
            raise NoRoute(
                f"another program is trying {self.origin} carefully",
                hint=f"wait {max(1, ceil(self.rest_s()))} s, or `edgellm breaker reset`",
            )
        try:
            return consent, self._ledger.reserve(need, self._limits(consent), self._app)
        except EdgeLLMError:
            self.stopped()
            raise

    def add(self, reservation: Reservation, more: Need, *, is_owed: bool = False) -> None:
        """Put more aside for a request under way.

        Args:
            reservation: of the request.
            more: that it may take.
            is_owed: it was taken, so that it is booked whatever the limits are.

        Raises:
            NoRoute: it does not fit what is left.
        """
        limits = Limits(allow_unpriced=True) if is_owed else self._limits(self.consent()[1])
        self._ledger.add(reservation, more, limits, self._app)

    def most(self, reservation: Reservation) -> CloudUse:
        """Return the most that a request can take, as it is put aside."""
        most, answer = reservation.most, reservation.answer_tokens
        has_price = prices_of(self._endpoint) is not None
        return CloudUse(
            origin=self.origin,
            model=self._endpoint.model,
            prompt_tokens=most.tokens - answer,
            completion_tokens=answer,
            usd=most.micro_usd / MICRO if has_price else None,
            bytes_out=most.n_bytes,
            estimated=True,
        )

    def give_back(self, reservation: Reservation) -> None:
        """Give back what was put aside for a request that was not sent."""
        self._ledger.release(reservation)
        self.stopped()

    def taken(self, traffic: Traffic, end: CloudEnd | None, n_chars: int) -> CloudUse:
        """Return what a request took, its cost not known yet.

        Args:
            traffic: bytes that moved.
            end: the answer's end with the endpoint's counts, None where there was none.
            n_chars: length of what came, for a guess where there are no counts.
        """
        counted = (
            end is not None
            and bool(end.prompt_tokens)
            and end.completion_tokens is not None
            and n_chars <= end.completion_tokens * MOST_CHARS_PER_TOKEN
        )
        return CloudUse(
            origin=self.origin,
            model=self._endpoint.model,
            prompt_tokens=(end.prompt_tokens if end else None)
            or traffic.bytes_out // _CHARS_PER_TOKEN,
            cached_tokens=(end.cached_tokens if end else None) or 0,
            completion_tokens=(end.completion_tokens if end else None)
            or -(-n_chars // _CHARS_PER_TOKEN),
            bytes_out=traffic.bytes_out,
            bytes_in=traffic.bytes_in,
            estimated=not counted,
        )

    def settle(self, reservation: Reservation, use: CloudUse) -> CloudUse:
        """Book what a request took in place of what was put aside; return it with its cost."""
        if not use.bytes_out:
            self._ledger.release(reservation)
            return dataclasses.replace(use, usd=0.0)
        micro_usd = self._ledger.settle(reservation, use)
        has_price = prices_of(self._endpoint) is not None
        return dataclasses.replace(use, usd=micro_usd / MICRO if has_price else None)

    def answered(self) -> None:
        """Note a whole answer."""
        with suppress(RecordsUnavailable):  # it stands all the same
            self._breakers.note_answer(self.origin)

    def stopped(self) -> None:
        """Note that a request ended before it said anything of the endpoint."""
        with suppress(RecordsUnavailable):  # the claim runs out by itself
            self._breakers.give_back_trial(self.origin)

    def failed(self, error: EndpointError) -> None:
        """Note a failure of the endpoint."""
        with suppress(RecordsUnavailable):  # the failure itself is what counts
            self._breakers.note_failure(
                self.origin, error.kind, settings=self.settings, retry_after_s=error.retry_after_s
            )

    def _limits(self, consent: Consent | None) -> Limits:
        return limits_of(self._budget, consent.max_micro_usd_per_day if consent else None)


class Bill:
    """What is put aside for one request, and grows where its answer may be longer than is paid for.

    Args:
        purse: it comes from.
        need: the most that the request can take if the endpoint keeps to the limit it is told.

    Attributes:
        consent, reservation: under which it is sent.

    Raises:
        NoRoute: consent or budget went between the decision and now.
    """

    def __init__(self, purse: Purse, need: Need) -> None:
        self.consent, self.reservation = purse.put_aside(need)
        self._purse = purse
        self._need = need
        self._step = max(1, need.answer_tokens)
        self._n_paid = need.answer_tokens

    def covers(self, n_tokens: int) -> bool:
        """Return whether so long an answer is paid for, or can be now."""
        try:
            while n_tokens > self._n_paid:
                self._add(self._step, is_owed=False)
        except (NoRoute, RecordsUnavailable):
            return False
        return True

    def owes(self, n_tokens: int) -> None:
        """Book an answer of so many tokens, whether it fits the budget or not: it was received."""
        if n_tokens > self._n_paid:
            self._add(n_tokens - self._n_paid, is_owed=True)

    def _add(self, n_tokens: int, *, is_owed: bool) -> None:
        more = more_of(self._need, n_tokens)
        self._purse.add(self.reservation, more, is_owed=is_owed)
        self._need, self._n_paid = more, self._n_paid + n_tokens
