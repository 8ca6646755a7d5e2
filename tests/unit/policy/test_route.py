"""Where an answer is made: every combination of facts, and the sentences that must hold for each."""

from __future__ import annotations

import ast
import itertools
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from edgellm.core import Message, Mode
from edgellm.policy.bars import CLOUD_BARS, LOCAL_BARS, SHOWN
from edgellm.policy.budget import Amount, Reservation
from edgellm.policy.consent import Wanted, draft, sealed
from edgellm.policy.route import (
    BECAUSE,
    BreakerState,
    BudgetState,
    ConsentState,
    Decision,
    LocalState,
    RouteFacts,
    clear,
    decide,
    taints,
)
from edgellm.routing import Clearance, Endpoint, OnFailure, Trigger

PACKAGE = Path(__file__).resolve().parents[3] / "edgellm"
ENDPOINT = Endpoint("https://api.example.com/v1", "big")
CONTINUES = replace(ENDPOINT, continues="flags")
TRIGGERS = (None, *Trigger)
OPEN = (Mode.PREFER_LOCAL, Mode.PREFER_CLOUD)
ON_ITS_WAY = RouteFacts(mode=Mode.PREFER_LOCAL, endpoint=CONTINUES, consent="valid")
"""Facts with which the endpoint may be asked, as soon as this machine cannot."""


def first_choices() -> Iterator[RouteFacts]:
    """Give every combination of who may and who can, before anything was shown."""
    for facts in itertools.product(
        Mode,
        TRIGGERS,
        get_args(LocalState),
        (None, ENDPOINT),
        get_args(ConsentState),
        get_args(BudgetState),
        get_args(BreakerState),
        get_args(BreakerState),
        (False, True),
    ):
        yield RouteFacts(*facts)


def broken_streams() -> Iterator[RouteFacts]:
    """Give every combination of what was shown and wished with who can go on."""
    for facts in itertools.product(
        list(Mode)[1:],
        TRIGGERS,
        get_args(LocalState),
        (None, ENDPOINT, CONTINUES),
        ("none", "valid"),
    ):
        for shown in itertools.product((0, 5), get_args(OnFailure), *[(False, True)] * 4):
            n_shown, on_failure, has_switched, deadline_set, tool_call_shown, here = shown
            yield RouteFacts(
                *facts,
                n_shown=n_shown,
                on_failure=on_failure,
                has_switched=has_switched,
                deadline_set=deadline_set,
                tool_call_shown=tool_call_shown,
                local_continues=here,
            )


def check(facts: RouteFacts, decision: Decision) -> None:
    """Hold a decision against every sentence that has no exception."""
    is_cloud, is_local = decision.route == "cloud", decision.route == "local"
    if is_cloud:
        assert facts.mode in OPEN
        assert facts.consent == "valid"
        assert facts.budget == "enough"
        assert not facts.is_private
        assert facts.endpoint is not None
        assert facts.cloud_breaker != "open"
        assert facts.trigger not in (Trigger.WORKER_KILLED, Trigger.CLOUD_FAILED)
        assert facts.trigger is not Trigger.PRESSURE or facts.deadline_set
        assert "reserve" in decision.obligations
        assert decision.action in ("start", "continue", "restart")
        assert decision.action != "continue" or facts.endpoint.continues != "none"
        if facts.mode is Mode.PREFER_LOCAL or facts.trigger is not None:  # here first, if it can
            assert decide(replace(facts, mode=Mode.PRIVATE)).route == "none"
    if is_local:
        assert facts.local in ("ready", "lower")
        assert facts.local_breaker != "open"
        assert ("warm_up" in decision.obligations) == (facts.local_breaker == "half_open")
        assert "reserve" not in decision.obligations
    assert (decision.route == "none") == (decision.action == "stop") == bool(decision.remedy)
    if decision.route == "none":
        assert {reason.partition(":")[0] for reason in decision.reasons} == {
            "this machine",
            "the endpoint",
        }
    has_begun = facts.trigger is not None and (facts.n_shown > 0 or facts.tool_call_shown)
    if has_begun and decision.route != "none":
        assert facts.on_failure != "stop"
        assert not facts.tool_call_shown
        assert "announce" in decision.obligations
        assert (decision.action == "restart") == (facts.on_failure == "restart")
    else:
        assert decision.action in ("start", "stop")


@pytest.mark.parametrize("wrong", ["has_records", "is_usable"])
@pytest.mark.parametrize("mode", OPEN)
def test_what_cannot_be_written_down_or_asked_stays_here(mode: Mode, wrong: str) -> None:
    """The endpoint alone is closed: this machine answers while it can."""
    facts = replace(ON_ITS_WAY, mode=mode, **{wrong: False})
    assert decide(facts).route == "local"
    assert decide(replace(facts, local="exhausted")).route == "none"


