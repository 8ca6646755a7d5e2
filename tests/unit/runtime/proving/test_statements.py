"""What is said of what was seen: shown, failed, not enforced and not shown are never mixed up."""

from __future__ import annotations

import dataclasses

import pytest

from edgellm.runtime.proving import statements
from edgellm.runtime.proving.canary import Canary
from edgellm.runtime.proving.orders import Played, Report
from edgellm.runtime.proving.running import Ran
from edgellm.runtime.proving.scenarios import OTHER_DEATHS, TRIGGERS, UNDISTURBED, named
from edgellm.runtime.proving.tracing import Traced
from edgellm.runtime.worker.faults import FAULT_VARIABLE, read_fault
from edgellm.runtime.worker.hardening import MEASURES

CANARY = Canary("CANARY 00112233aabbccdd")
KEPT = Played("M3", "private", "out_of_memory", n_sent_bytes=0)
SENT = Played(
    *("M3", "prefer-local", "stop", "cloud", "worker_died"),
    n_connections=1,
    n_received_bytes=900,
    n_sent_bytes=1800,
    forms=("raw",),
)
ANSWERED = Played("U0", "offline", "length", "local", n_text=4, n_sent_bytes=0)
NOWHERE = Report((), not_apart="nobody may here")


def ran(report: Report, traced: Traced | None = None) -> Ran:
    return Ran(report, b"", traced)


@pytest.mark.parametrize(
    ("measures", "seccomp", "status"),
    [
        (MEASURES, "2", ("shown", "shown")),
        (MEASURES, "", ("shown", "shown")),
        (("no core files",), "0", ("not enforced", "not enforced")),
        (("no core files",), "2", ("failed", "not enforced")),
        ((), "", ("not enforced", "failed")),
    ],
)
def test_of_a_worker(measures: tuple[str, ...], seccomp: str, status: tuple[str, str]) -> None:
    """No filter is a platform's lack; a filter that lets a socket through is a failure."""
    found = statements.of_worker(ran(Report((), measures=measures, seccomp=seccomp)))
    assert tuple(one.status for one in found) == status


def test_of_an_offline_run() -> None:
    """In a namespace by the kernel's count, outside of one by strace, else not at all."""
    apart = Report((ANSWERED,), counts=True)
    assert [one.status for one in statements.of_offline(ran(apart))] == ["shown", "shown"]
    talked = Report((dataclasses.replace(ANSWERED, n_sent_bytes=40),), counts=True)
    assert [one.status for one in statements.of_offline(ran(talked))] == ["shown", "failed"]
    silent = Report((dataclasses.replace(ANSWERED, route="", ended="engine_failed"),), counts=True)
    assert [one.status for one in statements.of_offline(ran(silent))] == ["failed", "shown"]
    with_one = dataclasses.replace(apart, not_apart="nobody may here", counts=False)
    assert {one.status for one in statements.of_offline(ran(with_one))} == {"not shown"}
    for calls, status in (((), "shown"), (("connect(3, AF_INET)",), "failed")):
        found = list(statements.of_offline(ran(with_one, Traced(9, calls, 2))))
        assert [one.status for one in found] == ["shown", status]


def test_of_private_runs() -> None:
    """Nothing seen is shown, anything is a failure, and another mode proves nothing of this one."""
    scenario = named("M3")
    assert statements.of_private(KEPT, scenario, NOWHERE).status == "shown"
    assert statements.of_private(SENT, scenario, NOWHERE).status == "not shown"
    leaked = dataclasses.replace(KEPT, forms=("base64",), n_received_bytes=12)
    said = statements.of_private(leaked, scenario, NOWHERE)
    assert (said.status, "canary: base64" in said.how) == ("failed", True)


def test_of_the_control() -> None:
    """A control that sees nothing is a failure: the silence of the others would prove nothing."""
    report = Report((), counts=True)
    assert statements.of_control(SENT, named("M3"), report).status == "shown"
    for lacks in ({"forms": ()}, {"route": "local"}, {"n_sent_bytes": 0}):
        blind = dataclasses.replace(SENT, **lacks)
        assert statements.of_control(blind, named("M3"), report).status == "failed", lacks
    locked = dataclasses.replace(SENT, mode="private", route="local", forms=())
    assert statements.of_control(locked, named("M3"), report).status == "not shown"


def test_of_a_trigger_that_did_not_come() -> None:
    """A machine too quick or too slow for a timed one is no failure; what is not timed must come."""
    stayed = Played("D1", "prefer-local", "length", "local", n_sent_bytes=0)
    report = Report((), counts=True)
    assert statements.of_control(stayed, named("D1"), report).status == "not shown"
    assert statements.of_control(stayed, named("M3"), report).status == "failed"


def test_of_files_and_what_was_printed(tmp_path) -> None:
    """Each place where the canary is, is named; and a core file, whatever it holds."""
    (tmp_path / "audit.jsonl").write_text("nothing", encoding="utf-8")
    clean = statements.of_files(CANARY, tmp_path, b"INFO", frozenset())
    assert [one.status for one in clean] == ["shown"] * 3
    (tmp_path / "audit.jsonl").write_text(CANARY.text, encoding="utf-8")
    dirty = list(statements.of_files(CANARY, tmp_path, CANARY.text.encode(), frozenset({"core.7"})))
    assert [one.status for one in dirty] == ["failed"] * 3
    assert [dirty[0].how, dirty[2].how] == ["audit.jsonl: raw", "core.7"]


def test_of_the_search_itself() -> None:
    """Every form is tried with the canary in use."""
    assert statements.of_forms(Canary.new()).status == "shown"


def test_every_trigger_of_the_policy_is_played() -> None:
    """All but those that never lead out, and what an endpoint's own failure is."""
    from edgellm.routing import Trigger

    left_out = {Trigger.WORKER_KILLED, Trigger.CLOUD_FAILED}
    assert {one.trigger for one in TRIGGERS} == {*Trigger} - left_out


@pytest.mark.parametrize("scenario", [UNDISTURBED, *TRIGGERS, *OTHER_DEATHS], ids=lambda s: s.code)
def test_every_scenario_is_one(scenario) -> None:
    """Its code is its own, and its fault is one that a worker knows."""
    assert named(scenario.code) is scenario
    fault = read_fault({FAULT_VARIABLE: scenario.fault})
    assert (fault is None) == (not scenario.fault)
