"""Cancels, closings and readers that leave: nothing of it is a failure, and nothing goes elsewhere."""

from __future__ import annotations

import threading
import time

import pytest

from edgellm.core import Done, Switch, Token, Warn
from edgellm.errors import EngineFailed, UsageError


def cancel_soon(supervisor, after_s: float = 0.1) -> threading.Thread:
    thread = threading.Timer(after_s, supervisor.cancel)
    thread.start()
    return thread


def test_g16_a_cancel_ends_the_answer_and_causes_no_fallback(stage, kit) -> None:
    """User cancel never causes a fallback and frees the slot in <= 300 ms."""
    supervisor, workers = stage.open(kit.Life(delay=threading.Event()))
    events = supervisor.stream(kit.ASKED)
    thread = cancel_soon(supervisor)
    seen = kit.Seen(list(events))
    thread.join()
    assert seen.done.finish_reason == "cancelled"
    assert not seen.of(Switch)
    assert not seen.of(Warn)
    assert len(workers.started) == 1
    assert [record.finish for record in stage.records()] == ["cancelled"]


def test_g16_a_worker_that_dies_of_a_cancel_is_no_failure(stage, kit) -> None:
    """It did not hear the cancel and was killed for it: the answer is cancelled, not failed."""
    supervisor, workers = stage.open(kit.Life(5, kit.died()), kit.Life())
    events = supervisor.stream(kit.ASKED)
    first = [next(events) for _ in range(5)]
    supervisor.cancel()
    workers.started[0].cancelled.clear()  # it hears nothing
    seen = kit.Seen([*first, *events])
    assert seen.done.finish_reason == "cancelled"
    assert seen.done.text == seen.text
    assert len(workers.started) == 1


def test_a_cancel_while_the_worker_is_started_again_ends_at_once(stage, kit) -> None:
    """The reader does not wait for a model to load that nobody wants; the next answer takes it."""
    loading = threading.Event()
    supervisor, workers = stage.open(kit.Life(3, kit.died()), kit.Life(loading=loading))
    events = supervisor.stream(kit.ASKED)
    thread = cancel_soon(supervisor, 0.2)
    began_s = time.monotonic()
    seen = kit.Seen(list(events))
    thread.join()
    assert time.monotonic() - began_s < 1.5
    assert seen.done.finish_reason == "cancelled"
    assert seen.done.text == seen.text == "The answer comes "
    loading.set()
    assert len(kit.see(supervisor).text) > 20
    assert len(workers.started) == 2


def test_a_cancel_before_the_first_event_counts(stage, kit) -> None:
    """From the call on, begun or not."""
    supervisor, _ = stage.open()
    events = supervisor.stream(kit.ASKED)
    supervisor.cancel()
    assert kit.Seen(list(events)).done.finish_reason == "cancelled"
    assert kit.see(supervisor).done.finish_reason == "stop"


def test_a_reader_that_leaves_is_written_down(stage, kit) -> None:
    """Closing the iterator ends the answer; its record says so, and the session goes on."""
    supervisor, _ = stage.open()
    events = supervisor.stream(kit.ASKED)
    assert isinstance(next(events), Token)
    events.close()  # type: ignore[attr-defined]  # it is a generator
    assert [record.finish for record in stage.records()] == ["given_up"]
    assert kit.see(supervisor).done.finish_reason == "stop"


def test_one_answer_at_a_time(stage, kit) -> None:
    """A second request meanwhile is refused, and does not disturb the first."""
    supervisor, _ = stage.open()
    events = supervisor.stream(kit.ASKED)
    next(events)
    with pytest.raises(UsageError, match="another answer"):
        supervisor.generate(kit.ASKED)
    assert isinstance(list(events)[-1], Done)


def test_closing_ends_what_runs(stage, kit) -> None:
    """From another thread: the answer ends in order, later ones are refused."""
    supervisor, workers = stage.open(kit.Life(delay=threading.Event()))
    events = supervisor.stream(kit.ASKED)
    thread = threading.Timer(0.1, supervisor.close)
    thread.start()
    seen = kit.Seen(list(events))
    thread.join()
    assert seen.done.finish_reason == "cancelled"
    assert workers.started[0].is_closed
    with pytest.raises(EngineFailed, match="closed"):
        supervisor.generate(kit.ASKED)


def test_closing_while_the_worker_is_started_again(stage, kit) -> None:
    """What was on its way is ended as soon as it is there; nothing is left behind."""
    loading = threading.Event()
    supervisor, workers = stage.open(kit.Life(3, kit.died()), kit.Life(loading=loading))
    events = supervisor.stream(kit.ASKED)
    thread = threading.Timer(0.1, supervisor.close)
    thread.start()
    assert kit.Seen(list(events)).done.finish_reason == "cancelled"
    thread.join()
    loading.set()
    deadline_s = time.monotonic() + 2
    while len(workers.started) < 2 or workers.started[1].ending is None:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_closing_while_a_worker_is_started_anew_is_a_cancel(stage, kit) -> None:
    """A session that is closed behind a death ends the answer as cancelled, and leaves no worker."""
    anew = threading.Event()
    killed = kit.Life(start=kit.died("load"), loading=anew)  # as it is when its process is ended
    supervisor, workers = stage.open(kit.Life(3, kit.died()), killed)
    events = supervisor.stream(kit.ASKED)
    seen = [next(events) for _ in range(3)]

    def close() -> None:
        supervisor.close()
        anew.set()

    thread = threading.Timer(0.1, close)
    thread.start()
    seen += events
    thread.join()
    assert kit.Seen(seen).done.finish_reason == "cancelled"
    assert all(worker.ending is not None for worker in workers.started)


def test_a_worker_that_comes_behind_a_close_is_ended(stage, kit) -> None:
    """A session that is closed in the moment before a worker is started holds none in the end."""
    supervisor, workers = stage.open(kit.Life(3, kit.died()), kit.Life())
    place = supervisor._place
    begin = place._check_fit

    def close_first(cancelled) -> None:
        begin(cancelled)
        supervisor.close()

    place._check_fit = close_first
    assert kit.see(supervisor).done.finish_reason == "cancelled"
    assert all(worker.ending is not None for worker in workers.started)
