"""One line on stderr that is rewritten in place, for waiting and for progress.

Blanks take the old text away and not an escape sequence, so no terminal can misread it. Where lines
cannot be rewritten nothing is written at all.
"""

from __future__ import annotations

import sys
import unicodedata

from edgellm.cli import render, streams


class RewrittenLine:
    """The line; "" takes it away."""

    def __init__(self, *, on: bool | None = None) -> None:
        self.on = streams.can_rewrite(sys.stderr) if on is None else on
        self._shown = ""

    def show(self, text: str) -> None:
        """Replace what is shown by `text`, cut to the width of the terminal."""
        # A line that wraps could not be rewritten.
        text = fitted(streams.one_line(text), streams.columns(sys.stderr) - 1)
        if self.on and text != self._shown:
            blanks = " " * (width(self._shown) - width(text))
            render.write_err_raw(f"\r{text}{blanks}" + ("" if text else "\r"))
            self._shown = text


def width(text: str) -> int:
    """Return the columns that text takes: two for most East Asian letters, none for a mark."""
    return sum(_cells(character) for character in text)


def fitted(text: str, n_columns: int) -> str:
    """Return the start of `text` that fits in `n_columns`."""
    used = 0
    for place, character in enumerate(text):
        used += _cells(character)
        if used > n_columns:
            return text[:place]
    return text


def _cells(character: str) -> int:
    if character.isascii():
        return 1
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
