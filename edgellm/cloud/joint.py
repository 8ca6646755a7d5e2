"""The joint of an answer that was begun elsewhere: nothing twice, and no second beginning.

A server may send the beginning again before it goes on: that is cut. One that does not know how to go on
starts anew, with much the same words: that is refused, for the two halves would not fit. A few words are
held back until that can be told.
"""

from __future__ import annotations

import difflib
import re
from typing import Final

MIN_TOLD_CHARS: Final = 12
"""Fewer characters in common with the beginning say nothing."""

LOOKED_AT_CHARS: Final = 24
ALIKE: Final = 0.75
"""Above this ratio of `difflib` two starts are two tries at one: `1. Beach: A ...`, `2. Beach: A ...`."""

_MOST_HELD_CHARS: Final = 1024  # blanks without end would be looked at again with each one
_WORD: Final = re.compile(r"\w+")


class Restarted(Exception):
    """What came is not the rest of the answer; `args[0]` says what it is."""


class Joint:
    """Takes the text of a continuation and returns what fits behind the beginning.

    Args:
        begun: what was shown; "" lets everything through.
    """

    def __init__(self, begun: str) -> None:
        self._sent = begun.rstrip()
        self._blank = begun[len(self._sent) :]
        # Behind a line's end the next line may well look like the first: lists and tables do.
        self._is_within_line = "\n" not in self._blank
        self._held: str | None = "" if self._sent else None
        self._is_start = bool(self._blank)

    def feed(self, text: str) -> str:
        """Return what may be shown of a piece, and of what was held back before it.

        Raises:
            Restarted: the answer began anew.
        """
        if self._held is None:
            return self._unblanked(text)
        held = self._held + text
        is_echo = len(held) < len(self._sent) and self._sent.startswith(held)
        is_short = len(held) < _MOST_HELD_CHARS and len(held.lstrip()) < LOOKED_AT_CHARS
        if is_echo or (self._is_within_line and is_short):
            self._held = held
            return ""
        self._held = None
        if held.startswith(self._sent):
            return self._echoed(held)
        self._check(held)
        return self._unblanked(held)

    def flush(self) -> str:
        """Return what was held back when the answer ended.

        Raises:
            Restarted: it ended within the words it began with.
        """
        if not self._held:
            return ""
        held, self._held = self._held, None
        if held.startswith(self._sent):
            return self._echoed(held)
        self._check(held)
        return self._unblanked(held)

    def _echoed(self, held: str) -> str:
        if len(self._sent) < MIN_TOLD_CHARS:
            raise Restarted(
                f"it repeats all {len(self._sent)} characters, or goes on with the same"
            )
        return self._unblanked(held[len(self._sent) :])

    def _check(self, held: str) -> None:
        n_same = _n_common(held, self._sent)
        if n_same >= MIN_TOLD_CHARS and " " in held[:n_same].strip():
            raise Restarted(f"it begins with the same {n_same} characters")
        if self._is_within_line and _is_alike(held.lstrip(), self._sent.lstrip()):
            raise Restarted("it begins with much the same words")
        if self._blank or not self._sent[-1].isalnum():
            return
        # Glued to the last letter without a space: the very word that the answer began with, or a
        # capital. Names such as GitHub are refused too; that costs a restart, and garbles nothing.
        first, begun = _first_word(held), _first_word(self._sent)
        is_again = len(first) > 1 and first == begun and len(self._sent) > len(begun)
        if is_again or (self._sent[-1].islower() and first[:1].isupper()):
            raise Restarted(f"it begins with {first!r} in the middle of a word")

    def _unblanked(self, text: str) -> str:
        """Cut the white space that was shown already off the start of the continuation."""
        if not self._is_start or not text:
            return text
        n_same = _n_common(text, self._blank)
        self._is_start = n_same == len(text) < len(self._blank)
        self._blank = self._blank[n_same:]
        return text[n_same:]


def _is_alike(one: str, other: str) -> bool:
    n_chars = min(LOOKED_AT_CHARS, len(one), len(other))
    if n_chars < MIN_TOLD_CHARS:
        return False
    return difflib.SequenceMatcher(None, one[:n_chars], other[:n_chars], False).ratio() > ALIKE


def _first_word(text: str) -> str:
    found = _WORD.match(text)
    return found.group() if found else ""


def _n_common(one: str, other: str) -> int:
    n_most = min(len(one), len(other))
    return next((n for n in range(n_most) if one[n] != other[n]), n_most)
