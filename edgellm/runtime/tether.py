"""A child process that outlives neither its parent nor its time, whatever it computes.

The parent holds one end of a pipe, and the child reads the other until it ends, which it does with
the parent, also when that is killed.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
from typing import TYPE_CHECKING

from edgellm.threads import Started

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def tether() -> Iterator[int]:
    """Give what a child that will call `tie` is started with as its stdin, and hold the other end."""
    watched, held = os.pipe()
    try:
        yield watched
    finally:
        os.close(held)
        os.close(watched)


def tie(limit_s: float) -> None:
    """End this process when its parent ends, or after `limit_s` with a traceback and exit code 1.

    The parent's end is seen by a thread, which code that never lets go of the interpreter holds up;
    the limit is kept outside of the interpreter, and ends that too. What reads stdin finds it empty.

    Raises:
        RuntimeError: the system starts no thread.
    """
    # Out of the way of stdin: on Windows a library's start would wait for the read below.
    watched = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    Started(lambda: _end_with(watched), "edgellm-tether")
    faulthandler.dump_traceback_later(limit_s, exit=True)


def _end_with(watched: int) -> None:
    while os.read(watched, 1):
        pass
    os._exit(1)
