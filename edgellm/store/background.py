"""SnapshotWriter: a thread that saves a state while the answer goes on.

It holds at most one state at a time: states are large, and the next one is as good as the last.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from edgellm.store import names
from edgellm.store.snapshots import Skipped

if TYPE_CHECKING:
    from edgellm.store.names import TokenIds
    from edgellm.store.snapshots import Saved, SnapshotStore
    from edgellm.store.state import Fingerprint, KVState, PackedState

    AnyState = KVState | PackedState
    Job = tuple[Fingerprint, TokenIds, AnyState]

EXIT_WAIT_S: Final = 2.0


class SnapshotWriter:
    """Saves states of one store in a daemon thread, started by the first of them.

    An interpreter that ends in the middle of a write leaves a temporary file, never a snapshot.
    """

    def __init__(self, store: SnapshotStore) -> None:
        self._store = store
        self._changed = threading.Condition()
        self._job: Job | None = None
        self._closed = False
        self._outcomes: list[Saved | Skipped] = []
        self._thread: threading.Thread | None = None

    @property
    def outcomes(self) -> tuple[Saved | Skipped, ...]:
        """What became of each state so far, in the order they were done with."""
        with self._changed:
            return tuple(self._outcomes)

    @property
    def failure(self) -> str:
        """Why a state could not be saved for the first time, or "" while nothing went wrong."""
        return next((o.reason for o in self.outcomes if isinstance(o, Skipped) and o.failed), "")

    @property
    def failed_last(self) -> bool:
        """Whether the state done with last could not be saved."""
        return any(isinstance(o, Skipped) and o.failed for o in self.outcomes[-1:])

    def settle(self, timeout_s: float) -> bool:
        """Wait for the state in hand; return True when it is done with."""
        with self._changed:
            return self._changed.wait_for(lambda: self._job is None, timeout_s)

    def submit(self, fingerprint: Fingerprint, tokens: TokenIds, state: AnyState) -> bool:
        """Hand over a state to be saved; neither it nor `tokens` may change from now on.

        Returns:
            False when it was dropped, because the writer is busy or closed; `outcomes` says so.

        Raises:
            ValueError: a token id is no non-negative 32-bit number.
        """
        names.token_ids(tokens)  # the caller hears of its mistake, not the thread
        with self._changed:
            if self._closed or self._job is not None:
                why = "closed" if self._closed else "busy with the snapshot before"
                self._outcomes.append(Skipped(f"the writer is {why}"))
                return False
            if not self._start():
                self._outcomes.append(Skipped("no thread could be started", failed=True))
                return False
            self._job = (fingerprint, tokens, state)
            self._changed.notify_all()
            return True

    def _start(self) -> bool:
        """Start the thread if it is not running; False when the system has none left."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="edgellm-snapshot-writer", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # "can't start new thread"
                return False
            self._thread = thread
        return True

    def close(self, timeout_s: float = EXIT_WAIT_S) -> bool:
        """Take no more states and wait for the one in hand, but not for ever.

        Returns:
            True when nothing is left to write.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is None:
            return True
        thread.join(timeout_s)
        return not thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._job is not None or self._closed)
                job = self._job
            if job is None:
                return
            outcome = self._store.save(*job)
            del job  # the thread must not keep the last state alive while it waits
            with self._changed:
                self._outcomes.append(outcome)
                self._job = None
                self._changed.notify_all()
