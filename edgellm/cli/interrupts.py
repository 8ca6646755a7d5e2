"""Ctrl-C as a request: the first one asks for an end, the second breaks off.

A handler runs on the main thread, between two bytecodes. Engines compute in a thread of their own,
so the main thread is never inside a long call and the request is made at once.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType


@contextlib.contextmanager
def interrupts(ask: Callable[[], None]) -> Iterator[None]:
    """Call `ask` on the first Ctrl-C within the block; a second one raises KeyboardInterrupt.

    Outside the main thread, where no handler can be set, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        ask()

    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
