"""A sink: an endpoint on the loopback interface that answers, and keeps every byte it was sent.

It stands where a leak would go. That it sees one is shown by the same runs where sending is allowed.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from typing import Final

from edgellm.closing import Closing

_ANSWER: Final = "From the sink."
_MAX_KEPT_BYTES: Final = 64 << 20
_PATIENCE_S: Final = 10.0


class Sink(Closing):
    """A server that listens from its making until `close`.

    Attributes:
        url: of the endpoint that it is.
        port: where it listens.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self._lock = threading.Lock()
        self._received: list[bytes] = []
        self._n_connections = 0
        threading.Thread(target=self._serve, name="edgellm-sink", daemon=True).start()

    @property
    def n_connections(self) -> int:
        """Return how often somebody connected, whether or not anything was sent."""
        return self._n_connections

    @property
    def received(self) -> bytes:
        """Return all that was sent so far."""
        with self._lock:
            return b"".join(self._received)

    def clear(self) -> None:
        """Forget what was sent."""
        with self._lock:
            self._received.clear()
            self._n_connections = 0

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # it was closed
                return
            with self._lock:
                self._n_connections += 1
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), connection:
            connection.settimeout(_PATIENCE_S)
            head = self._read(connection, b"")
            while b"\r\n\r\n" not in head:
                head = self._read(connection, head)
            head, _, body = head.partition(b"\r\n\r\n")
            lengths = [
                int(line.split(b":")[1])
                for line in head.split(b"\r\n")
                if line.lower().startswith(b"content-length:")
            ]
            while len(body) < sum(lengths):
                body = self._read(connection, body)
            connection.sendall(_reply())

    def _read(self, connection: socket.socket, before: bytes) -> bytes:
        data = connection.recv(1 << 16)
        with self._lock:
            self._received.append(data)
        if not data or len(before) > _MAX_KEPT_BYTES:
            raise ValueError("nobody sends any more, or too much")
        return before + data

    def close(self) -> None:
        """Listen no more."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # which wakes who waits in `accept`
        self._listener.close()


def _reply() -> bytes:
    """Return a whole answer as an OpenAI-compatible server streams it."""
    chunks = (
        {"choices": [{"index": 0, "delta": {"content": _ANSWER}, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}},
    )
    events = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    head = f"Content-Type: text/event-stream\r\nContent-Length: {len(events)}\r\n"
    return f"HTTP/1.1 200 OK\r\n{head}Connection: close\r\n\r\n{events}".encode()
