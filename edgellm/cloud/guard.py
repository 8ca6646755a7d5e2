"""Guard: a limit of time and bytes on what one command of a client library may take from its socket.

A library's own time limit is for each receive, and it believes the length that the other side declares. A
server that drips, or sends without end, is stopped here: the limits are those of the whole answer.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


class Guard:
    """The limits of the command that the calling thread is in; each thread has its own."""

    def __init__(self) -> None:
        self._limits = threading.local()

    @contextlib.contextmanager
    def command(self, seconds: float, n_bytes: int) -> Iterator[None]:
        """Limit everything that is received inside the block."""
        self._limits.deadline_s = time.monotonic() + seconds
        self._limits.left_bytes = n_bytes
        try:
            yield
        finally:
            del self._limits.deadline_s, self._limits.left_bytes

    def receive(self, socket: Any, n_bytes: int) -> bytes:
        """Receive like `socket.recv`, within the limits.

        Raises:
            TimeoutError: the time of the command is over.
            ConnectionError: more came than the answer may have.
        """
        deadline_s = getattr(self._limits, "deadline_s", None)
        if deadline_s is None:
            return bytes(socket.recv(n_bytes))
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the answer takes too long")
        if socket.gettimeout() != 0:  # 0 only asks whether something is there
            socket.settimeout(left_s)
        content = bytes(socket.recv(min(n_bytes, self._limits.left_bytes + 1)))
        self._limits.left_bytes -= len(content)
        if self._limits.left_bytes < 0:
            raise ConnectionError("the answer is longer than what was asked for")
        return content


class GuardedSocket:
    """A socket whose `recv` is the guard's; all else is the socket's own."""

    def __init__(self, socket: Any, guard: Guard) -> None:
        self._socket, self._guard = socket, guard

    def recv(self, n_bytes: int) -> bytes:
        """Receive within the limits."""
        return self._guard.receive(self._socket, n_bytes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)
