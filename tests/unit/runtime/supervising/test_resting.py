"""Breakers as an answer meets them: a rest is said at once, and ends with a careful try."""

from __future__ import annotations

import time
from typing import Any

import pytest

from edgellm.core import Failure, Mode, Switch, Warn
from edgellm.errors import NoRoute, OutOfMemory, PromptTooLong
from edgellm.runtime.books.breakers import BreakerBook
from edgellm.runtime.supervising import here

WHOLE = "The answer comes in ten little words , so it is . "


def rests(stage: Any, kit: Any, **options: Any) -> None:
    """Let memory run out twice."""
    supervisor, _ = stage.open(kit.Life(0, kit.oom()), kit.Life(0, kit.oom()), **options)
    with pytest.raises(OutOfMemory):
        supervisor.generate(kit.ASKED)


def test_both_at_rest_are_said_at_once(stage, kit, endpoint_server) -> None:
    """No route here or there: an error with both reasons and a remedy, within 50 ms."""
    with endpoint_server.serving(lambda line: line.reply(401, "{}")) as server:
        options = stage.cloud(server.url)
        rests(stage, kit, **options)
        with pytest.raises(NoRoute) as caught:
            stage.open(kit.Life(), **options)
        assert len(caught.value.reasons) == 2
        assert "breaker reset" in caught.value.hint
        supervisor = stage.opened[0]
        took_s = []
        for _ in range(5):
            began_s = time.perf_counter()
            assert isinstance(kit.see(supervisor).last, Failure)
            took_s.append(time.perf_counter() - began_s)
    assert min(took_s) < 0.05
    assert len(server.asked) == 1


def test_a_rest_is_of_one_model_and_outlives_the_program(stage, kit) -> None:
    """Another session of the same file is refused before it starts a process."""
    rests(stage, kit)
    with pytest.raises(NoRoute, match="rests") as caught:
        stage.open(kit.Life())
    ways = "`--force` (`force=True`), or `edgellm breaker reset`"
    assert caught.value.hint in [f"wait {n} s, or {ways}" for n in range(50, 61)]
    assert not stage.workers.options


def test_a_rest_ends_with_a_warm_up(stage, kit) -> None:
    """After it, and two looks at free memory, something harmless is decoded before the prompt."""
    rests(stage, kit)
    at_s = time.time() + 100
    book = BreakerBook(stage.home, clock=lambda: at_s)
    (key,) = book.show().local
    assert book.note_look(key, fits=True) == "open"
    at_s += 10
    assert book.note_look(key, fits=True) == "half_open"
    supervisor, workers = stage.open(kit.Life())
    assert kit.see(supervisor).text == WHOLE
    assert len(workers.started[0].journals) == 2  # the harmless one first
    assert not book.show().local
    assert kit.see(supervisor).text == WHOLE
    assert len(workers.started[0].journals) == 3


def test_force_tries_what_rests(stage, kit) -> None:
    """Who insists is not sent to reset a breaker: the careful try is made now, and its end counts."""
    rests(stage, kit)
    supervisor, workers = stage.open(kit.Life(), force=True)
    assert kit.see(supervisor).text == WHOLE
    assert len(workers.started[0].journals) == 2  # something harmless first
    assert not BreakerBook(stage.home).show().local  # it works: nobody else has to insist


def test_force_that_fails_again_lets_it_rest_longer(stage, kit) -> None:
    """An error of memory as before, and the next one who does not insist is refused."""
    rests(stage, kit)
    supervisor, _ = stage.open(kit.Life(0, kit.oom()), force=True)
    with pytest.raises(OutOfMemory):
        supervisor.generate(kit.ASKED)
    with pytest.raises(NoRoute, match="rests"):
        stage.open(kit.Life())


def test_a_living_worker_is_not_at_rest(stage, kit) -> None:
    """One that was started lower and works is used, whatever the breaker says of new ones."""
    rests(stage, kit)
    supervisor = stage.opened[0]
    supervisor._place._worker = kit.FakeWorker(kit.Life(), kit.SessionOptions(), pid=9)
    assert kit.see(supervisor).text == WHOLE


def test_c1_a_prompt_that_is_too_long_here_goes_out(stage, kit, endpoint_server) -> None:
    """Never truncated: where the endpoint may be asked it is, with the whole prompt."""

    def handle(line: Any) -> None:
        line.stream(kit.chunk("Long."), kit.chunk(finish="stop"), kit.USAGE)

    with endpoint_server.serving(handle) as server:
        supervisor, _ = stage.open(
            kit.Life(0, PromptTooLong("9999 tokens")), **stage.cloud(server.url)
        )
        seen = kit.see(supervisor)
    assert (seen.text, len(seen.of(Switch))) == ("Long.", 1)
    assert stage.records()[0].trigger == "context"
    assert server.asked[0].json()["messages"] == [{"role": "user", "content": "Why?"}]


def test_m5_pressure_goes_out_only_with_a_deadline(
    stage, kit, endpoint_server, monkeypatch
) -> None:
    """Memory pressure alone is a warning; with a deadline set the endpoint takes over."""
    import threading

    from edgellm.hw.pressure import Pressure
    from edgellm.runtime.supervising import watching

    monkeypatch.setattr(watching, "LOOK_S", 0.02)
    monkeypatch.setattr(watching, "read_pressure", lambda _: Pressure(90.0, 60.0))

    def handle(line: Any) -> None:
        line.stream(kit.chunk("Far."), kit.chunk(finish="stop"), kit.USAGE)

    with endpoint_server.serving(handle) as server:
        options = stage.cloud(server.url)
        gate = threading.Event()
        threading.Timer(0.3, gate.set).start()
        supervisor, _ = stage.open(kit.Life(delay=gate), **options)
        seen = kit.see(supervisor)
        assert seen.text == WHOLE
        assert any(event.message == here._SLOW for event in seen.of(Warn))
        supervisor, _ = stage.open(
            kit.Life(delay=threading.Event()), **options | {"deadline_s": 60.0}
        )
        assert kit.see(supervisor).text == "Far."
        assert stage.records()[-1].trigger == "pressure"


def test_an_administrators_lock_closes_the_endpoint(stage, kit, monkeypatch) -> None:
    """`EDGELLM_OFFLINE` and the lock are stricter than what a program asks for."""
    monkeypatch.setenv("EDGELLM_OFFLINE", "1")
    supervisor, _ = stage.open(**stage.cloud("http://127.0.0.1:9"))
    assert supervisor._chooser._options.mode is Mode.OFFLINE
    assert supervisor._there is None
