"""Answers whose worker dies on the way: what the caller sees, what is written down, what is tried."""

from __future__ import annotations

import dataclasses
import shutil
import threading
from typing import TYPE_CHECKING

import pytest

from edgellm.core import Done, Failure, Message, Mode, Request, Switch, Token, Warn
from edgellm.errors import (
    DoesNotFit,
    EngineFailed,
    ModelNotFound,
    OutOfMemory,
    PromptTooLong,
    RecordsUnavailable,
    UsageError,
    WorkerDied,
)
from edgellm.policy.ladder import Rung
from edgellm.runtime.books.audit import AuditLog
from edgellm.runtime.supervising import descent, place

if TYPE_CHECKING:
    from edgellm.policy.plan import Plan

WHOLE = "The answer comes in ten little words , so it is . "


def test_an_undisturbed_answer_passes_through(stage, kit) -> None:
    """All tokens in order, one `Done` with its record, no word of supervisors."""
    supervisor, workers = stage.open()
    seen = kit.see(supervisor)
    assert [type(event) for event in seen.events] == [Token] * 12 + [Done]
    assert seen.text == seen.done.text == WHOLE
    assert (seen.done.route, seen.done.degraded, seen.done.usage.completion_tokens) == (
        "local",
        False,
        12,
    )
    assert [record.finish for record in stage.records()] == ["stop"]
    assert seen.done.audit_id
    assert workers.started[0].seeds == [seen.done.seed]


@pytest.mark.parametrize("n", range(13))
def test_g6_a_death_at_any_token_leaves_the_answer_whole(stage, kit, n: int) -> None:
    """Killing the worker at any token never kills the host process, and the answer goes on."""
    supervisor, workers = stage.open(kit.Life(n, kit.died()), kit.Life())
    seen = kit.see(supervisor)
    assert seen.text == seen.done.text == WHOLE
    assert not seen.done.degraded
    assert workers.started[1].journals == [tuple(range(n))]
    assert workers.started[1].seeds == workers.started[0].seeds
    assert len(stage.records()) == 1


@pytest.mark.parametrize(("n", "kinds"), [(0, (0, 1)), (5, (1, 0))])
def test_g8_a_switch_only_where_text_was_shown(stage, kit, n: int, kinds: tuple[int, int]) -> None:
    """Before the first token a warning says it; afterwards there is exactly one `Switch`."""
    supervisor, _ = stage.open(kit.Life(n, kit.died()), kit.Life())
    seen = kit.see(supervisor)
    switches, warnings = seen.of(Switch), seen.of(Warn)
    assert (len(switches), len(warnings)) == kinds
    if switches:
        assert (switches[0].source, switches[0].target) == ("local", "local")
        assert (switches[0].discard_from_seq, switches[0].degraded) == (None, False)
    assert stage.records()[0].n_switches == len(switches)


@pytest.mark.parametrize("has_answered", [False, True])
def test_a_conversation_that_is_read_anew_is_said_to_be(stage, kit, has_answered: bool) -> None:
    """Only the worker that made the first answer could go on from it; another one reads it whole."""
    first, dies = kit.Life(), kit.Life(5, kit.died())
    supervisor, workers = stage.open(first if has_answered else dies, kit.Life())
    asked = kit.ASKED
    if has_answered:
        supervisor.generate(asked)
        workers.started[0].life = dies
    talk = (*asked.messages, Message("assistant", WHOLE), Message("user", "And then?"))
    seen = kit.see(supervisor, dataclasses.replace(asked, messages=talk))
    assert seen.text == WHOLE
    assert [switch.degraded for switch in seen.of(Switch)] == [has_answered]
    assert seen.done.degraded is has_answered
    assert stage.records()[-1].degraded is has_answered


def test_a_second_death_is_the_end_with_the_first_error(stage, kit) -> None:
    """No endless loop: the first error is raised, the second is chained, one record says so."""
    supervisor, workers = stage.open(
        kit.Life(2, kit.died()), kit.Life(4, kit.died(returncode=-11)), kit.Life()
    )
    with pytest.raises(WorkerDied) as caught:
        supervisor.generate(kit.ASKED)
    assert caught.value.signal == 9
    assert isinstance(caught.value.__cause__, WorkerDied)
    assert caught.value.__cause__.signal == 11
    assert len(workers.started) == 2
    assert [record.finish for record in stage.records()] == ["worker_died"]
    assert supervisor.generate(kit.ASKED).text == WHOLE  # the next question is another one


