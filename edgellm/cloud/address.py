"""Addresses: from what a user calls an endpoint to the one URL that is asked.

The base may be given with or without `/v1`, with a slash at its end, or as the whole address of the
chat completions. A path that is there is left as it is, and so is a query.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from edgellm.errors import UsageError
from edgellm.routing import is_loopback_host, origin_of

_CHAT: Final = "/chat/completions"
_PORTS: Final = {"http": 80, "https": 443}
_AZURE: Final = "/openai/deployments/"


@dataclass(frozen=True, slots=True)
class Address:
    """Where an endpoint is.

    Attributes:
        origin: scheme, host and port, the last one only where it is not the scheme's own.
        host: in lower case, without brackets.
        port: its number, the scheme's own where none was given.
        path: of the chat completions.
        query: without its question mark, or "". It may hold a secret and is never shown.
    """

    origin: str
    host: str
    port: int
    path: str
    query: str

    @property
    def scheme(self) -> str:
        """`http` or `https`."""
        return self.origin.partition(":")[0]

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
        return is_loopback_host(self.host)

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
        UsageError: it has no origin (`routing.origin_of`), or a path that is no plain ASCII.
    """
    origin = origin_of(url)
    parts = urlsplit(url)
    if not (parts.path + parts.query).isascii():
        raise UsageError(
            "the endpoint's URL has letters beyond ASCII in its path",
            hint="write them percent-encoded, as in `%C3%BC`",
        )
    port = parts.port or _PORTS[parts.scheme]
    return Address(origin, parts.hostname or "", port, _chat_path(parts.path), parts.query)


def _chat_path(path: str) -> str:
    parts = [part for part in path.split("/") if part]  # a slash too many means nothing
    base = "".join(f"/{part}" for part in parts)
    if base.endswith(_CHAT):
        return base
    return (base or "/v1") + _CHAT
