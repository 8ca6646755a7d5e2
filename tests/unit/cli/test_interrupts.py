"""Ctrl-C as a request."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from edgellm.cli.interrupts import (
    Interrupted,
    Terminated,
    interrupts,
    orderly_end,
    raise_swallowed,
)


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


def test_what_is_raised_later_is_not_shown_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody can raise it, as in a callback of an import, a signal's error is kept quiet."""

    class Ending:
        def __init__(self, error: BaseException) -> None:
            self.error = error

        def __del__(self) -> None:
            raise self.error

    shown: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda told: shown.append(told.exc_type))
    hook = sys.unraisablehook
    with orderly_end():
        Ending(Terminated(signal.SIGTERM))
        Ending(Interrupted())
        assert shown == []
        Ending(ValueError())
    assert shown == [ValueError]
    assert sys.unraisablehook is hook