def test_a_stream_ends_with_a_failure(stage, kit) -> None:
    """Whoever reads events gets the error as the last one, and keeps the text before."""
    supervisor, _ = stage.open(kit.Life(2, kit.died()), kit.Life(4, kit.died()))
    seen = kit.see(supervisor)
    assert isinstance(seen.last, Failure)
    assert (seen.last.code, seen.last.exit) == ("worker_died", 1)
    assert seen.text == "The answer comes in "


def test_memory_takes_one_rung_and_it_stays(stage, kit, monkeypatch) -> None:
    """After a death for memory the worker is smaller, and so is the one for the next answer."""

    def smaller_batch(plan: Plan, rungs: list[Rung], _: object = (), **__: int) -> Rung | None:
        settings = dataclasses.replace(plan.settings, n_batch=128)
        return None if rungs else Rung("batch", settings, "a batch of 128 tokens", False)

    monkeypatch.setattr(descent, "next_lower", smaller_batch)
    supervisor, workers = stage.open(kit.Life(5, kit.oom()), kit.Life(), kit.Life())
    seen = kit.see(supervisor)
    assert seen.text == WHOLE
    assert workers.options[0].engine.n_batch == 512
    assert workers.options[1].engine.n_batch == 128
    assert "a batch of" in seen.of(Switch)[0].reason
    assert not seen.done.degraded  # a batch leaves the answer as it is
    workers.started[1].ending = kit.died()
    assert kit.see(supervisor).text == WHOLE
    assert workers.options[2] == workers.options[1]


def test_a_killed_worker_starts_as_it_was(stage, kit) -> None:
    """A kill says nothing of memory: nothing is made smaller."""
    supervisor, workers = stage.open(kit.Life(5, kit.died()), kit.Life())
    kit.see(supervisor)
    assert workers.options[0] == workers.options[1]


def test_a_rung_that_changes_numbers_is_degraded(stage, kit, monkeypatch) -> None:
    """Keys and values in 8 bits may change what follows: the `Switch` and the end say so."""
    engine = dataclasses.replace(kit.SessionOptions().engine, n_batch=64)
    supervisor, workers = stage.open(kit.Life(5, kit.oom()), kit.Life(), engine=engine)
    seen = kit.see(supervisor)
    assert workers.options[1].engine.kv_type == "q8_0"
    assert seen.of(Switch)[0].degraded
    assert seen.done.degraded
    assert stage.records()[0].degraded


def test_two_deaths_for_memory_rest_the_model(stage, kit) -> None:
    """The next answer, and the next program, is refused at once with what to do about it."""
    supervisor, workers = stage.open(kit.Life(2, kit.oom()), kit.Life(4, kit.oom()))
    with pytest.raises(OutOfMemory) as caught:
        supervisor.generate(kit.ASKED)
    assert caught.value.exit_code == 4
    assert "edgellm plan" in caught.value.hint
    refused = kit.see(supervisor).last
    assert isinstance(refused, Failure)
    assert (refused.code, refused.exit) == ("no_route", 6)
    assert "breaker reset" in refused.message
    assert len(workers.options) == 2


def test_an_error_of_the_engine_takes_a_rung(stage, kit) -> None:
    """A fatal decode is tried again lower; what the user got wrong is not tried again."""
    supervisor, workers = stage.open(kit.Life(3, EngineFailed("gave -3")), kit.Life())
    assert kit.see(supervisor).text == WHOLE
    assert workers.started[0].ending.asked == "kill"
    supervisor, workers = stage.open(kit.Life(0, UsageError("no")), kit.Life())
    with pytest.raises(UsageError):
        supervisor.generate(kit.ASKED)
    assert len(workers.started) == 1


