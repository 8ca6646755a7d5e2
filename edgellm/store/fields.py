"""Taking the members of a JSON object one by one, each checked, until none is left."""

from __future__ import annotations

import re
from typing import Any, Final

from edgellm.errors import SnapshotCorrupt, SnapshotIncompatible

TEXT: Final = re.compile(r"[\x20-\x7e]*")
MAX_NUMBER: Final = (1 << 53) - 1  # what every JSON reader keeps whole


class Fields:
    """The members of one JSON object, which is used up.

    Raises:
        SnapshotCorrupt: a member is missing or not of the kind asked for (every method).
        SnapshotIncompatible: it is of a kind that only a later version may know.
    """

    def __init__(self, where: str, value: object) -> None:
        if not isinstance(value, dict):
            raise SnapshotCorrupt(f"{where} is not an object")
        self._where = where
        self._values: dict[str, Any] = value

    def take(self, name: str) -> Any:
        """Take a member, whatever it is."""
        try:
            return self._values.pop(name)
        except KeyError as err:
            raise SnapshotCorrupt(f"{self._where}: {name!r} is missing") from err

    def number(self, name: str, low: int = 0) -> int:
        """Take a whole number that is at least `low`."""
        value = self.take(name)
        if type(value) is not int or not low <= value <= MAX_NUMBER:
            raise SnapshotCorrupt(f"{self._where}: {name!r} is not a number from {low}")
        return value

    def text(self, name: str, pattern: re.Pattern[str]) -> str:
        """Take a text that `pattern` matches from end to end."""
        value = self.take(name)
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise SnapshotCorrupt(f"{self._where}: {name!r} is not what it should be")
        return value

    def choice(self, name: str, allowed: tuple[str, ...]) -> str:
        """Take one of a few words; another one is for a later version."""
        value = self._values.get(name)
        if isinstance(value, str) and value in allowed:
            del self._values[name]
            return value
        value = self.text(name, TEXT)
        raise SnapshotIncompatible(f"{self._where}: unknown {name} {value[:40]!r}")

    def items(self, name: str) -> list[Any]:
        """Take a list."""
        value = self.take(name)
        if not isinstance(value, list):
            raise SnapshotCorrupt(f"{self._where}: {name!r} is not a list")
        return value

    def fields(self, name: str) -> Fields:
        """Take an object."""
        return Fields(name, self.take(name))

    def pairs(self, name: str) -> tuple[tuple[str, str], ...]:
        """Take a list of pairs of printable ASCII text."""
        pairs = self.items(name)
        for pair in pairs:
            texts = isinstance(pair, list) and all(isinstance(text, str) for text in pair)
            if not texts or len(pair) != 2 or not all(TEXT.fullmatch(text) for text in pair):
                raise SnapshotCorrupt(f"{self._where}: {name!r} is not pairs of text")
        return tuple((first, second) for first, second in pairs)

    def rest(self) -> dict[str, Any]:
        """Return the members that nobody has taken."""
        return self._values

    def finish(self) -> None:
        """Refuse members that this version does not know: they might matter."""
        if self._values:
            unknown = min(self._values)
            raise SnapshotIncompatible(f"{self._where}: unknown field {unknown[:40]!r}")
