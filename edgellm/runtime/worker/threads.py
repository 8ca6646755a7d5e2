"""Threads that a worker needs: daemons, which start it, or are each at one end of a pipe.

Garbage collection may run anywhere, also here, and close an answer that nobody reads any more. Who
waits for a worker therefore asks first whether the waiting thread is one that the worker needs.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

from edgellm.errors import EngineUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable


class _PipeThread(threading.Thread):
    """A thread without which some worker is not heard."""


def start_thread(target: Callable[[], None], name: str) -> threading.Thread:
    """Start a daemon thread.

    Raises:
        EngineUnavailable: the system starts no thread, or the program is ending.
    """
    if sys.is_finalizing():  # then Python may wait for it for ever
        raise _no_thread("the program is ending")
    thread = _PipeThread(target=target, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as err:
        raise _no_thread(str(err)) from err
    return thread


def _no_thread(why: str) -> EngineUnavailable:
    return EngineUnavailable(
        f"no thread can be started to speak with the process that holds the model: {why}",
        hint='end other programs, or open the model with isolation="none"',
    )


def is_needed_here() -> bool:
    """Return whether this thread must not wait for a worker: one may be waiting for it."""
    return isinstance(threading.current_thread(), _PipeThread)
