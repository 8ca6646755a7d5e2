"""Where an answer is made: on this machine, at an endpoint, or nowhere. Pure and total.

`decide` is the one function that can say `cloud`, and `clear` the one that makes the leave to send
for it. This machine comes first while it can still do something; only the first choice of a turn in
mode `prefer-cloud` is the endpoint. Before any text is shown every open route may be taken, and
afterwards what `on_failure` allows. What closes a route stands in `bars.py`.

Some failures never come here, since no route would change them: a cancelled answer, an invalid
request, a refused key, refused content, a damaged model file, a full disk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from edgellm.core import Mode
from edgellm.policy.bars import (
    CLOUD_BARS,
    LOCAL_BARS,
    barred,
    has_begun,
    remedy,
    shown_action,
)
from edgellm.routing import Clearance, Trigger, origin_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from edgellm.core import Message, Route
    from edgellm.policy.bars import Bar
    from edgellm.policy.budget import Reservation
    from edgellm.policy.consent import Consent
    from edgellm.routing import Endpoint, OnFailure

LocalState = Literal["ready", "lower", "exhausted", "absent"]
"""What this machine can still do about the trouble: try as planned (again), try one step lower on
the ladder, nothing more, or it never could (no engine, no such model)."""
ConsentState = Literal["valid", "none", "expired", "changed"]
BudgetState = Literal["enough", "exceeded", "unpriced"]
BreakerState = Literal["closed", "half_open", "open"]
Action = Literal["start", "resume", "restart", "continue", "stop"]
"""`start`: nothing was shown, begin; `resume`: this machine's own text, from the journal; `restart`:
begin again, and the `Switch` event discards what was shown; `continue`: go on with a text that
another model began; `stop`: raise."""
Obligation = Literal["announce", "reserve", "warm_up"]
"""What is owed before the decision is carried out: a `Switch` event before the next text, budget put
aside before a byte is sent, a decode without the user's data before the prompt."""

BECAUSE: Final[Mapping[Trigger, str]] = {
    Trigger.NO_FIT: "the model does not fit as planned",
    Trigger.LOAD_OOM: "memory ran out while the model was loaded",
    Trigger.WORKER_DIED: "memory ran out, and the worker died",
    Trigger.WORKER_KILLED: "the worker was killed",
    Trigger.DECODE_FATAL: "the engine failed in the middle of the answer",
    Trigger.PRESSURE: "memory is so short that the answer crawls",
    Trigger.CONTEXT: "prompt and answer are longer than the context",
    Trigger.DEADLINE: "the first token would come after the deadline",
    Trigger.UNSUPPORTED: "no engine here can do what was asked",
    Trigger.CLOUD_FAILED: "the endpoint failed",
}


@dataclass(frozen=True, slots=True)
class RouteFacts:
    """All that a decision rests on.

    Attributes:
        mode: the strictest of what the user, the program and the administrator say.
        trigger: what happened on the route taken so far; None for the first choice of a turn.
        local: what this machine can still do.
        endpoint: the one configured, or None.
        consent: state of the user's leave for this endpoint.
        budget: whether the worst case of this request fits.
        local_breaker: of this model on this machine.
        cloud_breaker: of the endpoint.
        local_rest_s, cloud_rest_s: what is left of their rests; 0 where waiting alone may not do.
        is_private: whether a message of the conversation is.
        n_shown: tokens or pieces of this answer that the caller has seen.
        on_failure: what the caller wants done with an answer whose beginning was shown.
        has_switched: whether this turn has changed its route before; it does so once.
        deadline_set: whether the caller named a time; pressure alone sends nothing out.
        tool_call_shown: whether the caller has seen a tool call, and may have acted on it.
        local_continues: whether this machine can go on with a text that an endpoint began.
        has_records: whether what is sent can be written down.
        is_usable: whether the endpoint's key and address can be used at all.
    """

    mode: Mode = Mode.PRIVATE
    trigger: Trigger | None = None
    local: LocalState = "ready"
    endpoint: Endpoint | None = None
    consent: ConsentState = "none"
    budget: BudgetState = "enough"
    local_breaker: BreakerState = "closed"
    cloud_breaker: BreakerState = "closed"
    local_rest_s: float = 0.0
    cloud_rest_s: float = 0.0
    is_private: bool = False
    n_shown: int = 0
    on_failure: OnFailure = "resume-local"
    has_switched: bool = False
    deadline_set: bool = False
    tool_call_shown: bool = False
    local_continues: bool = False
    has_records: bool = True
    is_usable: bool = True