def test_g4_no_cloud_without_mode_consent_budget_and_for_no_private_text() -> None:
    """`decide` never returns `cloud` unless mode is prefer-*, consent valid, budget > 0, no private taint.

    Every combination of the facts that say who may and who can.
    """
    n_cloud = n = 0
    for facts in first_choices():
        decision = decide(facts)
        check(facts, decision)
        n_cloud += decision.route == "cloud"
        n += 1
    assert 4 * 11 * 4 * 2 * 4 * 3 * 3 * 3 * 2 == n
    assert n_cloud > 100


def test_g4_no_shown_text_opens_the_way_out() -> None:
    """The same, for every combination of what was shown, of what is wished, and of who can go on."""
    n_cloud = 0
    for facts in broken_streams():
        decision = decide(facts)
        check(facts, decision)
        n_cloud += decision.route == "cloud"
    assert n_cloud > 100


@pytest.mark.parametrize("mode", [Mode.OFFLINE, Mode.PRIVATE])
@pytest.mark.parametrize("trigger", TRIGGERS)
def test_a_closed_mode_says_what_this_machine_can_do(mode: Mode, trigger: Trigger | None) -> None:
    """Without a way here, a closed mode names the remedy here and leads nobody out of the mode."""
    facts = replace(ON_ITS_WAY, mode=mode, trigger=trigger, local="exhausted")
    decision = decide(facts)
    assert ("none", "stop") == (decision.route, decision.action)
    assert "edgellm plan" in decision.remedy
    assert not any(word in decision.remedy for word in ("mode ", "consent", "endpoint"))
    assert "the endpoint: the mode keeps prompts on this machine" in decision.reasons


SENDS = {
    Trigger.NO_FIT: True,
    Trigger.LOAD_OOM: True,
    Trigger.WORKER_DIED: True,
    Trigger.WORKER_KILLED: False,
    Trigger.DECODE_FATAL: True,
    Trigger.PRESSURE: False,
    Trigger.CONTEXT: True,
    Trigger.DEADLINE: True,
    Trigger.UNSUPPORTED: True,
    Trigger.CLOUD_FAILED: False,
}


@pytest.mark.parametrize("trigger", list(Trigger))
def test_the_table_of_triggers(trigger: Trigger) -> None:
    """Each trigger tries this machine first; the ones of the table may then send."""
    lower = decide(replace(ON_ITS_WAY, trigger=trigger, local="lower"))
    assert ("local", "start") == (lower.route, lower.action)
    exhausted = decide(replace(ON_ITS_WAY, trigger=trigger, local="exhausted"))
    assert ("cloud" if SENDS[trigger] else "none") == exhausted.route
    assert exhausted.reason == BECAUSE[trigger]


def test_pressure_sends_only_with_a_deadline() -> None:
    """A slow machine is no reason to send a prompt, unless the caller named a time."""
    facts = replace(ON_ITS_WAY, trigger=Trigger.PRESSURE, local="exhausted", deadline_set=True)
    assert "cloud" == decide(facts).route


def test_what_no_route_can_change_is_no_trigger() -> None:
    """A cancelled answer, an invalid request, a refused key or text, a crash and a full disk never send.

    They have no word here; a crash and a plain kill have one, which never sends.
    """
    names = {trigger.value for trigger in Trigger}
    assert set(BECAUSE) == set(Trigger) == set(SENDS)
    for word in ("cancel", "invalid", "auth", "refus", "filter", "segv", "corrupt", "disk"):
        assert not any(word in name for name in names)
    for mode, local, shown in itertools.product(Mode, get_args(LocalState), (0, 1)):
        facts = replace(ON_ITS_WAY, mode=mode, local=local, n_shown=shown)
        assert "cloud" != decide(replace(facts, trigger=Trigger.WORKER_KILLED)).route


def test_prefer_cloud_asks_the_endpoint_first_and_falls_back() -> None:
    """Its first choice is the endpoint; where that is closed or fails, this machine answers."""
    facts = replace(ON_ITS_WAY, mode=Mode.PREFER_CLOUD)
    first = decide(facts)
    assert ("cloud", "start", frozenset({"reserve"})) == (
        first.route,
        first.action,
        first.obligations,
    )
    for closed in (
        replace(facts, consent="expired"),
        replace(facts, budget="exceeded"),
        replace(facts, cloud_breaker="open"),
        replace(facts, is_private=True),
        replace(facts, trigger=Trigger.CLOUD_FAILED),
    ):
        fallen = decide(closed)
        assert ("local", "start") == (fallen.route, fallen.action)
        assert "announce" in fallen.obligations
        assert fallen.reason != "the first choice"


