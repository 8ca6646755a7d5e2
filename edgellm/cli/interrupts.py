"""Ctrl-C as a request: the first one asks for an end, the second breaks off.

A handler written in Python runs on the main thread, between two bytecodes: while that thread is
inside an engine's call, seconds may pass. The interpreter's wakeup descriptor is written at once, so
a thread that reads it does the asking.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType


_REPEAT_S: Final = 0.05


@contextlib.contextmanager
def interrupts(ask: Callable[[], None]) -> Iterator[None]:
    """Call `ask` on the first Ctrl-C, at once and from another thread; go on until the block ends.

    It is repeated because a stream that is about to start may take an early request back. A second
    Ctrl-C raises KeyboardInterrupt. Outside the main thread, where no handler can be set, nothing
    changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        ask()

    with contextlib.ExitStack() as stack:
        reader, writer = (stack.enter_context(end) for end in socket.socketpair())
        writer.setblocking(False)
        watcher = threading.Thread(target=_watch, args=(reader, ask), daemon=True)
        watcher.start()
        before_fd = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        before = signal.signal(signal.SIGINT, on_signal)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
            signal.set_wakeup_fd(before_fd)
            writer.shutdown(socket.SHUT_RDWR)
            watcher.join()


def _watch(reader: socket.socket, ask: Callable[[], None]) -> None:
    """Read signal numbers until the other end closes; from the first SIGINT on, ask."""
    while True:
        try:
            number = reader.recv(1)
        except TimeoutError:
            ask()
            continue
        if not number:
            return
        if number[0] == signal.SIGINT:
            reader.settimeout(_REPEAT_S)
            ask()
