"""SnapshotWriter: a thread that saves states while the answer goes on.

States are large: it holds one batch in hand and at most one behind it. The states of a batch are
written in order, each leaning on the one it names where that one is stored.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from edgellm.store.disk import names
from edgellm.store.snapshots import Saved, Skipped
from edgellm.store.state import PackedState
from edgellm.threads import Started

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from edgellm.store.snapshots import SnapshotStore
    from edgellm.store.state import Anchor, Fingerprint, KVState

EXIT_WAIT_S: Final = 2.0
_BUSY: Final = "the writer is busy with the snapshot before"
_CLOSED: Final = "the writer is closed"
_BROKEN: Final = "the writer broke off"


@dataclass(frozen=True, slots=True)
class Unsaved:
    """A state that was captured and waits to be written.

    Attributes:
        fingerprint: of the engine when it was captured.
        tokens: the prefix.
        state: the memory after exactly these tokens, as its tier keeps it.
        base_key: the snapshot whose rows are the first of these, or "" without one.
        lossless: whether time is spent to make the file smaller.
        text_sha256: the hash that `by_text` finds it under, or "".
        cuts: all places inside the prefix where it was cut, ascending.
    """

    fingerprint: Fingerprint
    tokens: tuple[int, ...]
    state: KVState | PackedState
    base_key: str = ""
    lossless: bool = False
    text_sha256: str = ""
    cuts: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class _Batch:
    """States to be written, what they are of, what is called at their end, and what became of them."""

    states: deque[Unsaved]
    prefixes: list[tuple[Fingerprint, tuple[int, ...], tuple[int, ...]]]
    done: Callable[[], None] | None = None
    told: list[Saved | Skipped] = field(default_factory=list)


class SnapshotWriter:
    """Saves states of one store in a daemon thread, started by the first of them.

    An interpreter that ends in the middle of a write leaves a temporary file, never a snapshot.

    Args:
        store: where they go.
        on_saved: called in the thread with the bytes of each file and the seconds it took.
    """

    def __init__(
        self, store: SnapshotStore, on_saved: Callable[[int, float], None] | None = None
    ) -> None:
        self._store = store
        self._on_saved = on_saved
        self._changed = threading.Condition()
        self._batches: deque[_Batch] = deque()
        self._closed = False
        self._outcomes: list[Saved | Skipped] = []
        self._anchors: dict[str, Anchor] = {}
        self._thread: Started | None = None

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
        """Wait for all states in hand; return True when they are done with."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._batches, timeout_s)

    def note(self, anchor: Anchor) -> None:
        """Remember a stored snapshot, so that later ones may lean on it."""
        with self._changed:
            self._anchors[anchor.key] = anchor

    def holds(self, key: str) -> bool:
        """Return whether a snapshot is stored, or is among those to be written."""
        with self._changed:
            if key in self._anchors:
                return True
            waiting = [prefix for batch in self._batches for prefix in batch.prefixes]
        return any(self._store.key(one, two, cuts=three) == key for one, two, three in waiting)

    def submit(
        self,
        states: Sequence[Unsaved],
        *,
        done: Callable[[], None] | None = None,
        may_wait: bool = False,
        told: list[Saved | Skipped] | None = None,
    ) -> bool:
        """Hand over states to be saved in order; nothing of them may change from now on.

        Args:
            states: at least one.
            done: called once, when they are written, have failed, or were dropped.
            may_wait: whether they may stand behind a batch in hand.
            told: gets what became of each of them, in their order, as soon as it is done with.

        Returns:
            False when they were dropped, because the writer is busy or closed; `outcomes` says so.

        Raises:
            ValueError: a token id is no non-negative 32-bit number.
        """
        for state in states:
            names.token_ids(state.tokens)  # the caller hears of its mistake, not the thread
        prefixes = [(state.fingerprint, state.tokens, state.cuts) for state in states]
        batch = _Batch(deque(states), prefixes, done, [] if told is None else told)
        taken = self._take(batch, 2 if may_wait else 1)
        if not taken and done is not None:
            done()
        return taken

    def _take(self, batch: _Batch, n_places: int) -> bool:
        with self._changed:
            if self._closed or len(self._batches) >= n_places:
                return self._refuse(batch, Skipped(_CLOSED if self._closed else _BUSY))
            if not self._start():
                return self._refuse(batch, Skipped("no thread could be started", failed=True))
            self._batches.append(batch)
            self._changed.notify_all()
            return True

    def _refuse(self, batch: _Batch, why: Skipped) -> bool:
        self._outcomes.append(why)
        batch.told += [why] * len(batch.states)
        return False

    def _start(self) -> bool:
        """Start the thread if it is not running; False when the system has none left."""
        if self._thread is None:
            try:
                self._thread = Started(self._run, "edgellm-snapshot-writer")
            except RuntimeError:  # "can't start new thread"
                return False
        return True

    def close(self, timeout_s: float = EXIT_WAIT_S) -> bool:
        """Take no more states and wait for those in hand, but not for ever.

        Returns:
            True when nothing is left to write.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is None:
            return True
        return thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while (batch := self._next()) is not None:
                # Popped one by one: the thread must not keep a state alive that is written.
                while batch.states:
                    self._save(batch.states.popleft(), batch.told)
                self._end(batch)
        finally:  # a fault of ours too, which the thread's hook shows: nobody may wait for ever
            self._give_up()

    def _next(self) -> _Batch | None:
        """Wait for a batch and return it; None when the writer is closed and nothing is left."""
        with self._changed:
            self._changed.wait_for(lambda: self._batches or self._closed)
            return self._batches[0] if self._batches else None

    def _end(self, batch: _Batch) -> None:
        """Let go of a batch; what is left of it was not saved."""
        with self._changed:
            broken = [Skipped(_BROKEN, failed=True)] * len(batch.states)
            self._outcomes += broken
            batch.told += broken
            batch.states.clear()
            done, batch.done = batch.done, None
        try:
            if done is not None:
                done()
        finally:
            with self._changed:
                self._batches.remove(batch)
                self._changed.notify_all()

    def _give_up(self) -> None:
        """Leave nothing behind; the next state to be saved starts another thread."""
        with self._changed, ExitStack() as ending:
            self._thread = None
            for batch in reversed(self._batches):
                ending.callback(self._end, batch)

    def _save(self, given: Unsaved, told: list[Saved | Skipped]) -> None:
        with self._changed:
            base = self._anchors.get(given.base_key)
        outcome: Saved | Skipped = Skipped(_BROKEN, failed=True)
        try:
            outcome = self._written(given, base)
        finally:
            with self._changed:
                self._outcomes.append(outcome)
                told.append(outcome)
                if outcome.anchor is not None:
                    self._anchors[outcome.anchor.key] = outcome.anchor
        if isinstance(outcome, Saved) and self._on_saved is not None:
            self._on_saved(outcome.n_bytes, outcome.save_s)

    def _written(self, given: Unsaved, base: Anchor | None) -> Saved | Skipped:
        if base is None and given.base_key and isinstance(given.state, PackedState):
            # Its rows were cut there; what went wrong with the other was said already.
            return Skipped("what it leans on was not stored")
        return self._store.save(
            given.fingerprint,
            given.tokens,
            given.state,
            base=base,
            lossless=given.lossless,
            text_sha256=given.text_sha256,
            cuts=given.cuts,
        )
