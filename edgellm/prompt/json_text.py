"""JSON and printed Python values inside a text: what of them is another text when made again.

Keys that stand in no order are a hint alone: most programs keep the order in which they were set.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

# Places at which JSON is tried: each costs at most what is read before it turns out to be none.
_MAX_TRIES: Final = 256
_MAX_CHARS: Final = 1 << 20
_OPENING: Final = re.compile(r"[{\[](?=\s*[\"\[{\]}\d])")
# What Python prints of a set of texts, whose order is another in every process.
_SET: Final = re.compile(r"(?:frozenset\()?\{'[^'{}\n]{0,200}'(?:, '[^'{}\n]{0,200}'){1,500}\}\)?")
SORTED_KIND: Final = "unsorted keys"
ORDERED: Final = "sort it before it is printed, once and for all"
TWICE: Final = "keep one of the two"
SORTED: Final = (
    "write it with sorted keys (`sort_keys=True`), so that no change of code reorders it"
)


class _Keys:
    """Notes what is odd about the keys of the objects that are read."""

    def __init__(self) -> None:
        self.twice = ""
        self.unsorted = False

    def __call__(self, pairs: list[tuple[str, Any]]) -> None:
        keys = [key for key, _ in pairs]
        seen: set[str] = set()
        for key in keys:
            if key in seen:
                self.twice = key
            seen.add(key)
        self.unsorted = self.unsorted or keys != sorted(keys)


def odd_values(text: str) -> Iterator[tuple[str, int, int, str, bool]]:
    """Yield kind, first and last place, advice, and whether it is only a hint, of each odd value."""
    for found in _SET.finditer(text):
        yield "unordered", found.start(), found.end(), ORDERED, False
    for start, end, keys in _objects(text):
        if keys.twice:
            yield "repeated key", start, end, f"{TWICE}: {keys.twice!r} stands twice", False
        elif keys.unsorted:
            yield SORTED_KIND, start, end, SORTED, True


def _objects(text: str) -> Iterator[tuple[int, int, _Keys]]:
    """Yield the JSON values in a text that hold objects; none inside another."""
    at, n_tries = 0, 0
    while n_tries < _MAX_TRIES and (opening := _OPENING.search(text, at)):
        n_tries += 1
        start, keys = opening.start(), _Keys()
        decoder = json.JSONDecoder(object_pairs_hook=keys)
        try:
            _, length = decoder.raw_decode(text[start : start + _MAX_CHARS])
        except (ValueError, RecursionError):
            at = start + 1
            continue
        at = start + length
        yield start, at, keys
