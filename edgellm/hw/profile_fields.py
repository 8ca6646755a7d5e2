"""The fields of a device profile's file: TOML tables whose every value is checked when it is read.

A key that is not known is refused, so that a misspelt one is not silently without effect.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from edgellm.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from importlib.resources.abc import Traversable

_MAX_FILE_BYTES: Final = 1 << 16
_GIB: Final = 1 << 30


def parsed(file: Traversable) -> dict[str, Any]:
    """Read one file.

    Raises:
        UsageError: it is too long, or no TOML.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    with file.open("rb") as stream:
        data = stream.read(_MAX_FILE_BYTES + 1)
    if len(data) > _MAX_FILE_BYTES:
        raise UsageError(f"{file.name}: a profile is at most {_MAX_FILE_BYTES} bytes long")
    try:
        return tomllib.loads(data.decode("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as err:
        raise UsageError(f"{file.name}: no TOML: {err}") from err


@dataclass(frozen=True, slots=True)
class Table:
    """One table of a file; each getter raises `UsageError` for what is missing or not of its kind.

    Attributes:
        file: its name, for messages.
        where: what stands before a key there, such as `memory.`.
        values: by key.
        known: the keys there may be.
    """

    file: str
    where: str
    values: Mapping[str, Any]
    known: set[str]

    def __post_init__(self) -> None:
        for key in self.values:
            if key not in self.known:
                raise self._wrong(key, "is unknown")

    def table(self, key: str, known: set[str]) -> Table:
        """Return a table below this one, with its own known keys."""
        value = self._value(key, dict, "must be a table")
        return Table(self.file, f"{key}.", value, known)

    def text(self, key: str) -> str:
        """Return a text that is not blank."""
        value: str = self._value(key, str, "must be text")
        if not value.strip():
            raise self._wrong(key, "is empty")
        return value

    def texts(self, key: str) -> list[str]:
        """Return a list of texts, none of them empty."""
        value: list[Any] = self._value(key, list, "must be a list of texts")
        if not all(isinstance(item, str) and item for item in value):
            raise self._wrong(key, "must be a list of texts")
        return value

    def url(self, key: str) -> str:
        """Return an address that begins with `https://`."""
        value = self.text(key)
        if not re.fullmatch(r"https://[^\s]+", value):
            raise self._wrong(key, "must be an https:// address")
        return value

    def one_of(self, key: str, allowed: tuple[Any, ...]) -> Any:
        """Return a text that is one of those allowed."""
        value = self.text(key)
        if value not in allowed:
            raise self._wrong(key, f"must be one of {', '.join(allowed)}")
        return value

    def flag(self, key: str) -> bool:
        """Return true or false."""
        value: bool = self._value(key, bool, "must be true or false")
        return value

    def number(self, key: str, low: float, high: float) -> float:
        """Return a number within bounds, both included."""
        value = self._value(key, (int, float), "must be a number")
        if isinstance(value, bool) or not low <= value <= high:
            raise self._wrong(key, f"must be a number between {low:g} and {high:g}")
        return float(value)

    def gib(self, key: str) -> int:
        """Return bytes, which the file gives in GiB."""
        return int(self.number(key, 0.25, 4096) * _GIB)

    def _value(self, key: str, kind: type | tuple[type, ...], said: str) -> Any:
        if key not in self.values:
            raise self._wrong(key, "is missing")
        if not isinstance(self.values[key], kind):
            raise self._wrong(key, said)
        return self.values[key]

    def _wrong(self, key: str, what: str) -> UsageError:
        return UsageError(f"{self.file}: {self.where}{key} {what}")
