"""One call of a worker at a time, with a process at the other end that does all that is wrong."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from edgellm.core import Done, Message, ModelInfo, Request, Token
from edgellm.errors import EngineFailed
from edgellm.runtime.session import SessionFacts
from edgellm.runtime.worker.channel import Channel
from edgellm.runtime.worker.ending import WorkerEnded
from edgellm.runtime.worker.handle import Worker
from edgellm.runtime.worker.messages import Opened

ROOT = Path(__file__).resolve().parents[4]
ASKED = Request((Message("user", "?"),))
FACTS = SessionFacts("engine", 1, 1, 1, 0, "f16", "off", "none", 0.0)
MODEL = ModelInfo("m.gguf", "llama", "m", 1, 1, 1, 1, 1, 1, 1, 1, {})
HEAD = f"""
import os, sys, threading, time
sys.path.insert(0, {str(ROOT)!r})
from edgellm.core import Done, Token, event_to_wire
from edgellm.runtime.session import SessionFacts
from edgellm.runtime.worker.frames import Sender, TokenMade, encode_token, read_frame
from edgellm.runtime.worker.messages import Cancel, StepMade, Stream, from_wire, to_wire
facts = SessionFacts("engine", 1, 1, 1, 0, "f16", "off", "none", 0.0)
orders, sender = os.fdopen(os.dup(0), "rb"), Sender(1)
def heard():
    frame = read_frame(orders)
    return os._exit(0) if frame is None else from_wire(frame)
def send(message):
    sender.send(to_wire(message))
def token(call, n):
    sender.put(encode_token(TokenMade(call, 9, n, "x")))
def end(call, text="", why="stop"):
    send(StepMade(call, "snapshot", (event_to_wire(Done(text, why)),), (), facts))
"""
ENDLESS = """
stopped = set()
def hear():
    while True:
        order = heard()
        if isinstance(order, Cancel):
            stopped.add(order.call)
        else:
            threading.Thread(target=answer, args=(order.call,)).start()
def answer(call):
    for n in range(10**6):
        if call in stopped:
            return end(call, "x" * n, "cancelled")
        token(call, n)
        time.sleep(0.0005)
hear()
"""


@pytest.fixture
def worker():
    """Hold a process of some Python text as a worker."""
    held = []

    def start(text: str) -> Worker:
        process = subprocess.Popen(
            [sys.executable, "-c", HEAD + text],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        held.append(Worker(Channel(process), Opened(MODEL, FACTS, ()), 1.0))
        return held[-1]

    yield start
    for one in held:
        one.kill()
        assert one._channel.ended.wait(5)


def _stopped(one: Worker) -> Done:
    """Begin an answer, cancel it, and return its end."""
    answer = one.stream(ASKED)
    assert next(answer).ids
    one.cancel()
    *_, last = answer
    assert isinstance(last.event, Done)
    return last.event


def test_garbage_collection_where_frames_are_read_stops_nothing(worker):
    """An answer collected in the thread that hears its worker ends there, and the next one comes."""
    one = worker(ENDLESS)
    channel = one._channel
    taken, collected = channel._take, threading.Event()

    def take(frame: Any) -> None:
        if gc.collect() and not answers:
            collected.set()
        taken(frame)

    gc.disable()
    try:
        answers = [one.stream(ASKED)]
        next(answers[0])
        cycle: list[Any] = [answers.pop()]
        cycle.append(cycle)
        del cycle
        channel._take = take  # type: ignore[method-assign]
        assert collected.wait(5)
    finally:
        gc.enable()
    channel._take = taken  # type: ignore[method-assign]
    assert _stopped(one).finish_reason == "cancelled"
    assert one.ending is None


def test_an_answer_given_up_in_the_wrong_thread_is_not_waited_for_in_vain(worker):
    """Where a worker does not end what was given up there, the next call ends the worker."""
    one = worker("call = heard().call\nfor n in range(10**6): token(call, n); time.sleep(0.001)")
    answer = one.stream(ASKED)
    next(answer)
    taken, closed = one._channel._take, threading.Event()

    def take(frame: Any) -> None:
        if not closed.is_set():
            answer.close()
            closed.set()
        taken(frame)

    one._channel._take = take  # type: ignore[method-assign]
    assert closed.wait(2)
    begun_s = time.monotonic()
    with pytest.raises(WorkerEnded) as ended:
        list(one.stream(ASKED))
    assert ended.value.ending.asked == "cancel"
    assert time.monotonic() - begun_s < 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks of POSIX")
def test_a_forked_process_drops_a_half_read_answer_at_once(worker):
    """Only the process that started a worker ends its answers."""
    one = worker(ENDLESS)
    answer = one.stream(ASKED)
    next(answer)
    child = os.fork()
    if not child:
        answer.close()
        os._exit(7)
    deadline_s = time.monotonic() + 5
    while not (done := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > deadline_s:
            os.kill(child, 9)
        time.sleep(0.01)
    assert os.waitstatus_to_exitcode(done[1]) == 7
    assert next(answer).ids
    answer.close()
    assert _stopped(one).finish_reason == "cancelled"


def test_an_answer_that_ends_without_a_result_is_an_error(worker):
    """A last message with no `Done` in it is not taken for the end of an answer."""
    one = worker("call = heard().call; send(StepMade(call, 'decode', (), (), facts)); heard()")
    with pytest.raises(EngineFailed, match="without a result"):
        list(one.stream(ASKED))


def test_what_comes_twice_or_for_another_call_is_dropped(worker):
    """Late and repeated messages of one call do not show up in the next."""
    one = worker(
        "for call in (1, 2):\n"
        "    assert heard().call == call\n"
        "    token(call + 1, 5); token(call - 1, 6)\n"
        "    token(call, 0); end(call, 'x'); end(call, 'x'); token(call, 1)\n"
        "heard()"
    )
    for _ in range(2):
        steps = list(one.stream(ASKED))
        assert [Token(0, "x")] == [s.event for s in steps if isinstance(s.event, Token)]
        assert isinstance(steps[-1].event, Done)
        assert len(steps) == 2


def test_a_cancel_that_comes_too_late_is_not_held_against_the_next_call(worker):
    """A worker is not killed for a cancel of a call that had ended."""
    one = worker(
        "call = heard().call; end(call)\n"
        "while (order := heard()).type != 'stream': pass\n"
        "time.sleep(2.3); token(order.call, 0); end(order.call, 'x'); heard()"
    )
    list(one.stream(ASKED))
    answer = one.stream(ASKED)
    one._calls.send_cancel(1)  # as another thread does that was held up in between
    assert [type(step.event) for step in answer] == [Token, Done]


@pytest.mark.parametrize("stop", ["SIGSTOP", "deaf"])
def test_a_worker_that_stands_still_is_killed_for_a_cancel(worker, stop):
    """Neither a stopped process nor one that closed its pipe for orders is waited for."""
    one = worker("call = heard().call; token(call, 0); os.close(0); orders.close(); time.sleep(60)")
    answer = one.stream(ASKED)
    next(answer)
    if stop == "SIGSTOP":
        import signal

        os.kill(one.pid, signal.SIGSTOP)
    one.cancel()
    begun_s = time.monotonic()
    with pytest.raises(WorkerEnded):
        list(answer)
    assert time.monotonic() - begun_s < 4