STREAMS = [
    ("resume-local", "lower", CONTINUES, ("local", "resume")),
    ("resume-local", "exhausted", CONTINUES, ("cloud", "continue")),
    ("resume-local", "exhausted", ENDPOINT, ("none", "stop")),
    ("continue", "lower", CONTINUES, ("local", "resume")),
    ("continue", "exhausted", CONTINUES, ("cloud", "continue")),
    ("continue", "exhausted", ENDPOINT, ("none", "stop")),
    ("restart", "lower", CONTINUES, ("local", "restart")),
    ("restart", "exhausted", CONTINUES, ("cloud", "restart")),
    ("restart", "exhausted", ENDPOINT, ("cloud", "restart")),
    ("stop", "ready", CONTINUES, ("none", "stop")),
]


@pytest.mark.parametrize(("on_failure", "local", "endpoint", "expected"), STREAMS)
def test_a_broken_answer_goes_on_as_was_wished(on_failure, local, endpoint, expected) -> None:
    """What follows a shown text: here first, there by its abilities, and an end where neither can."""
    facts = replace(
        ON_ITS_WAY,
        trigger=Trigger.WORKER_DIED,
        local=local,
        endpoint=endpoint,
        n_shown=5,
        on_failure=on_failure,
    )
    decision = decide(facts)
    assert expected == (decision.route, decision.action)
    unseen = decide(replace(facts, n_shown=0))
    assert "start" == unseen.action


def test_an_endpoints_text_is_gone_on_with_here_only_where_that_is_wished_and_can_be() -> None:
    """A cloud stream that breaks off ends there, is begun anew here, or is continued, as wished."""
    facts = replace(ON_ITS_WAY, mode=Mode.PREFER_CLOUD, trigger=Trigger.CLOUD_FAILED, n_shown=5)
    assert "none" == decide(facts).route
    assert "restart" == decide(replace(facts, on_failure="restart")).action
    continued = replace(facts, on_failure="continue")
    assert "none" == decide(continued).route
    assert "continue" == decide(replace(continued, local_continues=True)).action


def test_nothing_goes_on_after_a_tool_call() -> None:
    """Whoever saw a tool call may have carried it out: the answer ends, whatever is wished."""
    for trigger, on_failure in itertools.product(Trigger, get_args(OnFailure)):
        facts = replace(ON_ITS_WAY, trigger=trigger, on_failure=on_failure, tool_call_shown=True)
        assert "none" == decide(facts).route


@pytest.mark.parametrize("n_shown", [0, 5])
def test_a_turn_changes_its_route_once(n_shown: int) -> None:
    """After one change the other route stays closed; the same one may still be resumed."""
    facts = replace(ON_ITS_WAY, has_switched=True, n_shown=n_shown, on_failure="restart")
    for local in get_args(LocalState):
        again = decide(replace(facts, trigger=Trigger.CLOUD_FAILED, local=local))
        assert "none" == again.route
        died = decide(replace(facts, trigger=Trigger.WORKER_DIED, local=local))
        assert died.route == ("local" if local in ("ready", "lower") else "none")


def test_both_breakers_open_give_reasons_and_a_remedy_at_once() -> None:
    """Nobody waits for two routes that rest: the answer comes within 50 ms."""
    facts = replace(ON_ITS_WAY, local_breaker="open", cloud_breaker="open")
    started_s = time.perf_counter()
    decision = decide(facts)
    assert time.perf_counter() - started_s < 0.05
    assert "none" == decision.route
    assert 2 == len(decision.reasons)
    assert "edgellm breaker reset" in decision.remedy


def test_a_rest_says_how_long_it_is() -> None:
    """In whole seconds, rounded up; where waiting alone may not do, no number is given."""
    facts = replace(ON_ITS_WAY, local_breaker="open", cloud_breaker="open")
    decision = decide(replace(facts, local_rest_s=41.2, cloud_rest_s=1800.0))
    here = "`--force` (`force=True`), or `edgellm breaker reset`"
    there = "`edgellm breaker reset`"
    assert decision.remedy == f"wait 42 s, or {here}; or wait 1800 s, or {there}"
    assert decide(facts).remedy == f"wait, or {here}; or wait, or {there}"


