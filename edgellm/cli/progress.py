"""Progress of long work on stderr: one line that rewrites itself, or a line for each tenth.

On a terminal the line carries a bar, the rate and the time left; elsewhere, and on a terminal that
cannot rewrite a line, ten lines.
Nothing of it is coloured, so `NO_COLOR` has nothing to turn off.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from edgellm.cli import render
from edgellm.cli.rewritten import RewrittenLine
from edgellm.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

_BAR_WIDTH: Final = 12
_REDRAW_S: Final = 0.1
_TENTH: Final = 10


class ByteProgress:
    """Shows how many bytes of a known total are done."""

    def __init__(
        self,
        verb: str,
        *,
        quiet: bool = False,
        clock: Callable[[], float] = time.monotonic,
        terminal: bool | None = None,
    ) -> None:
        self._verb = verb
        self._quiet = quiet
        self._clock = clock
        self._line = RewrittenLine(on=terminal)
        self._start_s = clock()
        self._drawn_s = float("-inf")
        self._tenth = 0

    def __call__(self, done_bytes: int, total_bytes: int) -> None:
        """Show that `done_bytes` of `total_bytes` are done."""
        if self._quiet or total_bytes <= 0:
            return
        if not self._line.on:
            tenth = done_bytes * _TENTH // total_bytes
            if tenth > self._tenth:
                self._tenth = tenth
                render.write_err(f"{self._verb}: {self._figures(done_bytes, total_bytes)}\n")
            return
        now_s = self._clock()
        if now_s - self._drawn_s >= _REDRAW_S or done_bytes >= total_bytes:
            self._drawn_s = now_s
            filled = _BAR_WIDTH * done_bytes // total_bytes
            bar = "#" * filled + "." * (_BAR_WIDTH - filled)
            self._line.show(f"{self._verb} [{bar}] {self._figures(done_bytes, total_bytes)}")

    def close(self) -> None:
        """Take the line away."""
        self._line.show("")

    def _figures(self, done_bytes: int, total_bytes: int) -> str:
        passed_s = self._clock() - self._start_s
        percent = 100 * done_bytes // total_bytes
        text = f"{percent} %, {format_bytes(done_bytes)} of {format_bytes(total_bytes)}"
        if passed_s <= 0 or done_bytes <= 0:
            return text
        rate = done_bytes / passed_s
        left_s = (total_bytes - done_bytes) / rate
        return f"{text}, {format_bytes(int(rate))}/s, {left_s:.0f} s left"
