"""Settling: the memory at a cut is copied out, and left as whoever restores the copy will have it.

Where a tier rounds, the run goes on from the rounded memory. Where a restored memory lies differently
from one that was decoded, it is restored at every cut, whether snapshots are kept or not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from edgellm.core import Tier
from edgellm.errors import SnapshotIncompatible
from edgellm.runtime.keeper import Base, Keeper, head_of
from edgellm.runtime.turns import turn_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgellm.engines.base import Engine
    from edgellm.policy.snapshots import Choice
    from edgellm.runtime.keeper import Held
    from edgellm.runtime.storing import Storing
    from edgellm.store.background import Unsaved
    from edgellm.store.state import Fingerprint, KVState

_ROWS_STAY: Final = frozenset({"dense", "mla"})
"""Memories whose rows never change once they are there: the last cut holds all the shorter ones."""


@dataclass(frozen=True, slots=True)
class Start:
    """Where reading a prompt begins.

    Attributes:
        n_tokens: how many are in the memory.
        reason, code: what the store or the live memory did.
        restore_s: time that took.
        base: the snapshot that holds just these tokens.
        restored_bytes: length of the file they came from.
        disk_s: of that time, what it took to find, read, check and restore that file.
        fingerprint: under which longer ones are kept.
        keeps: the cuts that are to be kept, and those only.
        release: gives back the right to read this prompt for others.
    """

    n_tokens: int
    reason: str
    code: str
    restore_s: float = 0.0
    base: Base = field(default_factory=Base)
    restored_bytes: int = 0
    disk_s: float = 0.0
    fingerprint: Fingerprint | None = None
    keeps: frozenset[int] = frozenset()
    release: Callable[[], None] | None = None

    def let_in(self) -> None:
        """Give back the right to read this prompt, where it was taken."""
        if self.release is not None:
            self.release()


class Settling:
    """The cuts of one prompt, one after the other.

    Args:
        engine: holds what is before the first cut to come.
        held: is told what the memory rests on.
        storing: decides what is kept; None where snapshots are off.
        tokens: of the prompt.
        ends: where its segments end.
        n_prefix: where its last cut is; behind it messages end.
        start: where reading it began.
        base: the longest snapshot of what is in the memory.
        history: all places where the memory was cut so far.

    Attributes:
        cuts: all places where the memory was cut and is going to be.
        unsaved: what is to be written, in order.
        choice: what was decided about the last cut that was looked at, or None.
        base: the longest snapshot of what was read.
    """

    def __init__(
        self,
        engine: Engine,
        held: Held,
        storing: Storing | None,
        *,
        tokens: tuple[int, ...],
        ends: tuple[int, ...],
        n_prefix: int,
        start: Start,
        base: Base,
        history: tuple[int, ...],
    ) -> None:
        self._engine = engine
        self._held = held
        self._storing = storing if start.keeps else None
        self._tokens = tokens
        self._ends = ends
        self._n_prefix = n_prefix
        self._start = start
        self.cuts = tuple(sorted({*history, *(end for end in ends if end > start.n_tokens)}))
        self.base = base
        self._fingerprint = start.fingerprint
        self._passed: list[int] = []
        self.unsaved: list[Unsaved] = []
        self.choice: Choice | None = None

    def settle(self, cut: int) -> None:
        """Settle the memory, which ends at a cut of the prompt."""
        wanted = cut in self._start.keeps and self._storing is not None
        moves = self._engine.restore_moves
        if self._engine.snapshot_block() or not (wanted or moves):
            return
        if wanted and cut != max(self._start.keeps) and self._is_in_the_last():
            self._passed.append(cut)
            return
        try:
            state = self._engine.capture()
            if not (wanted and self._keep(cut, state)) and moves:
                self._engine.restore(state)
        except (SnapshotIncompatible, MemoryError):
            if self._engine.position != cut:
                self._read_again(cut)

    def _is_in_the_last(self) -> bool:
        """Return whether one capture at the last cut will hold this cut's rows, bit for bit."""
        storing, fingerprint = self._storing, self._fingerprint
        return (
            storing is not None
            and fingerprint is not None
            and storing.tier(fingerprint) is Tier.EXACT
            and not storing.must_measure(fingerprint)
            and not self._engine.restore_moves
            and self._engine.model.memory in _ROWS_STAY
        )

    def _keep(self, cut: int, state: KVState) -> bool:
        """Hand a state over to be saved; return whether the memory was restored meanwhile."""
        storing, fingerprint = self._storing, self._fingerprint
        if storing is None or fingerprint is None:
            return False
        if self._engine.fingerprint().digest() != fingerprint.digest():
            return False  # the model file was written to while this prompt was read
        restored = storing.measure(self._engine, fingerprint, state)
        passed, self._passed = self._passed, []
        for at in passed:
            if (head := head_of(state, at)) is not None:
                self._add(storing, fingerprint, at, head)
        return self._add(storing, fingerprint, cut, state) or restored

    def _add(self, storing: Storing, fingerprint: Fingerprint, cut: int, state: KVState) -> bool:
        tokens = self._tokens[:cut]
        keeper = Keeper(self._engine, storing, self._held)
        own = tuple(end for end in self._ends if end <= self._n_prefix)
        name = turn_name(tokens, own) if cut > self._n_prefix else ""
        kept = keeper.keep(fingerprint, tokens, state, self.base, name, cuts=self.cuts)
        self.choice = kept.choice
        if kept.unsaved is not None:
            self.unsaved.append(kept.unsaved)
            key = storing.store.key(fingerprint, tokens, cuts=self.cuts)
            self.base = self.base.with_longer(key, cut)
        return kept.was_restored

    def _read_again(self, cut: int) -> None:
        """Decode everything before a cut: the memory was lost, and what was rounded with it.

        Its rows are no stored snapshot's now: what is kept from here on is kept whole.
        """
        self._engine.truncate(0)
        self._held.keep(0)
        if self._storing is not None and self.base.key:
            self._storing.notes.append(
                "a prompt was read twice, and is kept whole: no memory was left"
            )
        self.base = Base()
        self._fingerprint = self._fingerprint and self._engine.fingerprint()
        self.cuts = self._ends
        at = 0
        for end in (*(c for c in self._ends if c < cut), cut):
            self._engine.decode(self._tokens[at:end])
            at = end
