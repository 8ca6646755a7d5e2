"""Addresses: from what a user calls an endpoint to the one URL that is asked.

The base may be given with or without `/v1`, with a slash at its end, or as the whole address of the
chat completions. A path that is there is left as it is, and so is a query.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from edgellm.errors import UsageError

_CHAT: Final = "/chat/completions"
_PORTS: Final = {"http": 80, "https": 443}
_AZURE: Final = "/openai/deployments/"


@dataclass(frozen=True, slots=True)
class Address:
    """Where an endpoint is.

    Attributes:
        scheme: `http` or `https`.
        host: in lower case, without brackets.
        port: its number, the scheme's own where none was given.
        path: of the chat completions.
        query: without its question mark, or "". It may hold a secret and is never shown.
    """

    scheme: str
    host: str
    port: int
    path: str
    query: str

    @property
    def origin(self) -> str:
        """Scheme, host and port, the last one only where it is not the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == _PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}"

    @property
    def url(self) -> str:
        """The whole URL, to be asked and not to be shown."""
        return self._with_query(self.path)

    @property
    def models_url(self) -> str:
        """Where the endpoint lists its models; to be asked and not to be shown."""
        return self._with_query(self.path.removesuffix(_CHAT) + "/models")

    @property
    def is_loopback(self) -> bool:
        """Whether it is this machine."""
        return is_loopback(self.host)

    @property
    def is_azure(self) -> bool:
        """Whether its path is of the kind that takes the key in a header named `api-key`."""
        return _AZURE in self.path

    def __str__(self) -> str:
        """Return the URL as it may be shown."""
        return self.origin + self.path

    def _with_query(self, path: str) -> str:
        query = f"?{self.query}" if self.query else ""
        return f"{self.origin}{path}{query}"


def address_of(url: str) -> Address:
    """Return where the chat completions of an endpoint are.

    Raises:
        UsageError: it is no http or https URL, or it holds a user name or password.
    """
    if any(char <= " " or char == "\x7f" for char in url.strip()):
        raise UsageError("the URL of the endpoint has a blank or a control character in it")
    try:
        parts = urlsplit(url.strip())
        scheme, port, host = parts.scheme.lower(), parts.port, _host(parts.hostname or "")
    except ValueError as err:  # UnicodeError is one
        raise UsageError(f"the URL of the endpoint cannot be read: {err}") from err
    if parts.username is not None or parts.password is not None:
        raise UsageError(
            "the URL of the endpoint has a user name or a password in it",
            hint="a key goes into EDGELLM_API_KEY or the keyring, and never into the address",
        )
    if scheme not in _PORTS or not host:
        raise UsageError(
            "the URL of the endpoint must begin with http:// or https:// and a host",
            hint="for instance http://127.0.0.1:8080/v1",
        )
    return Address(scheme, host, port or _PORTS[scheme], _chat_path(parts.path), parts.query)


def origin_of(url: str) -> str:
    """Return scheme, host and port of an endpoint's URL, in the one way they are written here.

    Raises:
        UsageError: as `address_of`.
    """
    return address_of(url).origin


def is_loopback(host: str) -> bool:
    """Return whether a host name or number can only be this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        number = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(number, "ipv4_mapped", None)
    return number.is_loopback or (mapped is not None and mapped.is_loopback)


def _host(name: str) -> str:
    return name.lower() if name.isascii() else name.encode("idna").decode("ascii")


def _chat_path(path: str) -> str:
    parts = [part for part in path.split("/") if part]  # a slash too many means nothing
    base = "".join(f"/{part}" for part in parts)
    if base.endswith(_CHAT):
        return base
    return (base or "/v1") + _CHAT
