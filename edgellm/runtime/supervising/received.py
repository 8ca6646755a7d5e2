"""Received: what came of one request to an endpoint so far, and how many tokens that may be.

A stream comes in pieces that need not be tokens: some endpoints send character by character, some many
words at once. So what is surely more than was asked for is cut, and for what may be more than is paid for,
more has to be put aside.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from edgellm.cloud.events import CloudEnd, CloudReasoning, CloudToolCall, Traffic
from edgellm.runtime.text import TextJoiner

if TYPE_CHECKING:
    from edgellm.cloud.events import CloudEvent
    from edgellm.core import FinishReason

MANY_CHARS_PER_TOKEN: Final = 8
"""More than a text has on average, in any writing: so many characters are a token at least."""
MOST_CHARS_PER_TOKEN: Final = 128
"""No vocabulary has longer tokens: a count that would need them is not believed."""


class Received:
    """What came of one request so far.

    Args:
        stop: texts that end the answer; endpoints take only some of them.
        most_tokens: that were asked for. The endpoint was told, and some do not mind.

    Attributes:
        traffic: bytes that moved.
        end: the last event, None before it.
        n_chars: length of what came, thoughts and calls of tools included.
        cut: why the answer was ended here, "" where it was not.
    """

    def __init__(self, stop: tuple[str, ...], most_tokens: int) -> None:
        self.traffic = Traffic()
        self.end: CloudEnd | None = None
        self.n_chars = 0
        self.cut = ""
        self._most_tokens = most_tokens
        self._n_pieces = 0
        self._n_counted: int | None = None
        self._joiner = TextJoiner(stop)

    @property
    def is_over(self) -> bool:
        """Return whether nothing more is wanted."""
        return bool(self.end is not None or self.cut or self._joiner.stopped)

    @property
    def finish_reason(self) -> FinishReason:
        """Return how it ended."""
        if self.cut:
            return "length"
        return "stop" if self.end is None or self._joiner.stopped else self.end.finish_reason

    @property
    def n_tokens(self) -> int:
        """Return the tokens of it: the endpoint's own count; without one a piece is one or more."""
        n_counted = self._n_counted
        if n_counted is not None and self.n_chars <= n_counted * MOST_CHARS_PER_TOKEN:
            return n_counted
        return max(self._n_pieces, self.n_chars // MANY_CHARS_PER_TOKEN)

    def take(self, event: CloudEvent, n_counted: int | None = None) -> str:
        """Take what came, and return the text to be shown now.

        Args:
            event: of the endpoint's answer.
            n_counted: tokens of the answer by the endpoint's own count so far, None without one.
        """
        self._n_counted = n_counted
        if isinstance(event, CloudEnd):
            self.end = event
            return self._joiner.flush()
        if isinstance(event, CloudToolCall):
            call = {"name": event.name, "arguments": event.arguments}
            text = json.dumps(call | ({"id": event.id} if event.id else {}), ensure_ascii=False)
        else:
            text = event.text
            is_more = (n_counted or 0) > self._most_tokens
            if text and (is_more or self.n_chars // MANY_CHARS_PER_TOKEN >= self._most_tokens):
                return self.end_here(
                    f"went past the {self._most_tokens} tokens that were asked for"
                )
            self._n_pieces += bool(text)
        self.n_chars += len(text)
        if isinstance(event, CloudReasoning):
            return ""
        return self._joiner.feed(text.encode())

    def end_here(self, why: str) -> str:
        """Take no more, and return the text that was held back."""
        self.cut = why
        return self._joiner.flush()
