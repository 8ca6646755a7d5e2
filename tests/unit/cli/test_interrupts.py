"""Ctrl-C as a request."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from edgellm.cli.interrupts import Terminated, interrupts, orderly_end, raise_swallowed


def test_asks_while_the_main_thread_waits_for_another() -> None:
    """A main thread that waits for an engine's thread still takes the signal."""
    asked = threading.Event()
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
    with interrupts(asked.set), ThreadPoolExecutor(1) as pool:
        assert pool.submit(asked.wait, 30).result()


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
    """Handler and threads are those of before."""
    before = signal.getsignal(signal.SIGINT), threading.active_count()
    for _ in range(3):
        with interrupts(lambda: None):
            pass
    assert (signal.getsignal(signal.SIGINT), threading.active_count()) == before


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


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)]
)
def test_what_a_library_has_caught_is_raised_later(number: int, error: type[BaseException]) -> None:
    """Handlers may run inside code that shows every error and goes on; once is enough."""
    with orderly_end():
        raise_swallowed()
        with contextlib.suppress(KeyboardInterrupt, Terminated):
            signal.raise_signal(number)
        with pytest.raises(error):
            raise_swallowed()
        raise_swallowed()
        with contextlib.suppress(KeyboardInterrupt, Terminated):
            signal.raise_signal(number)
    with orderly_end():
        raise_swallowed()
