"""Beside: a call in a thread of its own while the `with` block does its half of the work.

Neither end waits for the system to give the thread a processor: the block begins at once, and a call
that has not begun when the block is done is made by the block's own thread. So what is shared out
between the two is done as soon as one thread could do it, however busy the machine.
"""

from __future__ import annotations

import _thread
import contextlib
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any


class Beside:
    """Runs a call beside a block; both are done when the block is left.

    What the call raises is raised at the end of the block, unless the block has raised something
    itself: then a call that has not begun is not made. Where no thread can be started, the call is
    made at the end of the block.

    Args:
        call: what is to be done.
        args: its arguments.
    """

    def __init__(self, call: Callable[..., None], *args: Any) -> None:
        self._call = call
        self._args = args
        self._error: BaseException | None = None
        self._right = threading.Lock()  # whoever takes it makes the call, and keeps it
        self._done = threading.Lock()  # not an event: out of memory, that could not be set any more
        self._done.acquire()

    def __enter__(self) -> Beside:
        """Start the call."""
        with contextlib.suppress(RuntimeError):  # "can't start new thread"
            _thread.start_new_thread(self._run, ())  # `Thread.start` waits until it runs
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """Wait for the call, or make it, and raise what it raised."""
        if self._right.acquire(blocking=False):
            if kind is None:
                self._call(*self._args)
            return
        self._done.acquire()
        if kind is None and self._error is not None:
            raise self._error

    def _run(self) -> None:
        if not self._right.acquire(blocking=False):
            return
        try:
            self._call(*self._args)
        except BaseException as err:  # noqa: BLE001  # carried over to the thread that waits
            self._error = err
        self._done.release()