def test_an_open_local_breaker_is_the_reason_for_leaving() -> None:
    """The first choice of prefer-local is elsewhere while this machine rests, and is announced."""
    decision = decide(replace(ON_ITS_WAY, local_breaker="open"))
    assert ("cloud", "memory ran out repeatedly, so it rests") == (decision.route, decision.reason)
    assert {"announce", "reserve"} == decision.obligations


def test_a_remedy_is_not_given_for_a_route_that_stays_closed() -> None:
    """A private message is not sent whatever is configured, so no configuration is proposed."""
    facts = RouteFacts(mode=Mode.PREFER_LOCAL, trigger=Trigger.LOAD_OOM, local="exhausted")
    assert "endpoint.url" in decide(facts).remedy
    assert "endpoint" not in decide(replace(facts, is_private=True)).remedy


def test_one_private_message_taints_all() -> None:
    """A conversation with a private message is private, wherever it stands."""
    normal = Message("user", "hello")
    private = Message("system", "secret", sensitivity="private")
    assert not taints([normal, normal])
    assert taints([normal, private, normal])
    assert not taints([])


def test_phrases_are_fixed() -> None:
    """Reasons go into the audit log: they are short, of one line, and hold no place for values."""
    phrases = [bar.phrase for bar in (*LOCAL_BARS, *CLOUD_BARS)] + list(BECAUSE.values())
    assert all(phrase == phrase.strip() and len(phrase) < 100 for phrase in phrases)
    assert not any(char in phrase for phrase in phrases for char in "{}\n%")
    assert set(get_args(OnFailure)) == set(SHOWN)


def granted(endpoint: Endpoint = ENDPOINT, origin: str = "https://api.example.com"):
    wanted = Wanted("app", origin, endpoint.model)
    return sealed(draft(wanted, micro_usd_per_day=1, now_s=0))


def put_aside(origin: str = "https://api.example.com", model: str = "big") -> Reservation:
    return Reservation("r1", origin, model, Amount(1, 2, 300), 10)


def test_a_decision_for_the_cloud_gives_leave() -> None:
    """The leave names place, model, consent, reservation, and the bytes that were put aside."""
    decision = decide(replace(ON_ITS_WAY, mode=Mode.PREFER_CLOUD))
    leave = clear(decision, granted(), put_aside(), ENDPOINT)
    expected = Clearance("https://api.example.com", "big", granted().consent_id, "r1", 300)
    assert expected == leave


@pytest.mark.parametrize(
    ("facts", "consent", "reservation"),
    [
        (RouteFacts(), granted(), put_aside()),
        (replace(ON_ITS_WAY, trigger=Trigger.CLOUD_FAILED, local="absent"), granted(), put_aside()),
        (
            replace(ON_ITS_WAY, mode=Mode.PREFER_CLOUD),
            granted(origin="https://api.example.org"),
            put_aside(),
        ),
        (
            replace(ON_ITS_WAY, mode=Mode.PREFER_CLOUD),
            granted(replace(ENDPOINT, model="other")),
            put_aside(),
        ),
        (replace(ON_ITS_WAY, mode=Mode.PREFER_CLOUD), granted(), put_aside("http://127.0.0.1:1")),
        (replace(ON_ITS_WAY, mode=Mode.PREFER_CLOUD), granted(), put_aside(model="other")),
    ],
)
def test_no_leave_for_anything_else(facts, consent, reservation) -> None:
    """Another route, another place or another model gives none."""
    with pytest.raises(ValueError, match=r"no leave|is for another|for another"):
        clear(decide(facts), consent, reservation, ENDPOINT)


def calls_of(name: str) -> list[str]:
    """List where the package calls something by that name, as `file:function`."""
    found = []
    for file in sorted(PACKAGE.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        for outer in ast.walk(ast.parse(text)) if f"{name}(" in text else ():
            if not isinstance(outer, ast.FunctionDef):
                continue
            found += [
                f"{file.relative_to(PACKAGE).as_posix()}:{outer.name}"
                for node in ast.walk(outer)
                if isinstance(node, ast.Call)
                and name in (getattr(node.func, "id", ""), getattr(node.func, "attr", ""))
            ]
    return sorted(set(found))


def test_clearance_has_one_constructor() -> None:
    """Only `policy.route.clear` makes the leave to send, and only `decide` makes decisions."""
    assert ["policy/route.py:clear"] == calls_of("Clearance")
    assert ["policy/route.py:decide"] == calls_of("Decision")


def test_nobody_copies_a_clearance_with_other_fields() -> None:
    """No module both knows `Clearance` and changes copies of dataclasses into one."""
    for file in sorted(PACKAGE.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        if "Clearance" in text and "replace(" in text:
            assert "replace(clearance" not in text, file