def test_g9_a_prompt_that_is_too_long_is_an_error(stage, kit) -> None:
    """No silent truncation: prompt tokens used = prompt tokens given, or an error."""
    supervisor, workers = stage.open(kit.Life(0, PromptTooLong("9 tokens")), kit.Life())
    with pytest.raises(PromptTooLong):
        supervisor.generate(kit.ASKED)
    assert len(workers.started) == 1


@pytest.mark.parametrize("between", ["load", "idle"])
def test_deaths_outside_of_answers(stage, kit, between: str) -> None:
    """While the model is loaded, or between two answers: started again, and said."""
    supervisor, workers = stage.open(
        kit.Life(start=kit.died("context")) if between == "load" else kit.Life(), kit.Life()
    )
    if between == "idle":
        assert kit.see(supervisor).text == WHOLE
        workers.started[0].ending = kit.died("snapshot")
    seen = kit.see(supervisor)
    assert seen.text == WHOLE
    assert len(seen.of(Warn)) == 1
    assert "killed" in seen.of(Warn)[0].message


def test_g7_memory_while_loading_is_the_same_error(stage, kit) -> None:
    """A real allocation failure yields the same typed `OutOfMemory` at load as later."""
    with pytest.raises(OutOfMemory) as caught:
        stage.open(kit.Life(start=kit.oom("load")))
    assert caught.value.phase == "load"
    assert len(stage.workers.options) == 2


def test_memory_that_the_engine_could_not_have_takes_a_rung_too(stage, kit) -> None:
    """An error in place of a death: tried once lower, then it is raised."""
    supervisor, workers = stage.open(kit.Life(start=DoesNotFit("too big")), kit.Life())
    assert workers.options[0] != workers.options[1]
    seen = kit.see(supervisor)
    assert (seen.text, len(seen.of(Warn))) == (WHOLE, 1)


def test_a_crash_while_loading_is_not_repeated(stage, kit) -> None:
    """The file does it again: one process, one error."""
    with pytest.raises(WorkerDied, match="check the file"):
        stage.open(kit.Life(start=kit.died("load", returncode=-11)), kit.Life())
    assert len(stage.workers.options) == 1


def test_a_model_that_is_not_there(stage, kit, tmp_path) -> None:
    """As ever: not found, before any process is started."""
    with pytest.raises(ModelNotFound):
        stage.open(path=tmp_path / "none.gguf")


def test_what_cannot_fit_is_refused_with_ways(stage, kit, monkeypatch) -> None:
    """Nothing is started; the error names what is needed, what there is, and ways to fit."""
    from edgellm.runtime.supervising import preflight

    small = dataclasses.replace(preflight.machine(), available_bytes=70 << 20)
    monkeypatch.setattr(preflight, "machine", lambda: small)
    monkeypatch.setattr(descent, "available_bytes", lambda: 70 << 20)
    with pytest.raises(DoesNotFit) as caught:
        stage.open(n_ctx=8192)
    assert caught.value.need_bytes > caught.value.have_bytes
    assert "ways to fit" in caught.value.hint
    supervisor, _ = stage.open(n_ctx=8192, force=True)
    assert kit.see(supervisor).text == WHOLE


def test_warming_survives_one_death(stage, kit) -> None:
    """Reading a prefix is tried once more, then its error is raised."""
    supervisor, workers = stage.open(kit.Life(warm=kit.died("prefill")), kit.Life())
    assert supervisor.warm([Message("system", "Be kind.")]).code == "stored"
    assert len(workers.started) == 2
    supervisor, _ = stage.open(kit.Life(warm=kit.died("prefill")))
    with pytest.raises(WorkerDied):
        supervisor.warm([Message("system", "Be kind.")])


def test_warming_takes_a_rung_where_the_engine_had_no_memory(stage, kit) -> None:
    """It said so and lives: what is tried once more is smaller, as for an answer."""
    short = OutOfMemory("no memory for a buffer", phase="prefill")
    supervisor, workers = stage.open(kit.Life(warm=short), kit.Life())
    assert supervisor.warm([Message("system", "Be kind.")]).code == "stored"
    assert [options.engine.n_batch for options in workers.options] == [512, 128]


