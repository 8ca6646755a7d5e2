"""Broken connections as `EndpointError`: what failed, in which phase, and whether a second try is safe.

No text of a network library is passed on but the system's own reasons: theirs may repeat a header.
"""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING, Final

from edgellm.errors import EndpointError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from edgellm.cloud.address import Address

_SETTING: Final = {
    "connect": "connect_s",
    "send": "idle_s",
    "first byte": "first_byte_s",
    "idle": "idle_s",
    "end": "idle_s",
}
_PHASES: Final = {
    "connect": "no connection",
    "send": "the request could not be sent",
    "first byte": "no byte of the answer",
    "idle": "no byte of the answer after the one before",
    "end": "no end of the answer",
}


def of_time(address: Address, phase: str, limit_s: float) -> EndpointError:
    """Return the error for a phase that took too long.

    Only a connection that never was may be tried again: later the server may still be at work.
    """
    return EndpointError(
        f"{address}: {_PHASES[phase]} within {limit_s:g} s (time limit of the phase: {phase})",
        kind="timeout",
        may_retry=phase == "connect",
        hint=f"the endpoint's `{_SETTING[phase]}` is that limit",
    )


def of_broken(err: BaseException, address: Address, trusted: str, phase: str) -> EndpointError:
    """Return the error for what a network library raised.

    Args:
        err: whatever it is.
        address: of the endpoint.
        trusted: where the certificates came from that count.
        phase: what was being done.
    """
    import httpx

    if (refused := _of_tls(err, address, trusted, phase)) is not None:
        return refused
    if isinstance(err, (httpx.ConnectTimeout, httpx.ReadTimeout, httpx.WriteTimeout)):
        return EndpointError(
            f"{address}: {_PHASES[phase]} in time (time limit of the phase: {phase})",
            kind="timeout",
            may_retry=phase == "connect",
            hint=f"the endpoint's `{_SETTING[phase]}` is that limit",
        )
    if phase == "connect" and not isinstance(err, (httpx.NetworkError, OSError)):
        return EndpointError(f"{address}: {_of_proxy(err)}", kind="connect")
    if phase == "connect":
        return EndpointError(
            f"{address}: no connection: {_reason(err)}",
            kind="connect",
            may_retry=True,
            hint="is the endpoint running, and its address right?",
        )
    if _is_nonsense(err):
        return EndpointError(
            f"{address} does not speak HTTP as it should ({type(err).__name__})", kind="protocol"
        )
    return EndpointError(
        f"{address} closed the connection before its answer was complete: {_reason(err)}",
        kind="incomplete",
        may_retry=phase != "idle",
    )


def _of_tls(err: BaseException, address: Address, trusted: str, phase: str) -> EndpointError | None:
    """Return the error where TLS is at its bottom, or None."""
    found = next((cause for cause in _causes(err) if isinstance(cause, ssl.SSLError)), None)
    if isinstance(found, ssl.SSLCertVerificationError):
        return EndpointError(
            f"the certificate of {address.origin} is not trusted: {found.verify_message}; the "
            f"certificates that count are those of {trusted}",
            kind="certificate",
            hint="name the file with the right ones in the endpoint's `ca_file` or SSL_CERT_FILE",
        )
    if found is None or phase != "connect":
        return None
    return EndpointError(
        f"{address}: no TLS connection: {found.reason or type(found).__name__}",
        kind="connect",
        hint="does it speak http:// there, and not https://?",
    )


def _of_proxy(err: BaseException) -> str:
    if isinstance(err, ImportError):
        return "the proxy is of a kind that needs another package (pip install 'httpx[socks]')"
    return f"the proxy refused, or its address is wrong ({type(err).__name__})"


def _is_nonsense(err: BaseException) -> bool:
    import httpx

    if isinstance(err, httpx.DecodingError):
        return True
    # One class stands for a connection that ended early and for one that never was HTTP.
    ended = "disconnected" in str(err) or "closed connection" in str(err)
    return isinstance(err, (httpx.RemoteProtocolError, httpx.LocalProtocolError)) and not ended


def _reason(err: BaseException) -> str:
    for cause in _causes(err):
        if isinstance(cause, socket.gaierror):
            return f"the host's name is not known ({cause.strerror})"
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
    return "it ended early"


def _causes(err: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and what it was raised from or while handling, ten at most."""
    for _ in range(10):
        if err is None:
            return
        yield err
        err = err.__cause__ or err.__context__
