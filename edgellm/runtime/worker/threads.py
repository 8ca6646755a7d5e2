"""Threads that a worker needs: daemons, which start it, or are each at one end of a pipe.

Garbage collection may run anywhere, also here, and close an answer that nobody reads any more. Who
waits for a worker therefore asks first whether the waiting thread is one that the worker needs.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from edgellm.errors import EngineUnavailable
from edgellm.threads import Started

if TYPE_CHECKING:
    from collections.abc import Callable


class _Here(threading.local):
    is_needed = False


_HERE = _Here()


class _PipeThread(Started):
    """A thread without which some worker is not heard."""

    def prepare(self) -> None:
        _HERE.is_needed = True


def start_thread(target: Callable[[], None], name: str) -> Started:
    """Start a daemon thread.

    Raises:
        EngineUnavailable: the system starts no thread, or the program is ending.
    """
    try:
        return _PipeThread(target, name)
    except RuntimeError as err:
        raise EngineUnavailable(
            f"no thread can be started to speak with the process that holds the model: {err}",
            hint='end other programs, or open the model with isolation="none"',
        ) from err


def is_needed_here() -> bool:
    """Return whether this thread must not wait for a worker: one may be waiting for it."""
    return _HERE.is_needed
