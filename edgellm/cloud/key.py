"""The key of an endpoint: seen by the header that carries it, and by nothing that prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgellm.errors import EndpointError

if TYPE_CHECKING:
    from edgellm.cloud.address import Address


class ApiKey:
    """A key, or none, that shows itself in no repr.

    Raises:
        EndpointError: it has a character that a header cannot carry.
    """

    __slots__ = ("_is_azure", "_text")

    def __init__(self, text: str | None, address: Address) -> None:
        # Keys are pasted, and read from files: a line end behind one is not part of it.
        self._text = (text or "").strip()
        self._is_azure = address.is_azure
        if not all("!" <= char <= "~" for char in self._text):
            raise EndpointError(
                f"the API key for {address.origin} has a blank, a line end or a letter in it that "
                "no header can carry",
                kind="auth",
                hint="copy the key again; only printable ASCII characters belong to one",
            )

    def __repr__(self) -> str:
        return "ApiKey(***)" if self._text else "ApiKey()"

    @property
    def text(self) -> str:
        """The key itself, to be looked for in what is quoted; "" is none."""
        return self._text

    def header(self) -> dict[str, str]:
        """Return the header that carries it, if there is one."""
        if not self._text:
            return {}
        if self._is_azure:
            return {"api-key": self._text}
        return {"Authorization": f"Bearer {self._text}"}
