"""The program's side of the pipes, with processes at the other end that do all that is wrong."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from edgellm.runtime.worker.channel import Channel
from edgellm.runtime.worker.ending import Ending
from edgellm.runtime.worker.frames import (
    HEADER,
    JSON_KIND,
    MAX_SAID_BYTES,
    encode_json,
    encode_raw,
)
from edgellm.runtime.worker.messages import Cancel, StepMade, TierCall, to_wire
from edgellm.runtime.worker.tail import TAIL_BYTES


@pytest.fixture
def channel():
    """Start a program of some Python text, and hold it as a worker."""
    held = []

    def start(text: str, **options: Any) -> Channel:
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", "import os, sys, time\n" + text],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        held.append(Channel(process, **options))
        return held[-1]

    yield start
    for one in held:
        one.kill("kill")
        assert one.ended.wait(5)


def _ending(channel: Channel) -> Ending:
    while not isinstance(message := channel.next(10), Ending):
        assert message is not None, "nothing came"
    return message


def _sending(*frames: bytes, then: str = "") -> str:
    return f"os.write(1, {b''.join(frames)!r})\n{then}"


STEP = encode_json(to_wire(StepMade(1, "prefill")))


def test_an_end_without_a_word_is_told(channel):
    """A process that only ends is known by its exit code, at once and again."""
    one = channel("sys.exit(3)")
    ending = _ending(one)
    assert (3, "load", "", "", "") == (
        *(ending.returncode, ending.phase, ending.stderr_tail, ending.damage, ending.asked),
    )
    assert ending is one.next(1)
    assert ending is one.ending


def test_a_signal_is_told_with_the_phase_and_the_last_words(channel):
    """Of a process that was killed it is known what it was doing and what it wrote to stderr."""
    text = _sending(STEP, then="os.write(2, b'cudaMalloc failed\\n'); os.kill(os.getpid(), 9)")
    ending = _ending(channel(text))
    assert (-9, "prefill", "cudaMalloc failed\n") == (
        *(ending.returncode, ending.phase, ending.stderr_tail),
    )


def test_the_last_frame_says_what_could_not_be_gone_on_after(channel):
    """A `MemoryError` in the worker is in the ending."""
    frame = encode_json({"type": "broke", "exception": "MemoryError: 96 MiB"})
    ending = _ending(channel(_sending(frame, then="sys.exit(70)")))
    assert (70, "MemoryError: 96 MiB") == (ending.returncode, ending.exception)


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (b"\xff" * 64, "unknown kind 255"),
        (b"\xff\xff\xff\xff\1", "4294967295 bytes"),
        (STEP[:-3], "into a frame"),
        (STEP[:3], "into the head"),
        (encode_json({"type": "eval", "code": "1"}), "no message is called"),
        (encode_json({"type": "step", "call": "x", "phase": "load"}), "whole number"),
        (encode_json({"type": "step", "call": 1, "phase": "asleep"}), "must be one of"),
        (encode_raw(16, b"x")[0], "shared tier that there is not"),
        (encode_json(to_wire(TierCall(16, "size", "n"))), "shared tier that there is not"),
    ],
)
def test_what_is_no_frame_ends_the_worker(channel, sent, told):
    """A process that sends nonsense is killed, and its ending says what was wrong."""
    ending = _ending(channel(_sending(sent, then="os.close(1); time.sleep(60)")))
    assert told in ending.damage
    assert ending.returncode == -9
    assert ending.asked == "damage"


def test_a_process_that_closes_its_pipe_and_goes_on_is_killed(channel):
    """Nobody waits for ever for a process that cannot be heard."""
    started_s = time.monotonic()
    ending = _ending(channel("os.close(1); time.sleep(60)"))
    assert ending.returncode == -9
    assert time.monotonic() - started_s < 2.5


def test_stderr_is_read_to_its_end_and_only_the_last_of_it_kept(channel):
    """A process that writes much is not held up, and 8 KiB are kept, whatever the lines are."""
    text = "for n in range(40000): os.write(2, b'line %06d\\n' % n)\nos.write(2, b'x' * 100000)"
    ending = _ending(channel(text))
    assert len(ending.stderr_tail) == TAIL_BYTES
    assert set(ending.stderr_tail) == {"x"}
    assert ending.returncode == 0


def test_each_line_of_stderr_is_told_as_it_comes(channel):
    """A listener hears lines, also such as are no text."""
    heard: list[str] = []
    one = channel("os.write(2, b'one\\n\\xff two\\nthree')", listener=heard.append)
    _ending(one)
    assert ["one", "\ufffd two", "three"] == heard


def test_what_holds_stderr_open_does_not_hold_up_the_end(channel):
    """Something that the worker started and that lives on delays its ending by little."""
    started_s = time.monotonic()
    text = (
        "import subprocess\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3)'],"
        " stdout=subprocess.DEVNULL)\nos._exit(4)"
    )
    assert _ending(channel(text)).returncode == 4
    assert time.monotonic() - started_s < 2.5


def test_orders_to_a_process_that_does_not_read_hold_nobody_up(channel):
    """Sending never waits, however full the pipe is."""
    one = channel("time.sleep(60)")
    started_s = time.monotonic()
    for n in range(5000):
        one.send(Cancel(n))
    assert time.monotonic() - started_s < 2
    one.kill("kill")
    assert _ending(one).asked == "kill"


def test_nothing_comes_before_its_time(channel):
    """Waiting with a limit ends without a message."""
    assert channel("time.sleep(60)").next(0.01) is None


def test_a_listener_that_fails_does_not_stop_the_reading_of_stderr(channel, monkeypatch):
    """A worker goes on although whoever listens to it raised; what was raised is told."""
    told: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: told.append(args.exc_type))

    def listen(line: str) -> None:
        raise LookupError(line)

    text = "for n in range(40000): os.write(2, b'line %06d\\n' % n)\nsys.exit(5)"
    ending = _ending(channel(text, listener=listen))
    assert (5, "line 039999\n") == (ending.returncode, ending.stderr_tail[-12:])
    assert told == [LookupError]


def test_a_process_that_closes_its_pipe_for_orders_and_goes_on_is_killed(channel):
    """Nobody waits for ever for a process that hears nothing."""
    one = channel("os.close(0); time.sleep(60)")
    time.sleep(0.1)
    one.send(Cancel(1))
    ending = _ending(one)
    assert (-9, "damage") == (ending.returncode, ending.asked)
    assert "pipe for orders" in ending.damage


@pytest.mark.parametrize("error", [MemoryError(), OSError(9, "Bad file descriptor"), LookupError()])
def test_whatever_goes_wrong_while_reading_the_ending_comes(channel, monkeypatch, error):
    """Nobody waits in vain where this program itself cannot read what was sent."""
    told = threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda _: told.set())

    def fail(*_: object) -> None:
        raise error

    one = channel("sys.stdin.read(1)\n" + _sending(STEP, then="time.sleep(60)"))
    monkeypatch.setattr(Channel, "_take", fail)
    one.put(b"go")
    ending = _ending(one)
    assert (-9, "damage") == (ending.returncode, ending.asked)
    assert ending.damage
    assert told.wait(5 if isinstance(error, LookupError) else 0) == isinstance(error, LookupError)


def test_a_frame_longer_than_a_worker_has_to_say_is_not_read(channel):
    """What would grow to gigabytes when it is read is refused by its length."""
    head = HEADER.pack(MAX_SAID_BYTES + 1, JSON_KIND)
    assert "at most" in _ending(channel(_sending(head, then="time.sleep(60)"))).damage
