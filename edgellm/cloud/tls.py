"""Whom to trust, and which proxy to take: the only settings the environment has a say in.

Certificates are always checked. `SSL_CERT_FILE` and `SSL_CERT_DIR` count as they do for other programs,
an endpoint's own file goes before them; the proxy variables count only where an endpoint says so.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from edgellm.errors import EndpointError

if TYPE_CHECKING:
    from edgellm.cloud.address import Address
    from edgellm.routing import Endpoint

FILE_VARIABLE: Final = "SSL_CERT_FILE"
FOLDER_VARIABLE: Final = "SSL_CERT_DIR"


@dataclass(frozen=True, slots=True)
class Trust:
    """The certificates that count, and where they came from, for messages."""

    context: ssl.SSLContext
    source: str


def trust_for(address: Address, ca_file: str) -> Trust:
    """Return whom to trust at an address.

    Raises:
        EndpointError: the certificates cannot be read.
    """
    if address.scheme == "http":
        # Nothing to check: an empty context, so that nothing has to be read either.
        return Trust(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), "")
    for path, told in (
        (ca_file, "the endpoint's ca_file"),
        (os.environ.get(FILE_VARIABLE, ""), FILE_VARIABLE),
    ):
        if path:
            return Trust(_context(path, told, is_folder=False), f"{path} ({told})")
    if folder := os.environ.get(FOLDER_VARIABLE, ""):
        return Trust(
            _context(folder, FOLDER_VARIABLE, is_folder=True), f"{folder} ({FOLDER_VARIABLE})"
        )
    return _system_trust()


def proxy_for(address: Address, endpoint: Endpoint) -> str | None:
    """Return the URL of the proxy to take, or None; it may hold a password and is never shown."""
    if not endpoint.uses_proxy or address.is_loopback:
        return None
    from urllib.request import getproxies_environment, proxy_bypass

    proxies = getproxies_environment()
    if proxy_bypass(f"{address.host}:{address.port}"):
        return None
    found = proxies.get(address.scheme) or proxies.get("all")
    if not found:
        return None
    return found if "://" in found else f"http://{found}"


def _context(path: str, told: str, *, is_folder: bool) -> ssl.SSLContext:
    try:
        if not (Path(path).is_dir() if is_folder else Path(path).is_file()):
            raise FileNotFoundError("there is no such " + ("folder" if is_folder else "file"))
        if is_folder:
            return ssl.create_default_context(capath=path)
        return ssl.create_default_context(cafile=path)
    except (OSError, ValueError) as err:  # ssl.SSLError is an OSError
        reason = getattr(err, "reason", None) or err.strerror if isinstance(err, OSError) else err
        raise EndpointError(
            f"the certificates of {told} cannot be used: {reason or err}",
            kind="certificate",
            path=path,
            hint="it must be a file of certificates in PEM form" if not is_folder else "",
        ) from err


def _system_trust() -> Trust:
    """Return the system's certificates; those that httpx brings where the system has none."""
    context = ssl.create_default_context()
    paths = ssl.get_default_verify_paths()
    if context.cert_store_stats()["x509_ca"] or any(Path(paths.capath or os.devnull).glob("*")):
        return Trust(context, paths.cafile or paths.capath or "the system's store")
    import httpx

    return Trust(httpx.create_ssl_context(trust_env=False), "the ones that come with httpx")
