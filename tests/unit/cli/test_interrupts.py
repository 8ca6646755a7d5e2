"""Ctrl-C as a request."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
import time

import pytest

from edgellm.cli.interrupts import interrupts


def test_asks_while_the_main_thread_is_inside_a_library() -> None:
    """The request does not wait for a long call of C code to return."""
    asked_s: list[float] = []
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
    with interrupts(lambda: asked_s.append(time.monotonic())):
        end_s = time.monotonic() + 0.5
        while time.monotonic() < end_s or not asked_s:
            hashlib.pbkdf2_hmac("sha256", b"", b"", 400_000)  # no bytecode runs for that long
            returned_s = time.monotonic()
            if asked_s:
                break
    assert returned_s - asked_s[0] > 0.02


def test_goes_on_asking() -> None:
    """A request that came a moment too early is made again."""
    asked = threading.Semaphore(0)
    with interrupts(asked.release):
        signal.raise_signal(signal.SIGINT)
        assert all(asked.acquire(timeout=10) for _ in range(4))


def test_second_one_breaks_off() -> None:
    """Who presses twice does not want to wait."""
    asked: list[int] = []

    def press_twice() -> None:
        with interrupts(lambda: asked.append(1)):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        press_twice()
    assert asked


def test_leaves_everything_as_it_was() -> None:
    """Handler, wakeup descriptor and threads are those of before."""
    before = signal.getsignal(signal.SIGINT), threading.active_count()
    for _ in range(3):
        with interrupts(lambda: None):
            pass
    assert (signal.getsignal(signal.SIGINT), threading.active_count()) == before
    assert signal.set_wakeup_fd(-1) == -1


def test_other_threads_are_left_alone() -> None:
    """Outside the main thread no handler can be set: the block runs all the same."""
    ran: list[bool] = []

    def work() -> None:
        with interrupts(lambda: None):
            ran.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert ran == [True]
