"""The route decision against a plain reading of the rules, over random facts."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgellm.core import Mode
from edgellm.policy.route import (
    BreakerState,
    BudgetState,
    ConsentState,
    Decision,
    LocalState,
    RouteFacts,
    decide,
)
from edgellm.routing import Continuation, Endpoint, OnFailure, Trigger

N_FULL = 100_000
CONTINUATIONS: tuple[Continuation, ...] = get_args(Continuation)

HERE, THERE = "http://127.0.0.1:8080", "https://api.example.com/v1"
# Some values stand here more than once: among even odds the way out is open once in some thousands.
VALUES: dict[str, list[Any]] = {
    "mode": [*Mode, Mode.PREFER_LOCAL, Mode.PREFER_CLOUD],
    "trigger": [None, *Trigger],
    "local": [*get_args(LocalState)],
    "endpoint": [
        None,
        *(Endpoint(url, "m", continues=how) for url in (HERE, THERE) for how in CONTINUATIONS),
    ],
    "consent": [*get_args(ConsentState), "valid", "valid", "valid"],
    "budget": [*get_args(BudgetState), "enough", "enough"],
    "local_breaker": [*get_args(BreakerState)],
    "cloud_breaker": [*get_args(BreakerState)],
    "is_private": [False, False, False, True],
    "n_shown": [0, 0, 1, 1000],
    "on_failure": [*get_args(OnFailure)],
    "has_switched": [False, False, True],
    "deadline_set": [False, True],
    "tool_call_shown": [False, False, False, True],
    "local_continues": [False, True],
}


def facts_of(number: int) -> RouteFacts:
    """Return the facts that a number stands for: one digit for each, in the base of its values."""
    chosen = {}
    for name, values in VALUES.items():
        number, digit = divmod(number, len(values))
        chosen[name] = values[digit]
    return RouteFacts(**chosen)


# One number in place of fifteen draws: a hundred thousand cases take a minute and not six.
FACTS = st.integers(0, math.prod(map(len, VALUES.values())) - 1).map(facts_of)


def may_send(facts: RouteFacts) -> bool:
    """Read off the rules whether anything may leave this machine."""
    return (
        facts.mode in (Mode.PREFER_LOCAL, Mode.PREFER_CLOUD)
        and facts.consent == "valid"
        and facts.budget == "enough"
        and not facts.is_private
        and facts.endpoint is not None
        and facts.cloud_breaker != "open"
        and facts.trigger not in (Trigger.CLOUD_FAILED, Trigger.WORKER_KILLED)
        and (facts.trigger is not Trigger.PRESSURE or facts.deadline_set)
    )


def action_on(facts: RouteFacts, route: str) -> str | None:
    """Read off the rules how an answer goes on somewhere, or None where it does not."""
    failed_on = "cloud" if facts.trigger is Trigger.CLOUD_FAILED else "local"
    if facts.has_switched and route != failed_on:
        return None
    if facts.trigger is None or not (facts.n_shown or facts.tool_call_shown):
        return "start"
    if facts.tool_call_shown or facts.on_failure == "stop":
        return None
    if facts.on_failure == "restart":
        return "restart"
    if route == "local" == failed_on:
        return "resume"
    if route == "local":
        return "continue" if facts.on_failure == "continue" and facts.local_continues else None
    return "continue" if facts.endpoint and facts.endpoint.continues != "none" else None


def by_the_rules(facts: RouteFacts) -> tuple[str, str]:
    """Read route and action off the rules, written once more in another form."""
    may_stay = facts.local in ("ready", "lower") and facts.local_breaker != "open"
    allowed = {"local": may_stay, "cloud": may_send(facts)}
    order = ["local", "cloud"]
    if facts.mode is Mode.PREFER_CLOUD and facts.trigger is None:
        order.reverse()
    for route in order:
        action = action_on(facts, route)
        if allowed[route] and action is not None:
            return route, action
    return "none", "stop"


def hold(facts: RouteFacts) -> None:
    decision = decide(facts)
    assert isinstance(decision, Decision)
    assert by_the_rules(facts) == (decision.route, decision.action)
    assert decision == decide(facts)
    assert decision.reason
    assert bool(decision.remedy) == (decision.route == "none")


@given(FACTS)
@settings(max_examples=1000)
def test_g4_decisions_follow_the_rules(facts: RouteFacts) -> None:
    """`decide` never returns `cloud` unless mode is prefer-*, consent valid, budget > 0, no private taint."""
    hold(facts)


@pytest.mark.full
@given(FACTS)
@settings(max_examples=N_FULL)
def test_g4_decisions_follow_the_rules_100_000_times(facts: RouteFacts) -> None:
    """The same, over a hundred thousand random cases."""
    hold(facts)


@given(FACTS, st.sampled_from(["mode", "consent", "budget", "is_private", "endpoint"]))
@settings(max_examples=500)
def test_taking_a_leave_away_never_sends(facts: RouteFacts, what: str) -> None:
    """Whatever is sent with a leave is not sent without any one part of it."""
    without = {
        "mode": Mode.PRIVATE,
        "consent": "none",
        "budget": "exceeded",
        "is_private": True,
        "endpoint": None,
    }
    assert "cloud" != decide(replace(facts, **{what: without[what]})).route
