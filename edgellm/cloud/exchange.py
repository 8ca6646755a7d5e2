"""One HTTP exchange in a thread of its own, so that whoever waits can stop waiting at any moment.

The thread connects, sends and reads; the caller's side keeps the limits of each phase and looks whether
it was cancelled. To end an exchange its socket is shut down, which wakes the thread wherever it is. No
redirect, no cookie, no second try, nothing kept open for the next request.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from edgellm.cloud.broken import of_broken, of_time
from edgellm.cloud.unpacking import unpacked
from edgellm.errors import EndpointError
from edgellm.threads import Started

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import httpx

    from edgellm.cloud.address import Address
    from edgellm.cloud.events import Traffic
    from edgellm.cloud.tls import Trust
    from edgellm.routing import Endpoint

MAX_ANSWER_BYTES: Final = 64 << 20
_LOOK_S: Final = 0.05  # how often a waiting caller looks whether it was cancelled
_AFTER_END_S: Final = 2.0
_MOST_WAITING: Final = 4096  # pieces of an answer that nobody fetches: then the server waits, too


class Stopped(Exception):
    """The caller's `cancelled` said so; the socket is closed."""


@dataclass(frozen=True, slots=True)
class Head:
    """Status and headers of an answer, the names in lower case."""

    status: int
    headers: Mapping[str, str]


class _Closed(Exception):
    """Raised within the thread where the exchange was ended while it was connecting."""


class Exchange:
    """Sends one request and hands over what comes back, piece by piece.

    Args:
        address: of the endpoint, for messages.
        endpoint: its limits.
        trust: whose certificates count.
        proxy: to go through, or None.
        request: to send; built, with all its headers.
        traffic: counts what is moved.
        cancelled: asked every 50 ms while waiting.
    """

    def __init__(
        self,
        address: Address,
        endpoint: Endpoint,
        trust: Trust,
        proxy: str | None,
        request: httpx.Request,
        traffic: Traffic,
        cancelled: Callable[[], bool],
    ) -> None:
        self._address, self._endpoint, self._trust, self._proxy = address, endpoint, trust, proxy
        self._request, self._traffic, self._cancelled = request, traffic, cancelled
        self._arrived: queue.Queue[Head | bytes | BaseException | None]
        self._arrived = queue.Queue(_MOST_WAITING)
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._phase = "connect"
        self._since_s = time.monotonic()
        request.extensions["trace"] = self._trace
        try:
            Started(self._run, "edgellm-endpoint")
        except RuntimeError as err:  # "can't start new thread"
            raise EndpointError(
                f"{address} was not asked: no thread could be started ({err})", kind="connect"
            ) from err

    def head(self) -> Head:
        """Wait for status and headers.

        Raises:
            EndpointError: they do not come.
            Stopped: the caller cancelled.
        """
        item = self._next()
        if isinstance(item, Head):
            return item
        raise EndpointError(f"{self._address} ended without an answer", kind="incomplete")

    def piece(self) -> bytes | None:
        """Wait for the next bytes of the answer; None is its proper end.

        Raises:
            EndpointError: it broke, or took too long.
            Stopped: the caller cancelled.
        """
        item = self._next()
        return item if isinstance(item, bytes) else None

    def answer_began(self) -> None:
        """From now on the idle limit holds between bytes, and the one of the first byte no more."""
        self._phase = "idle"

    def answer_ended(self) -> None:
        """Wait only a moment for what may still follow the end of the answer."""
        self._phase = "end"

    def close(self) -> None:
        """End the exchange; the other side sees its socket closed at once. Any thread may call."""
        with self._lock:
            self._closed = True
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    # The plain method: that of a TLS socket takes itself apart under its reader.
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def _next(self) -> Head | bytes | None:
        while True:
            if self._closed or self._cancelled():
                self.close()
                raise Stopped
            try:
                item = self._arrived.get(timeout=_LOOK_S)
            except queue.Empty:
                self._check_time()
                continue
            if isinstance(item, BaseException):
                if self._closed:
                    raise Stopped
                self.close()
                raise self._failure(item) from item
            return item

    def _failure(self, err: BaseException) -> EndpointError:
        if isinstance(err, EndpointError):
            return err
        return of_broken(err, self._address, self._trust.source, self._phase)

    def _check_time(self) -> None:
        limit_s = {
            "connect": self._endpoint.connect_s,
            "first byte": self._endpoint.first_byte_s,
            "idle": self._endpoint.idle_s,
            "end": min(self._endpoint.idle_s, _AFTER_END_S),
        }.get(self._phase)  # while it sends, the socket's own limit holds for each piece
        if limit_s is not None and time.monotonic() - self._since_s > limit_s:
            self.close()
            raise of_time(self._address, self._phase, limit_s)

    def _run(self) -> None:
        import httpx

        try:
            with httpx.HTTPTransport(
                verify=self._trust.context, trust_env=False, proxy=self._proxy, retries=0
            ) as transport:
                response = transport.handle_request(self._request)
                try:
                    self._read(response)
                finally:
                    response.close()
            self._hand_over(None)
        except (httpx.HTTPError, httpx.InvalidURL, OSError, _Closed, EndpointError) as err:
            self._hand_over(err)
        except (ImportError, ValueError, TypeError, AttributeError, RuntimeError) as err:
            self._hand_over(err)  # a proxy of a kind that is not installed; a socket shut down
        finally:
            self._hand_over(None)  # whatever happens, nobody waits for ever

    def _hand_over(self, item: Head | bytes | BaseException | None) -> None:
        """Put something in front of whoever waits; not for ever, once it was closed."""
        while not self._closed:
            with contextlib.suppress(queue.Full):
                self._arrived.put(item, timeout=_LOOK_S)
                break
        self._since_s = time.monotonic()

    def _read(self, response: httpx.Response) -> None:
        headers = _lowered(response.headers.multi_items())
        self._hand_over(Head(response.status_code, headers))
        packing = headers.get("content-encoding", "")
        n_bytes = 0
        for piece in unpacked(response.iter_raw(), packing, str(self._address)):
            self._traffic.bytes_in = response.num_bytes_downloaded
            n_bytes += len(piece)
            if n_bytes > MAX_ANSWER_BYTES:
                raise EndpointError(
                    f"{self._address} sent more than {MAX_ANSWER_BYTES} bytes", kind="protocol"
                )
            self._hand_over(piece)

    def _trace(self, name: str, info: Mapping[str, Any]) -> None:
        """Follow the phases, and get hold of the socket as soon as there is one."""
        if name.endswith((".connect_tcp.complete", ".start_tls.complete")):
            self._hold(info["return_value"].get_extra_info("socket"))
        elif name.endswith(".send_request_headers.started"):
            if info["request"].method == self._request.method.encode():  # no proxy's CONNECT
                self._phase = "send"
                self._traffic.bytes_out = len(self._request.content)
        elif name.endswith(".send_request_body.complete") and self._phase == "send":
            self._since_s = time.monotonic()
            self._phase = "first byte"

    def _hold(self, held: socket.socket) -> None:
        with self._lock:
            if not self._closed:
                self._socket = held
                return
        held.close()  # it came too late, and the library does not know of it yet
        raise _Closed


def _lowered(items: list[tuple[str, str]]) -> dict[str, str]:
    return {name.lower(): value for name, value in items}
