"""Claim: of several processes that miss the same prefix, who reads it, and how long the others wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from edgellm.store.disk.flight import Lease
    from edgellm.store.snapshots import SnapshotStore
    from edgellm.store.state import Fingerprint

SLOW_TOKENS_PER_S: Final = 50.0
"""How fast another process is taken to read its prompt where nothing was measured."""

MAX_UNKNOWN_WAIT_S: Final = 30.0
"""The longest wait where nothing was measured."""

WAIT_FACTOR: Final = 1.25
WAIT_MORE_S: Final = 1.0
"""A wait is the prefill that was predicted and a little more: its first token and the disk."""


class Claim:
    """The right to read one prefix for everybody who misses it.

    Args:
        store: where its snapshot is missing.
        fingerprint: of the engine.
        tokens: the prefix.
        cuts: all places where its prompt is cut.
    """

    def __init__(
        self,
        store: SnapshotStore,
        fingerprint: Fingerprint,
        tokens: Sequence[int],
        cuts: Sequence[int] = (),
    ) -> None:
        self._store = store
        self._fingerprint = fingerprint
        self._tokens = tokens
        self._cuts = cuts
        self._lease: Lease | None = None

    def taken(self) -> bool:
        """Ask for it, without waiting; True when this process is to read the prefix."""
        if self._lease is None:
            self._lease = self._store.lease(self._fingerprint, self._tokens, cuts=self._cuts)
        return self._lease is not None

    def waited(self, tokens_per_s: float | None, stopped: Callable[[], bool]) -> bool:
        """Wait for the process that reads it.

        Args:
            tokens_per_s: how fast prompts are read here, or None when nobody knows.
            stopped: asked meanwhile; True ends the waiting at once.

        Returns:
            True when it is time to look again, False when waiting longer does not pay.
        """
        read_s = len(self._tokens) / (tokens_per_s or SLOW_TOKENS_PER_S)
        wait_s = WAIT_FACTOR * read_s + WAIT_MORE_S
        wait_s = wait_s if tokens_per_s else min(wait_s, MAX_UNKNOWN_WAIT_S)
        return self._store.await_other(
            self._fingerprint, self._tokens, wait_s, stopped, cuts=self._cuts
        )

    def release(self) -> None:
        """Let the next one in; calling it again does nothing."""
        if self._lease is not None:
            self._lease.release()
