"""Ctrl-C and SIGTERM as requests: the first one asks for an end, the second breaks off.

A handler runs on the main thread, between two bytecodes. Engines compute in a thread of their own,
so the main thread is never inside a long call and the request is made at once.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

EXIT_TERMINATED: Final = 143  # what a shell reports for a program that SIGTERM ended
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Terminated(BaseException):
    """SIGTERM came: the command ends in order, with its own exit code.

    No error and, as it is nobody at the keyboard, no KeyboardInterrupt either.
    """


class Asked:
    """Whether an end was asked for within a block, and how."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def error(self) -> BaseException:
        """Return what to raise for it."""
        return Terminated() if self.signal == signal.SIGTERM else KeyboardInterrupt()


@contextlib.contextmanager
def interrupts(ask: Callable[[], None]) -> Iterator[Asked]:
    """Call `ask` on the first Ctrl-C or SIGTERM within the block; a second one breaks it off.

    Outside the main thread, where no handler can be set, nothing changes.
    """
    asked = Asked()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def on_signal(number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, _terminate)
        asked.signal = number
        ask()

    before = [(number, signal.signal(number, on_signal)) for number in _SIGNALS]
    try:
        yield asked
    finally:
        for number, handler in before:
            signal.signal(number, handler)


@contextlib.contextmanager
def orderly_end() -> Iterator[None]:
    """Let SIGTERM unwind the block as Ctrl-C does, so that no half-written file is left."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminate(_number: int, _frame: FrameType | None) -> NoReturn:
    raise Terminated
