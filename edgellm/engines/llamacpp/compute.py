"""Compute: the one thread of a process that decodes, and what is begun in it.

Whatever a call ends with, who waits for it hears of it, also where memory is out: once a call has begun
nothing is allocated here.
"""

from __future__ import annotations

import _thread
import atexit
import os
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING

from edgellm.threads import Started

if TYPE_CHECKING:
    from collections.abc import Callable


class Call:
    """A call that was begun in another thread, and returns a number."""

    def __init__(self, function: Callable[[], int]) -> None:
        self._function = function
        self._ended = _thread.allocate_lock()
        self._ended.acquire()
        self._number = 0
        self._error: BaseException | None = None

    def run(self) -> None:
        """Make the call; raises nothing."""
        try:
            self._number = self._function()
        except BaseException as err:  # noqa: BLE001  # raised where it is waited for
            self._error = err
        finally:
            self._ended.release()

    def wait(self) -> None:
        """Wait for its end; a signal's handler runs meanwhile, and may raise."""
        with self._ended:
            pass

    def result(self) -> int:
        """Return what it returned, or raise what it raised, when it has ended."""
        if self._error is not None:
            raise self._error
        return self._number


class Compute:
    """A thread that makes calls one by one, started by the first of them.

    When the interpreter ends the call in hand is waited for: the library's memory goes next.

    Attributes:
        is_closed: whether the interpreter ends.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._thread: Started | None = None
        self._starting = threading.Lock()
        self._pid = os.getpid()
        self.is_closed = False
        atexit.register(self._close)

    def begin(self, function: Callable[[], int]) -> Call:
        """Let the thread make a call.

        Raises:
            RuntimeError: there is no thread to be had, or the interpreter ends.
        """
        call = Call(function)
        with self._starting:
            if self.is_closed:
                raise RuntimeError("the interpreter ends")
            if self._thread is None:
                self._thread = Started(self._run, "edgellm-compute")
            self._calls.put(call)
        return call

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call.run()
            del call  # what it holds is large

    def _close(self) -> None:
        if os.getpid() != self._pid:  # forked: the thread stayed with the parent
            return
        with self._starting:
            self.is_closed = True
            self._calls.put(None)
        if self._thread is not None:
            self._thread.join()
