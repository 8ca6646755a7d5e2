"""From token bytes to text: whole UTF-8 characters only, and nothing of a stop string.

What comes out, joined, is the decoding of all bytes at once (invalid ones as U+FFFD), up to the
first stop string. How the bytes were cut into tokens makes no difference.
"""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class TextJoiner:
    """Joins the bytes of tokens and holds back what may not be shown yet.

    Args:
        stop: texts that end the answer. The one that is complete first counts, of several that are
            complete at the same character the longest.

    Attributes:
        stopped: whether a stop string was found; everything after it is dropped.
    """

    def __init__(self, stop: tuple[str, ...] = ()) -> None:
        if "" in stop:
            raise ValueError("a stop string must not be empty")
        self.stopped = False
        self._stop = stop
        self._held = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, piece: bytes) -> str:
        """Add the bytes of one token and return the text that is safe to show now."""
        return self._advance(self._decoder.decode(piece))

    def flush(self) -> str:
        """End the text and return what was held back; nothing after a stop string."""
        text = self._advance(self._decoder.decode(b"", final=True)) + self._held
        self._held = ""
        return text

    def _advance(self, fresh: str) -> str:
        if self.stopped:
            return ""
        text = self._held + fresh
        found = _first_complete(text, self._stop)
        if found is not None:
            self.stopped = True
            self._held = ""
            return text[:found]
        n_safe = len(text) - max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[n_safe:]
        return text[:n_safe]


def text_of(pieces: Iterable[bytes], stop: tuple[str, ...] = ()) -> str:
    """Return the text that was shown when these pieces had come, what is held back left out."""
    joiner = TextJoiner(stop)
    return "".join([joiner.feed(piece) for piece in pieces])


def _first_complete(text: str, stops: tuple[str, ...]) -> int | None:
    """Return where the stop string begins that ends first, or None."""
    found = [(at + len(stop), at) for stop in stops if (at := text.find(stop)) >= 0]
    return min(found)[1] if found else None


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that begins `stop` without completing it."""
    for n_chars in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:n_chars]):
            return n_chars
    return 0
