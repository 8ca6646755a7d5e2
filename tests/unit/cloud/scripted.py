"""A server on the loopback interface that does, for each connection, what a test tells it to."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
JSON = {"Content-Type": "application/json"}


@dataclass
class Asked:
    """One request that came in, headers in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.body)
        return value


@dataclass
class Line:
    """The server's end of one connection."""

    socket: socket.socket
    asked: Asked | None = None

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def chunk(self, text: str | bytes) -> None:
        """Send a chunk of a body that began with `OK`."""
        data = text.encode() if isinstance(text, str) else text
        self.send(b"%x\r\n%s\r\n" % (len(data), data))

    def end(self) -> None:
        self.send(b"0\r\n\r\n")

    def reply(self, status: int, body: str | bytes = b"", headers: dict[str, str] = JSON) -> None:
        """Send a whole answer."""
        data = body.encode() if isinstance(body, str) else body
        lines = [f"HTTP/1.1 {status} Said", *(f"{n}: {v}" for n, v in headers.items())]
        head = "\r\n".join([*lines, f"Content-Length: {len(data)}", "", ""])
        self.send(head.encode() + data)

    def stream(self, *events: str | dict[str, Any], done: bool = True) -> None:
        """Send events as one stream, with its proper end."""
        self.send(OK)
        for event in events:
            self.chunk(sse(event))
        if done:
            self.chunk(sse("[DONE]"))
        self.end()

    def gone_s(self, limit_s: float = 5.0) -> float:
        """Wait until the other side closes, and return how long that took."""
        began_s = time.monotonic()
        self.socket.settimeout(limit_s)
        with contextlib.suppress(ConnectionError):
            while self.socket.recv(4096):
                pass
        return time.monotonic() - began_s

    def reset(self) -> None:
        """Close without any word, so that the other side gets a reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.socket.close()


Handler = Callable[[Line], None]


@dataclass
class Server:
    """The server: what came in, and its address."""

    port: int
    scheme: str = "http"
    asked: list[Asked] = field(default_factory=list)
    n_connections: int = 0

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"


def sse(event: str | dict[str, Any]) -> str:
    """Return an event of a stream."""
    return f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n"


def chunk(text: str | None = None, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    """Return one chunk of a completion."""
    told = {"content": text, **delta} if text is not None else delta
    return {"choices": [{"index": 0, "delta": told, "finish_reason": finish}]}


@contextlib.contextmanager
def serving(handler: Handler, tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    """Serve each connection in a thread of its own; all are closed at the end of the block."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = Server(listener.getsockname()[1], "https" if tls else "http")
    lines: list[Line] = []

    def serve(line: Line) -> None:
        with contextlib.suppress(OSError):  # a client that hangs up is normal here
            if tls is not None:
                line.socket = tls.wrap_socket(line.socket, server_side=True)
            line.asked = _read(line.socket)
            if line.asked is not None:
                server.asked.append(line.asked)
                handler(line)
        line.socket.close()

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            server.n_connections += 1
            lines.append(Line(connection))
            threading.Thread(target=serve, args=(lines[-1],), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
        for line in lines:
            with contextlib.suppress(OSError):
                line.socket.shutdown(socket.SHUT_RDWR)
            line.socket.close()


def _read(connection: socket.socket) -> Asked | None:
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65536)
        if not piece:
            return None
        data += piece
        if data[:1] == b"\x16":  # TLS, where none is spoken: what web servers say then
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
            return None
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {n.lower(): v.strip() for n, _, v in (line.partition(":") for line in lines)}
    while len(body) < int(headers.get("content-length", "0")):
        body += connection.recv(65536)
    method, path, _ = first.split(" ", 2)
    return Asked(method, path, headers, body)
