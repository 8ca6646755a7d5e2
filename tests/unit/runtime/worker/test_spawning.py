"""Starting processes where the system has no more threads, and where an interrupt comes."""

from __future__ import annotations

import _thread
import contextlib
import os
import subprocess
import sys
import time
from typing import Any

import pytest

from edgellm.errors import EngineUnavailable
from edgellm.runtime.worker import spawning
from edgellm.runtime.worker.channel import Channel, put_down
from edgellm.runtime.worker.spawning import Spawner

SLEEPS = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]


@pytest.fixture
def sleeping(monkeypatch):
    """Let every worker be a program that sleeps, and give those that were started."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> Any:
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(SLEEPS, stdin=pipe, stdout=pipe, stderr=pipe))
        return started[-1]

    monkeypatch.setattr(spawning, "_start", start)
    yield started
    for process in started:
        put_down(process)


@pytest.fixture
def no_threads(monkeypatch):
    """Let threads not start, as where a user may have no more; from the n-th on."""
    real, left = _thread.start_new_thread, [0]

    def start(*given: Any) -> int:
        left[0] -= 1
        if left[0] < 0:
            raise RuntimeError("can't start new thread")
        return real(*given)

    def allow(n: int) -> None:
        left[0] = n
        monkeypatch.setattr(_thread, "start_new_thread", start)

    yield allow
    monkeypatch.setattr(_thread, "start_new_thread", real)


def test_a_thread_that_cannot_be_started_is_an_error_each_time(no_threads, sleeping):
    """Where no thread can be started nobody waits for it, and later it is tried again."""
    spawner = Spawner()
    no_threads(0)
    for _ in range(2):
        with pytest.raises(EngineUnavailable, match="thread"):
            spawner.spawn()
    no_threads(1)
    assert spawner.spawn().pid


@pytest.mark.parametrize("n_threads", [0, 1, 2])
def test_a_worker_that_cannot_be_heard_is_ended(no_threads, sleeping, n_threads):
    """Where the threads at its pipes cannot all be started, no process is left behind."""
    process = spawning._start()
    no_threads(n_threads)
    with pytest.raises(EngineUnavailable, match="thread"):
        Channel(process)
    assert process.returncode == -9


def test_whatever_a_start_fails_with_the_next_one_is_tried(monkeypatch, sleeping):
    """An error that nobody foresaw is the caller's, and does not end the thread that starts."""
    spawner, real = Spawner(), spawning._start

    def fail() -> Any:
        raise ValueError("embedded null byte")

    monkeypatch.setattr(spawning, "_start", fail)
    with pytest.raises(ValueError, match="null"):
        spawner.spawn()
    monkeypatch.setattr(spawning, "_start", real)
    assert spawner.spawn().pid


def test_an_interrupt_while_a_worker_starts_leaves_none_behind(monkeypatch, sleeping):
    """Ctrl-C between the wish for a process and its start ends the process."""
    real = spawning._start

    def slow() -> Any:
        os.kill(os.getpid(), 2)
        time.sleep(0.1)
        return real()

    monkeypatch.setattr(spawning, "_start", slow)
    with pytest.raises(KeyboardInterrupt):
        Spawner().spawn()
    deadline_s = time.monotonic() + 5
    while not sleeping or sleeping[0].returncode is None:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    assert sleeping[0].returncode == -9


def test_a_worker_started_ahead_is_the_one_that_is_given(sleeping):
    """What was started while something else was done is taken first, once."""
    spawner = Spawner()
    with spawner.ahead():
        first, second = spawner.spawn(), spawner.spawn()
    assert sleeping == [first, second]
    assert first.poll() is second.poll() is None


@pytest.mark.parametrize("error", [None, OSError])
def test_a_worker_started_ahead_that_nobody_takes_is_ended(sleeping, error):
    """Where the model is refused, or another holds it, no process is left behind."""
    spawner = Spawner()
    with contextlib.suppress(OSError), spawner.ahead():
        while not sleeping:
            time.sleep(0.001)
        if error is not None:
            raise error
    (process,) = sleeping
    assert process.wait(5) == -9
    assert spawner.spawn() is sleeping[1]


def test_a_start_ahead_that_fails_is_told_where_the_worker_is_wanted(monkeypatch, no_threads):
    """Neither a missing thread nor a refused process ends the block; `spawn` says what it was."""

    def start() -> Any:
        raise OSError(12, "Cannot allocate memory")

    spawner = Spawner()
    no_threads(0)
    with spawner.ahead(), pytest.raises(EngineUnavailable, match="thread"):
        spawner.spawn()
    no_threads(1)
    monkeypatch.setattr(spawning, "_start", start)
    with spawner.ahead(), pytest.raises(EngineUnavailable, match="allocate memory"):
        spawner.spawn()


def test_a_worker_started_early_is_the_one_that_is_started_ahead(sleeping):
    """It is used once; the next session has a worker of its own."""
    spawner = Spawner()
    with spawner.early():
        with spawner.ahead():
            first = spawner.spawn()
        with spawner.ahead():
            second = spawner.spawn()
    assert sleeping == [first, second]
    assert first.poll() is second.poll() is None


@pytest.mark.parametrize("way", ["never asked for", "asked for and not taken", "let go"])
def test_a_worker_started_early_that_nobody_takes_is_ended(sleeping, way):
    """Where nothing is opened, or not in a worker, no process is left behind."""
    spawner = Spawner()
    with spawner.early():
        while not sleeping:
            time.sleep(0.001)
        if way == "asked for and not taken":
            with spawner.ahead():
                pass
        if way == "let go":
            spawner.let_go()
            assert sleeping[0].wait(5) == -9
            spawner.let_go()
    assert sleeping[0].wait(5) == -9
    assert len(sleeping) == 1


def test_a_worker_is_told_something_until_it_is_taken(monkeypatch, sleeping):
    """Behind that only its orders come; what is too long for an empty pipe is not said at all."""
    command = [sys.executable, "-S", "-c", "import sys; print(sys.stdin.read(), end='')"]
    monkeypatch.setattr(sys.modules[__name__], "SLEEPS", command)
    spawner = Spawner()
    with spawner.ahead() as tell:
        tell(b"first,")
        tell(b"x" * 5000)
        process = spawner.spawn()
        tell(b"never")
    assert process.communicate(b"orders", timeout=20)[0] == b"first,orders"


def test_a_worker_that_has_ended_is_told_nothing(monkeypatch, no_threads, sleeping):
    """Who takes it finds that out; nor is one told that could not be started."""
    monkeypatch.setattr(sys.modules[__name__], "SLEEPS", [sys.executable, "-S", "-c", ""])
    spawner = Spawner()
    with spawner.ahead() as tell:
        while not sleeping or sleeping[0].poll() is None:
            time.sleep(0.001)
        tell(b"anything")
        assert spawner.spawn().returncode == 0
    no_threads(0)
    with Spawner().ahead() as tell:
        tell(b"anything")
