"""Starting workers, all from one thread that lives as long as the program.

Linux ends a child that asked for it when the *thread* that started it ends, so a worker started from
a thread of the user's would die with that thread's work done.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, TypeAlias

from edgellm.errors import EngineUnavailable
from edgellm.runtime.worker.channel import put_down
from edgellm.runtime.worker.environment import worker_environment
from edgellm.runtime.worker.interpreter import package_root, worker_command
from edgellm.runtime.worker.threads import start_thread

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from edgellm.threads import Started

Process = subprocess.Popen[bytes]
Tell = Callable[[bytes], None]
_Start: TypeAlias = "Future[Process]"

_MOST_TOLD_BYTES: Final = 4096
"""What an empty pipe takes at once on every system."""


class Spawner:
    """A daemon thread that starts processes for whoever asks."""

    def __init__(self) -> None:
        self._asked: SimpleQueue[_Start] = SimpleQueue()
        self._early: list[_Start] = []
        self._ahead: list[_Start] = []
        self._thread: Started | None = None
        self._lock = threading.Lock()

    def spawn(self) -> Process:
        """Start a worker with pipes at its stdin, stdout and stderr, or give one started ahead.

        Raises:
            EngineUnavailable: there is no interpreter, or the system starts no process.
        """
        with self._lock:
            future = self._ahead.pop() if self._ahead else None
        future = self._ask() if future is None else future
        with ExitStack() as interrupted:  # then nobody will hold what is on its way
            interrupted.callback(future.add_done_callback, _put_down)
            process = future.result()
            interrupted.pop_all()
        return process

    @contextmanager
    def early(self) -> Iterator[None]:
        """Start a worker for the first `ahead` within the block, before it is known what it opens.

        One that was not used when the block ends is put down, as by `ahead`.
        """
        with self._held(self._early, None):
            yield

    def let_go(self) -> None:
        """Put down what `early` started: no worker is needed."""
        with self._lock:
            begun = self._early.pop() if self._early else None
        if begun is not None:
            begun.add_done_callback(_put_down)

    @contextmanager
    def ahead(self) -> Iterator[Tell]:
        """Start a worker that `spawn` will give, which imports meanwhile what every model needs.

        One that nobody has taken when the block ends is put down, without waiting for it. What its
        start fails with is raised by `spawn`. The block gets a function that says something to the
        worker before its orders come, as long as nobody has taken it.
        """
        with self._lock:
            begun = self._early.pop() if self._early else None
        with self._held(self._ahead, begun) as future:
            yield lambda frame: self._tell(future, frame)

    @contextmanager
    def _held(self, place: list[_Start], begun: _Start | None) -> Iterator[_Start | None]:
        """Keep a worker, begun or not, in a place from which it may be taken within the block."""
        try:
            future = begun or self._ask()
        except EngineUnavailable:  # as `spawn` will say, if it comes to that
            yield None
            return
        place.append(future)
        try:
            yield future
        finally:
            with self._lock:
                is_left = future in place  # a future is equal to itself alone
                if is_left:
                    place.remove(future)
            if is_left:
                future.add_done_callback(_put_down)

    def _tell(self, future: _Start | None, frame: bytes) -> None:
        """Write a frame to a worker that nobody has taken; a long one might have to wait, and is not."""
        if future is None or len(frame) > _MOST_TOLD_BYTES or future.exception() is not None:
            return
        with self._lock:  # who takes it writes there as well
            if future in self._ahead and (pipe := future.result().stdin) is not None:
                with suppress(OSError):  # it has ended, as who takes it will hear
                    os.write(pipe.fileno(), frame)

    def _ask(self) -> _Start:
        with self._lock:
            if self._thread is None:
                self._thread = start_thread(self._run, "edgellm-spawner")
        future: _Start = Future()
        self._asked.put(future)
        return future

    def _run(self) -> None:
        while True:  # no name here holds what was started
            _serve(self._asked.get())


def _serve(future: _Start) -> None:
    """Start a process, and let whatever comes of that be the caller's: this thread must live."""
    try:
        future.set_result(_start())
    except OSError as err:
        future.set_exception(_explained(err))
    except BaseException as err:  # noqa: BLE001  # it is raised where somebody waits
        future.set_exception(err)


def _put_down(future: _Start) -> None:
    if future.exception() is None:
        put_down(future.result())


def _start() -> Process:
    root = package_root()
    return subprocess.Popen(
        worker_command(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=_folder(root),
        env=worker_environment(),
        # A signal to the program's group, as a terminal sends them, is the program's to hear.
        start_new_session=True,
        creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),  # on Windows
    )


def _folder(root: Path) -> Path | None:
    """Return the folder to start in; `-m` looks there, and a package in an archive is in none."""
    return root if root.is_dir() else None


def _explained(err: OSError) -> EngineUnavailable:
    return EngineUnavailable(
        f"the process that holds the model cannot be started: {err.strerror or err}",
        hint='end other programs, or open the model with isolation="none"',
    )


SPAWNER = Spawner()


def _renew() -> None:
    """Begin anew in a forked child: the thread stayed with the parent."""
    SPAWNER.__init__()  # type: ignore[misc]  # in place: others hold the name


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
