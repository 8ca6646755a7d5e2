"""Ctrl-C, SIGTERM and SIGHUP as requests: the first one asks for an end, the second breaks off.

SIGHUP is a terminal that was closed. Who starts a program with it ignored, as `nohup` does, wants the
program to outlive the terminal: then it stays ignored.

A handler runs on the main thread, between two bytecodes. Engines compute in a thread of their own,
so the main thread is never inside a long call and the request is made at once.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

EXIT_HUNG_UP: Final = 129  # what a shell reports for a program that SIGHUP ended
EXIT_TERMINATED: Final = 143  # and that SIGTERM did
_raised_for: Final[list[int]] = []  # signals, since the last `orderly_end` began


class Terminated(BaseException):
    """SIGTERM or SIGHUP came: the command ends in order, with an exit code of its own.

    No error and, as it is nobody at the keyboard, no KeyboardInterrupt either.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = EXIT_TERMINATED if number == signal.SIGTERM else EXIT_HUNG_UP


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, as a kind of its own.

    Where a plain KeyboardInterrupt went through `exec` of a text, as while a dataclass is made, CPython ends
    the program by the signal itself though it was caught (`run_eval_code_obj` in Python/pythonrun.c).
    """


class Asked:
    """Whether an end was asked for within a block, and how."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def error(self) -> BaseException:
        """Return what to raise for it."""
        is_key = self.signal in (None, signal.SIGINT)
        return Interrupted() if is_key else Terminated(int(self.signal or 0))


@contextlib.contextmanager
def interrupts(ask: Callable[[], None]) -> Iterator[Asked]:
    """Call `ask` on the first Ctrl-C or signal to end within the block; a second one breaks it off.

    Outside the main thread, where no handler can be set, nothing changes.
    """
    asked = Asked()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def on_signal(number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, _interrupt)
        for ending in endings:
            signal.signal(ending, _terminate)
        asked.signal = number
        ask()

    endings = _endings()
    before = [(each, signal.signal(each, on_signal)) for each in (signal.SIGINT, *endings)]
    try:
        yield asked
    finally:
        for number, handler in before:
            signal.signal(number, handler)


@contextlib.contextmanager
def orderly_end() -> Iterator[None]:
    """Let signals to end unwind the block as Ctrl-C does, so that no half-written file is left."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _raised_for.clear()
    before = [(number, signal.signal(number, _terminate)) for number in _endings()]
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored
        before.append((signal.SIGINT, signal.signal(signal.SIGINT, _interrupt)))
    try:
        with _unshown():
            yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


@contextlib.contextmanager
def _unshown() -> Iterator[None]:
    """Show nothing of what a signal has raised where nobody can raise it: `raise_swallowed` will."""
    shown = sys.unraisablehook

    def show(told: sys.UnraisableHookArgs) -> None:
        if not isinstance(told.exc_value, (Terminated, Interrupted)):
            shown(told)

    sys.unraisablehook = show
    try:
        yield
    finally:
        sys.unraisablehook = shown


def _endings() -> list[int]:
    """Return the signals to end that are ours to handle; Windows has no SIGHUP."""
    found: list[int] = [signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        found.append(signal.SIGHUP)
    return found


def raise_swallowed() -> None:
    """Raise what a signal has raised in an `orderly_end` around here and a library has caught.

    What the command line is read with runs handlers inside C and Rust code, which shows what they
    raise and goes on. Called where something long begins.
    """
    if _raised_for:
        number = _raised_for.pop()
        raise Interrupted if number == signal.SIGINT else Terminated(number)


def _terminate(number: int, _frame: FrameType | None) -> NoReturn:
    _raised_for.append(number)
    raise Terminated(number)


def _interrupt(number: int, _frame: FrameType | None) -> NoReturn:
    _raised_for.append(number)
    raise Interrupted
