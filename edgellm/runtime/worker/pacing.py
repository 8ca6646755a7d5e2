"""Pacing: tokens of a fast model leave in small groups.

Each frame that arrives wakes the program, on a processor that the engine counts on: where every core
computes, its other threads wait for the one that was taken away. A reader cannot tell tokens apart that
are a hundredth of a second from each other, so some of them wait for the next one, which is near.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgellm.runtime.worker.frames import Sender

LONGEST_WAIT_S: Final = 0.04
"""A token waits so long for others, if they come as quickly as it did: 25 times a second there is text."""


class Pacing:
    """Sends frames of tokens, together where they follow each other closely.

    The first token of an answer never waits, nor does one that came later than its wait would last.
    Whatever else is sent takes along those that wait.

    Args:
        sender: where frames go.
        clock: seconds that only grow.
    """

    def __init__(self, sender: Sender, clock: Callable[[], float] = monotonic) -> None:
        self._sender = sender
        self._clock = clock
        self._came_s = self._sent_s = float("-inf")

    def begin(self) -> None:
        """Begin an answer."""
        self._came_s = self._sent_s = float("-inf")

    def put(self, frame: bytes) -> None:
        """Send a token's frame now, or let it wait for the next one.

        Raises:
            OSError: nobody reads any more.
        """
        now_s = self._clock()
        next_s = now_s + (now_s - self._came_s)
        self._came_s = now_s
        if next_s - self._sent_s <= LONGEST_WAIT_S:
            self._sender.hold(frame)
            return
        self._sender.put(frame)
        self._sent_s = now_s
