"""Start: a worker being started in a thread of its own, so that a cancel need not wait for it.

What was given up while it loaded is kept for the next answer; only `drop` ends it.
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Final, Protocol

from edgellm.runtime.worker.threads import start_thread

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from edgellm.runtime.session import SessionOptions
    from edgellm.runtime.worker.handle import Worker

_LOOK_S: Final = 0.02


class StartWorker(Protocol):
    """Starts a worker, as `Worker.start` does."""

    def __call__(
        self, path: Path, options: SessionOptions, *, on_spawn: Callable[[int], None]
    ) -> Worker:
        """Start a process and load a model in it."""


class Start:
    """One worker on its way.

    Args:
        start: starts it, and returns when its model is loaded.
        path: of the model.
        options: to open it with.
        on_spawn: called with the process's id as soon as there is one.

    Raises:
        EngineUnavailable: the system starts no thread.
    """

    def __init__(
        self,
        start: StartWorker,
        path: Path,
        options: SessionOptions,
        on_spawn: Callable[[int], None],
    ) -> None:
        self._start, self._path, self._options = start, path, options
        self._on_spawn = on_spawn
        self._begun_s = monotonic()
        self._pid: int | None = None
        self._worker: Worker | None = None
        self._error: BaseException | None = None
        self._is_dropped = False
        self._lock = threading.Lock()
        self._ended = threading.Event()
        # A daemon: a program that ends does not wait for a model to load.
        start_thread(self._run, "edgellm-start")

    def _spawned(self, pid: int) -> None:
        with self._lock:
            self._pid = pid
            is_dropped = self._is_dropped
        if is_dropped:
            _kill(pid)
        self._on_spawn(pid)

    def _run(self) -> None:
        try:
            worker = self._start(self._path, self._options, on_spawn=self._spawned)
        except BaseException as err:  # noqa: BLE001  # it is raised where somebody waits
            self._error = err
        else:
            with self._lock:
                self._worker = worker
                is_dropped = self._is_dropped
            if is_dropped:
                worker.kill()
        finally:
            self._pid = None
            self._ended.set()

    def wait(self, cancelled: Callable[[], bool], limit_s: float) -> Worker | None:
        """Return the worker when it is ready, None when the caller gives up before.

        Raises:
            EdgeLLMError, WorkerEnded: it could not be started.
            TimeoutError: `limit_s` have passed since it was begun.
        """
        while not self._ended.wait(_LOOK_S):
            if cancelled():
                return None
            if monotonic() - self._begun_s > limit_s:
                raise TimeoutError
        if self._error is not None:
            raise self._error
        return self._worker

    def drop(self) -> None:
        """End it, now or as soon as there is something to end."""
        with self._lock:
            self._is_dropped = True
            worker, pid = self._worker, self._pid
        if worker is not None:
            worker.kill()
        elif pid is not None:
            _kill(pid)


def _kill(pid: int) -> None:
    with suppress(OSError):  # it has ended
        os.kill(pid, getattr(signal, "SIGKILL", signal.SIGTERM))