def test_what_the_engine_refuses_rests_nothing(stage, kit) -> None:
    """No process died: with what the error advises, it may be tried at once."""
    short = DoesNotFit("no memory for a buffer")
    with pytest.raises(DoesNotFit):
        stage.open(kit.Life(start=short), kit.Life(start=short), n_ctx=3000)
    supervisor, _ = stage.open(n_ctx=2800)
    assert kit.see(supervisor).text == WHOLE


def test_a_worker_that_falls_silent_is_ended(stage, kit, monkeypatch) -> None:
    """Silence beyond all measure is a stall: the worker is killed and the answer goes on."""
    from edgellm.policy import progress
    from edgellm.runtime.supervising import watching

    monkeypatch.setattr(watching, "LOOK_S", 0.02)
    monkeypatch.setattr(progress, "MIN_STALL_S", 0.1)
    monkeypatch.setattr(progress, "STALL_FACTOR", 0.0)
    monkeypatch.setattr(progress, "FIRST_SIGN_S", 0.1)
    supervisor, workers = stage.open(kit.Life(delay=threading.Event()), kit.Life())
    seen = kit.see(supervisor)
    assert seen.text == WHOLE
    assert "no sign of life" in seen.of(Warn)[0].message
    assert workers.started[0].ending.asked == "kill"


def test_a_worker_that_never_gets_ready_is_given_up(stage, kit, monkeypatch) -> None:
    """A load has a limit as well; the file that hangs once is not loaded again."""
    monkeypatch.setattr(place, "LOAD_LIMIT_S", 0.2)
    with pytest.raises(WorkerDied, match="stalled"):
        stage.open(kit.Life(loading=threading.Event()))
    assert len(stage.workers.options) == 1


def test_a_damaged_log_stops_answers(stage, kit) -> None:
    """No `Done` without a record: where none can be written, nothing is answered."""
    supervisor, workers = stage.open()
    kit.see(supervisor)
    log = stage.home / "records" / "audit.jsonl"
    log.write_bytes(log.read_bytes()[:-20])
    refused = kit.see(supervisor).last
    assert isinstance(refused, Failure)
    assert (refused.code, refused.exit) == ("records_damaged", 5)
    assert len(workers.started[0].journals) == 1


@pytest.mark.parametrize("mode", list(Mode))
def test_a_home_that_cannot_be_written_is_said(stage, kit, mode: Mode) -> None:
    """A read-only folder takes no record: what is made here is answered, and says so each time."""
    options = stage.cloud("http://127.0.0.1:9") | {"mode": mode}
    shutil.rmtree(stage.home / "records")
    (stage.home / "records").write_text("no folder")
    supervisor, _ = stage.open(**options)
    for _ in range(2):
        seen = kit.see(supervisor)
        assert (seen.text, seen.done.audit_id, seen.done.route) == (WHOLE, "", "local")
        assert "not in the audit log" in " ".join(warn.message for warn in seen.of(Warn))


def test_a_disk_that_fills_up_meanwhile_costs_the_record_alone(stage, kit, monkeypatch) -> None:
    """The text was shown, so its end is as well, with a warning before it."""
    supervisor, _ = stage.open()
    kit.see(supervisor)

    def full(*_: object) -> str:
        raise RecordsUnavailable("the disk is full")

    monkeypatch.setattr(AuditLog, "append", full)
    seen = kit.see(supervisor)
    assert (seen.text, seen.done.audit_id) == (WHOLE, "")
    assert "not in the audit log" in seen.of(Warn)[-1].message


def test_private_mode_never_asks_for_the_books_of_endpoints(stage, kit) -> None:
    """Not even a damaged consent is in the way of an answer that stays here."""
    (stage.home / "records").mkdir(parents=True)
    (stage.home / "records" / "consents.json").write_text("{")
    supervisor, _ = stage.open(mode=Mode.PRIVATE)
    assert kit.see(supervisor).text == WHOLE


def test_a_limit_of_tokens_holds_over_a_death(stage, kit) -> None:
    """What was made before the death counts."""
    supervisor, _ = stage.open(kit.Life(4, kit.died()), kit.Life())
    seen = kit.see(supervisor, Request((Message("user", "Why?"),), max_tokens=6))
    assert seen.text == "The answer comes in ten little "
    assert seen.done.usage.completion_tokens == 6
