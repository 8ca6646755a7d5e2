"""Taking the members of a JSON object one by one, or all at once, each checked."""

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
        return number(self._where, name, self.take(name), low)

    def text(self, name: str, pattern: re.Pattern[str]) -> str:
        """Take a text that `pattern` matches from end to end."""
        return text(self._where, name, self.take(name), pattern)

    def choice(self, name: str, allowed: tuple[str, ...]) -> str:
        """Take one of a few words; another one is for a later version."""
        return choice(self._where, name, self.take(name), allowed)

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


def members(where: str, value: object, names: tuple[str, ...]) -> list[Any]:
    """Return the members of an object that has exactly these, in this order; quicker than `Fields`.

    Raises:
        SnapshotCorrupt: it is no object, one is missing, or they stand in another order.
        SnapshotIncompatible: there is one more, which might matter.
    """
    if type(value) is dict and tuple(value) == names:
        return [*value.values()]
    fields = Fields(where, value)
    for name in names:
        fields.take(name)
    fields.finish()
    raise SnapshotCorrupt(f"{where}: its members are not in their order")


def number(where: str, name: str, value: object, low: int = 0) -> int:
    """Return a member that is a whole number and at least `low`; else raise SnapshotCorrupt."""
    if type(value) is not int or not low <= value <= MAX_NUMBER:
        raise SnapshotCorrupt(f"{where}: {name!r} is not a number from {low}")
    return value


def text(where: str, name: str, value: object, pattern: re.Pattern[str]) -> str:
    """Return a member that is a text and of that pattern; else raise SnapshotCorrupt."""
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise SnapshotCorrupt(f"{where}: {name!r} is not what it should be")
    return value


def choice(where: str, name: str, value: object, allowed: tuple[str, ...]) -> str:
    """Return a member that is one of a few words.

    Raises:
        SnapshotCorrupt: it is no text.
        SnapshotIncompatible: it is another one, of a later version.
    """
    if isinstance(value, str) and value in allowed:
        return value
    found = text(where, name, value, TEXT)
    raise SnapshotIncompatible(f"{where}: unknown {name} {found[:40]!r}")
