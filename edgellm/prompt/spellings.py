"""How control tokens are spelled, and where a text holds such a spelling or could begin one.

A text is scanned once, however many spellings a vocabulary has: the first two characters of each
decide where a closer look is worth it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Span = tuple[int, int]
_PRINTED = frozenset(map(chr, range(0x21, 0x7F)))
_NOWHERE = re.compile(r"(?!)")


class Spellings:
    """The spellings of a vocabulary's control tokens.

    Args:
        texts: one a token; empty ones are left out.

    Attributes:
        characters: every character that a spelling has.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = frozenset(filter(None, texts))
        self.characters = frozenset(char for text in self._texts for char in text)
        self._related = _PRINTED.union(*map(_cases, self.characters))
        self._sorted = sorted(self._texts)
        self._max_chars = max(map(len, self._texts), default=0)
        lengths: dict[str, set[int]] = {}
        seconds: dict[str, set[str]] = {}
        for text in self._texts:
            lengths.setdefault(text[:2], set()).add(len(text))
            seconds.setdefault(text[0], set()).add(text[1:2])
        self._lengths = {start: sorted(found, reverse=True) for start, found in lengths.items()}
        starts = "|".join(map(_start, seconds, seconds.values()))
        self._start = re.compile(starts) if starts else _NOWHERE

    def spans(self, text: str) -> tuple[Span, ...]:
        """Return where spellings stand, from the left, of several at one place the longest."""
        found = []
        at = 0
        for start, end in self._occurrences(text):
            if start >= at:
                found.append((start, end))
                at = end
        return tuple(found)

    def occurrences(self, text: str) -> list[int]:
        """Return every position at which a spelling begins, inside another one too."""
        return [start for start, _ in self._occurrences(text)]

    def beginnings(self, text: str) -> list[int]:
        """Return every position at which one begins, or would if other text came behind.

        Where the first two characters agree, or the first one is the last that is no space.
        """
        return [match.start() for match in self._start.finditer(text)]

    def openings(self, text: str) -> list[int]:
        """Return every position at which one begins, or is begun by the end of the text.

        Spaces at the end do not count, as templates trim them.
        """
        stripped = text.rstrip()
        found = self.occurrences(text)
        near = len(stripped) - self._max_chars
        for at in self.beginnings(text):
            if at > near and self._begins(stripped[at:]):
                found.append(at)
        return sorted(set(found))

    def ingredients(self, text: str) -> set[str]:
        """Return the characters of a text of which a template could make spellings.

        Those of spellings in any case; and all that ASCII prints, which entities are made of, and
        whatever else a template may write a sign for.
        """
        chars = set(text)
        kept = chars & self._related
        return kept.union(c for c in chars - kept if not self._related.isdisjoint(_cases(c)))

    def _begins(self, text: str) -> bool:
        """Return whether a spelling goes on behind this text."""
        place = bisect_right(self._sorted, text)
        return place < len(self._sorted) and self._sorted[place].startswith(text)

    def _occurrences(self, text: str) -> Iterator[Span]:
        n_chars = len(text)
        for match in self._start.finditer(text):
            start = match.start()
            for key in (text[start : start + 2], text[start]):
                ends = (start + n for n in self._lengths.get(key, ()))
                end = next((n for n in ends if text[start:n] in self._texts and n <= n_chars), 0)
                if end:
                    yield start, end
                    break


def _cases(char: str) -> set[str]:
    """Return the characters that changing the case of one can lead to; of U+017F to an S."""
    return {char, *char.lower(), *char.upper(), *char.title(), *char.casefold()}


def _start(first: str, seconds: set[str]) -> str:
    """Return a pattern for the first character of a spelling, by what may follow it."""
    if "" in seconds:
        return re.escape(first)
    follows = "".join(map(re.escape, sorted(seconds)))
    return f"{re.escape(first)}(?=[{follows}]|\\s*\\Z)"