@dataclass(frozen=True, slots=True)
class Decision:
    """Where to go, how, and why.

    Attributes:
        route: where the answer is made from here on.
        action: how it is taken up there; `stop` exactly for route `none`.
        reason: one phrase.
        reasons: why each route that was not taken is closed, a phrase each.
        remedy: for route `none`, what the user can do.
        obligations: what carrying it out owes.
    """

    route: Literal["local", "cloud", "none"]
    action: Action
    reason: str
    reasons: tuple[str, ...] = ()
    remedy: str = ""
    obligations: frozenset[Obligation] = frozenset()


def decide(facts: RouteFacts) -> Decision:
    """Return where the answer is made, from its beginning or from where it broke off.

    | mode           | first choice      | after a failure                            |
    |----------------|-------------------|--------------------------------------------|
    | `offline`      | local             | local while it can, or none                |
    | `private`      | local             | local while it can, or none                |
    | `prefer-local` | local, then cloud | local while it can, then cloud, then none  |
    | `prefer-cloud` | cloud, then local | local while it can, then cloud, then none  |
    """
    no_local = barred(LOCAL_BARS, facts)
    no_cloud = barred(CLOUD_BARS, facts)
    cloud_first = facts.mode is Mode.PREFER_CLOUD and facts.trigger is None
    why = _why(facts, no_cloud if cloud_first else no_local)
    reasons = (
        *(f"this machine: {bar.phrase}" for bar in no_local),
        *(f"the endpoint: {bar.phrase}" for bar in no_cloud),
    )
    if not no_cloud and (cloud_first or no_local):
        return Decision("cloud", _action(facts, "cloud"), why, reasons, "", _owed(facts, "cloud"))
    if not no_local:
        return Decision("local", _action(facts, "local"), why, reasons, "", _owed(facts, "local"))
    return Decision("none", "stop", why, reasons, remedy(no_local, no_cloud, facts))


def taints(messages: Iterable[Message]) -> bool:
    """Return whether a message is private, which keeps the whole conversation on this machine."""
    return any(message.sensitivity == "private" for message in messages)


def clear(
    decision: Decision, consent: Consent, reservation: Reservation, endpoint: Endpoint
) -> Clearance:
    """Return the leave to send one request, for a decision that said `cloud`.

    Raises:
        ValueError: it did not, or consent and reservation are not for this endpoint. Whoever calls
            is wrong then: nothing may be sent.
    """
    origin = origin_of(endpoint.url)
    if decision.route != "cloud":
        raise ValueError(f"a decision for route {decision.route} gives no leave to send")
    if (consent.origin, consent.model) != (origin, endpoint.model):
        raise ValueError("the consent is for another endpoint or model")
    if (reservation.origin, reservation.model) != (origin, endpoint.model):
        raise ValueError("the budget was put aside for another endpoint or model")
    return Clearance(
        origin=origin,
        model=endpoint.model,
        consent_id=consent.consent_id,
        reservation_id=reservation.reservation_id,
        max_bytes=reservation.most.n_bytes,
    )


def _home(facts: RouteFacts) -> Route:
    """Return the route that the answer was on, or that its mode wishes first."""
    if facts.trigger is not None:
        return "cloud" if facts.trigger is Trigger.CLOUD_FAILED else "local"
    return "cloud" if facts.mode is Mode.PREFER_CLOUD else "local"


def _why(facts: RouteFacts, bars_of_the_first: Sequence[Bar]) -> str:
    if facts.trigger is not None:
        return BECAUSE[facts.trigger]
    return bars_of_the_first[0].phrase if bars_of_the_first else "the first choice"


def _action(facts: RouteFacts, route: Route) -> Action:
    return shown_action(facts, cloud=route == "cloud") if has_begun(facts) else "start"


def _owed(facts: RouteFacts, route: Route) -> frozenset[Obligation]:
    owed: dict[Obligation, bool] = {
        "announce": has_begun(facts) or route != _home(facts),
        "reserve": route == "cloud",
        "warm_up": route == "local" and facts.local_breaker == "half_open",
    }
    return frozenset(name for name, holds in owed.items() if holds)
