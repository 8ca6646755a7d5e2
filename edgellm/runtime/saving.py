"""What an answer leaves to be saved: the states of its prompt, handed over when they hold nobody up."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from edgellm.runtime.prefill import BEING_STORED
from edgellm.store.answers import Skipped

if TYPE_CHECKING:
    from edgellm.core import SnapshotUse
    from edgellm.runtime.prefill import Prefilled
    from edgellm.store.answers import Saved
    from edgellm.store.background import SnapshotWriter

SETTLE_S: Final = 0.05
"""How long the end of an answer, already shown, waits to say that its snapshot was not written."""

WAIT_S: Final = 0.2


class Saving:
    """What one answer leaves to be saved: begun after its first token, told at its end.

    Args:
        filled: the prompt in memory, with the states to save.
        writer: writes them, or None.
        n_prefix: length of the prefix, about which is told.
    """

    def __init__(self, filled: Prefilled, writer: SnapshotWriter | None, n_prefix: int) -> None:
        self._filled = filled
        self._writer = writer
        self._told: list[Saved | Skipped] = []
        self._has_begun = False
        lengths = [len(state.tokens) for state in filled.unsaved]
        # Behind the prefix there may be ends of messages, which nobody asks about.
        self._at = lengths.index(n_prefix) if n_prefix in lengths else None

    def begin(self) -> None:
        """Hand the states over; called once, however the answer goes."""
        filled, self._has_begun = self._filled, True
        if filled.unsaved and self._writer is not None:
            self._writer.submit(filled.unsaved, done=filled.release, told=self._told)

    def end(self) -> None:
        """Let others read the prompt, where the answer failed before the states were handed over."""
        if not self._has_begun and self._filled.release is not None:
            self._filled.release()

    def use(self) -> SnapshotUse:
        """Say what the store did, as far as it is known when the answer ends."""
        if self._at is None or self._writer is None:
            return self._filled.snapshot
        # A disk that refuses does so at once, and a program of one answer asks only here.
        self._writer.settle(SETTLE_S)
        return self._not_kept() or self._filled.snapshot

    def waited(self) -> SnapshotUse:
        """Wait until all is written, and say what became of it: code `stored` where it is there."""
        use, writer = self._filled.snapshot, self._writer
        if self._at is None or writer is None:
            return use
        while not writer.settle(WAIT_S):
            pass  # in steps, so that an interrupt is heard
        return self._not_kept() or replace(use, reason="stored", code="stored")

    def _not_kept(self) -> SnapshotUse | None:
        """Say why the prefix is not there; None where it is, or where nobody knows yet."""
        use, told = self._filled.snapshot, tuple(self._told)
        if self._at is None or len(told) <= self._at or told[self._at].is_stored:
            return None
        # What it leans on came before it, and is then the reason.
        why = next(
            outcome for outcome in told if isinstance(outcome, Skipped) and not outcome.is_stored
        )
        reason = f"{use.reason.partition(BEING_STORED)[0]}; not kept: {why.reason}"
        return replace(use, reason=reason)
