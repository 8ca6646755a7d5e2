"""Threads that begin, or are an error: whoever starts one is never left waiting."""

from __future__ import annotations

import _thread
import os
import subprocess
import sys
import threading
from typing import Any

import pytest

from edgellm.threads import Started


def test_work_is_done_in_another_thread_and_can_be_waited_for() -> None:
    """It is alive until then, and waiting for it has a limit."""
    gate, seen = threading.Event(), []
    thread = Started(lambda: (gate.wait(), seen.append(threading.get_ident())), "some work")
    assert thread.is_alive
    assert not thread.join(0.01)
    gate.set()
    assert thread.join(10)
    assert thread.join()
    assert not thread.is_alive
    assert seen != [threading.get_ident()]


def test_a_thread_that_begins_late_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no reason to give one up; nor is one that has done all by then."""
    real = _thread.start_new_thread

    def late(run: Any, given: tuple[Any, ...]) -> int:
        def wait(*given: Any) -> None:
            threading.Event().wait(0.1)
            run(*given)

        return real(wait, given)

    monkeypatch.setattr(_thread, "start_new_thread", late)
    seen: list[int] = []
    assert Started(lambda: seen.append(1), "late").join(10)
    assert seen == [1]


def test_a_thread_that_dies_before_it_begins_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where there is no memory for its first frame: `threading` would wait for ever."""
    seen: list[int] = []
    monkeypatch.setattr(_thread, "start_new_thread", lambda _run, _given: 1)
    with pytest.raises(RuntimeError, match="no memory"):
        Started(lambda: seen.append(1), "dead")
    assert seen == []


def test_what_a_thread_cannot_do_without_fails_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is done in the thread, and before its work."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)

    class Unprepared(Started):
        def prepare(self) -> None:
            raise MemoryError

    with pytest.raises(RuntimeError, match="no memory"):
        Unprepared(lambda: None, "unprepared")


def test_what_the_work_raises_goes_to_the_hook_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """And ends that thread alone; leaving it is no error."""
    told: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", lambda given: told.append(given.exc_value))
    error = MemoryError("none left")

    def fail(err: BaseException) -> None:
        raise err

    assert Started(lambda: fail(error), "fails").join(10)
    assert Started(lambda: fail(SystemExit()), "leaves").join(10)
    assert told == [error]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_waits_for_no_thread_of_its_parent() -> None:
    """There it does not run, and would never end."""
    gate = threading.Event()
    thread = Started(gate.wait, "parent's")
    child = os.fork()
    if not child:
        os._exit(0 if thread.join(20) and not thread.is_alive else 1)
    assert os.waitpid(child, 0)[1] == 0
    gate.set()
    assert thread.join(10)


TIGHT = """
import resource, sys, threading
from edgellm.threads import Started
threading.stack_size(64 << 10)
sys.unraisablehook = lambda _: None
pages = int(open("/proc/self/statm").read().split()[0])
size = pages * resource.getpagesize()
for room in range(0, 400, 4):
    done = []
    resource.setrlimit(resource.RLIMIT_AS, (size + (room << 10), -1))
    try:
        thread = Started(lambda: done.append(1), "tight")
        ended, outcome = thread.join(10), bool(done)
    except (RuntimeError, MemoryError) as err:
        ended, outcome = True, type(err).__name__
    resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
    print(room, ended, outcome, flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of the address space are Linux's")
def test_a_real_want_of_memory_is_an_error_or_none() -> None:
    """However little there is: a thread that begins, or an error; nobody waits."""
    done = subprocess.run(
        [sys.executable, "-c", TIGHT], capture_output=True, text=True, timeout=60, check=False
    )
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len(lines) == 100, done.stderr
    assert all(ended == "True" for _, ended, _ in lines)
    assert {outcome for *_, outcome in lines} >= {"RuntimeError", "True"}
