"""ChatClient: asks one OpenAI-compatible endpoint, once a call, and hands on what it answers.

It decides nothing and tries nothing twice. What it may send, and where, a `Clearance` says; without one
for this very place no socket is opened. The key stands in one header and nowhere else.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from edgellm.cloud import listing
from edgellm.cloud.address import address_of
from edgellm.cloud.body import Dialect, body_of, learned
from edgellm.cloud.events import Probe, Traffic
from edgellm.cloud.exchange import Exchange, Stopped
from edgellm.cloud.failures import of_status, read_error
from edgellm.cloud.key import ApiKey
from edgellm.cloud.reading import CloudStream
from edgellm.cloud.tls import proxy_for, trust_for
from edgellm.errors import EndpointError, UsageError
from edgellm.routing import Clearance

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgellm.cloud.exchange import Head
    from edgellm.cloud.tls import Trust
    from edgellm.core import Request
    from edgellm.routing import Endpoint

_MAX_ERROR_BYTES: Final = 64 << 10
_LEARNS_FROM: Final = frozenset({400, 422})


def _never() -> bool:
    return False


class ChatClient:
    """Asks one endpoint. Threads may share it: each answer has a connection of its own.

    Args:
        endpoint: where, and with which limits.
        api_key: what opens it, or None; white space around it is cut off.

    Attributes:
        address: where the endpoint is; its text shows no secret.

    Raises:
        UsageError: the endpoint's URL cannot be used.
        EndpointError: no header can carry the key.
    """

    def __init__(self, endpoint: Endpoint, api_key: str | None = None) -> None:
        self.address = address_of(endpoint.url)
        self._endpoint = endpoint
        self._key = ApiKey(api_key, self.address)
        self._dialect = Dialect()
        self._trust: Trust | None = None

    def __repr__(self) -> str:
        return f"ChatClient({str(self.address)!r}, model={self._endpoint.model!r})"

    def body_of(self, request: Request, begun: str = "") -> bytes:
        """Return the body that `stream` would send, as this endpoint is known to want it.

        Raises:
            EndpointError: `begun` is given, and the endpoint does not go on with answers.
        """
        return body_of(request, self._endpoint, begun, self._dialect)

    def stream(
        self,
        request: Request,
        clearance: Clearance,
        *,
        begun: str = "",
        cancelled: Callable[[], bool] = _never,
        traffic: Traffic | None = None,
    ) -> CloudStream:
        """Send a request; return its answer when the endpoint took it, before there is any text.

        Args:
            request: the conversation.
            clearance: leave to send it there, from the policy.
            begun: text of the answer that was shown already; sent as `endpoint.continues` says.
            cancelled: asked at least every 50 ms; then the socket is closed, and the answer ends with
                `CloudEnd("cancelled")`.
            traffic: counts bytes while they move, for those that are lost with a failure.

        Raises:
            EndpointError: the leave is for something else, or the endpoint failed or refused.
        """
        body = self.body_of(request, begun)
        self._check(request, clearance, len(body))
        traffic = Traffic() if traffic is None else traffic
        exchange = self._exchange("POST", self.address.url, body, traffic, cancelled)
        answer = CloudStream(exchange, self.address, self._key, begun, traffic)
        try:
            head = exchange.head()
            refusal = None if head.status == 200 else self._refusal(exchange, head, request)
        except Stopped:
            return answer.stopped()
        if refusal is not None:
            raise refusal
        return answer.opened(head)

    def probe(self, *, cancelled: Callable[[], bool] = _never) -> Probe:
        """Ask the endpoint for its models: whether it is there and takes the key. Sends no content.

        Raises:
            EndpointError: it is not there, or refuses.
        """
        began_s = time.monotonic()
        exchange = self._exchange("GET", self.address.models_url, b"", Traffic(), cancelled)
        try:
            head = exchange.head()
            body = _whole(exchange, listing.MAX_BYTES)
        except Stopped as err:
            raise EndpointError(f"asking {self.address} was cancelled", kind="incomplete") from err
        finally:
            exchange.close()
        where = listing.shown(self.address)
        if head.status not in {200, 404, 405, 501}:
            raise of_status(where, head.status, head.headers, body, self._key.text)
        models = listing.models_in(body) if head.status == 200 else ()
        listed = self._endpoint.model in models if models else None
        return Probe(where, models, listed, (time.monotonic() - began_s) * 1e3)

    def _check(self, request: Request, clearance: Clearance, n_bytes: int) -> None:
        """Refuse whatever the leave does not cover, before anything is opened."""
        if not isinstance(clearance, Clearance):
            raise EndpointError("nothing is sent without a clearance", kind="invalid")
        try:
            cleared = address_of(clearance.origin).origin
        except UsageError as err:
            raise EndpointError("the clearance names no place", kind="redirect") from err
        if cleared != self.address.origin:
            raise EndpointError(
                f"the clearance is for {cleared}, and not for {self.address.origin}",
                kind="redirect",
            )
        if clearance.model != self._endpoint.model:
            raise EndpointError(
                f"the clearance is for the model {clearance.model!r}, and not for "
                f"{self._endpoint.model!r}",
                kind="invalid",
            )
        if any(message.sensitivity == "private" for message in request.messages):
            raise EndpointError("a private message stays on this machine", kind="invalid")
        if n_bytes > clearance.max_bytes:
            raise EndpointError(
                f"the request has {n_bytes} bytes; it may have {clearance.max_bytes}",
                kind="too_long",
            )

    def _exchange(
        self,
        method: str,
        url: str,
        body: bytes,
        traffic: Traffic,
        cancelled: Callable[[], bool],
    ) -> Exchange:
        import httpx

        if self._trust is None:
            self._trust = trust_for(self.address, self._endpoint.ca_file)
        limits: Any = {
            "connect": self._endpoint.connect_s,
            "write": self._endpoint.idle_s,
            # The caller's side keeps this one; here it only ends a thread that nobody waits for.
            "read": max(self._endpoint.first_byte_s, self._endpoint.idle_s) + 5,
            "pool": None,
        }
        try:
            request = httpx.Request(
                method,
                url,
                headers=_headers(body) | self._key.header(),
                content=body or None,
                extensions={"timeout": limits},
            )
        except (
            httpx.InvalidURL,
            UnicodeError,
        ) as err:  # the latter of a name that is no `xn--` one
            raise EndpointError(
                f"{self.address.origin} is no address that can be asked",
                kind="invalid",
                hint="check the host's name and the length of the endpoint's URL",
            ) from err
        proxy = proxy_for(self.address, self._endpoint)
        return Exchange(
            self.address, self._endpoint, self._trust, proxy, request, traffic, cancelled
        )

    def _refusal(self, exchange: Exchange, head: Head, request: Request) -> EndpointError:
        """Return the error for a status, after learning what can be learned from it."""
        try:
            body = _whole(exchange, _MAX_ERROR_BYTES)
        except EndpointError:
            body = b""  # the status says enough
        where, key = str(self.address), self._key.text
        err = of_status(where, head.status, head.headers, body, key)
        said = read_error(head.headers.get("content-type", ""), body)
        better = None
        if head.status in _LEARNS_FROM and err.kind == "invalid":
            better = learned(self._dialect, request, said.words, said.param)
        if better is not None:
            self._dialect, err.may_retry = better, True
            err.hint = "the next request will leave out or rename the field"
        return err


def _headers(body: bytes) -> dict[str, str]:
    headers = {
        "Accept": "text/event-stream, application/json" if body else "application/json",
        "Accept-Encoding": "identity",
        "User-Agent": "edgellm",
        "Connection": "close",
    }
    return headers | ({"Content-Type": "application/json"} if body else {})


def _whole(exchange: Exchange, max_bytes: int) -> bytes:
    """Return a short answer, or its first `max_bytes`."""
    exchange.answer_began()
    content = bytearray()
    while len(content) < max_bytes and (piece := exchange.piece()) is not None:
        content += piece
    exchange.close()
    return bytes(content[:max_bytes])
