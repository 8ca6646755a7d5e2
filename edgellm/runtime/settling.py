"""Settling: the memory at a cut is copied out, and left as whoever restores the copy will have it.

Where a tier rounds, the run goes on from the rounded memory. Where a restored memory lies differently
from one that was decoded, it is restored at every cut, whether snapshots are kept or not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from edgellm.core import Tier
from edgellm.errors import SnapshotIncompatible
from edgellm.store.background import Unsaved
from edgellm.store.state import KVState, Part

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgellm.engines.base import Engine
    from edgellm.policy.snapshots import Choice
    from edgellm.runtime.live import Prompt
    from edgellm.runtime.storing import Storing
    from edgellm.store.state import Fingerprint

_ROWS_STAY: Final = frozenset({"dense", "mla"})
"""Memories whose rows never change once they are there: the last cut holds all the shorter ones."""

_COARSEST_LAST: Final = (Tier.EXACT, Tier.Q8, Tier.Q6, Tier.Q5, Tier.Q4)


class Held:
    """Which tier's numbers are in the memory, and from which cut on."""

    def __init__(self) -> None:
        self._tiers: dict[int, Tier] = {}

    def put(self, cut: int, tier: Tier) -> None:
        """Note that everything before a cut was rounded so."""
        self._tiers = {n: held for n, held in self._tiers.items() if n < cut} | {cut: tier}

    def keep(self, n_tokens: int) -> None:
        """Forget what came after the first `n_tokens`."""
        self._tiers = {n: held for n, held in self._tiers.items() if n <= n_tokens}

    @property
    def tier(self) -> Tier:
        """Return the coarsest tier the memory rests on."""
        return max(self._tiers.values(), key=_COARSEST_LAST.index, default=Tier.EXACT)


@dataclass(frozen=True, slots=True)
class Start:
    """Where reading a prompt begins.

    Attributes:
        n_tokens: how many are in the memory.
        reason, code: what the store or the live memory did.
        restore_s: time that took.
        base_key: the snapshot that holds just these tokens, or "".
        restored_bytes: length of the file they came from.
        fingerprint: under which longer ones are kept.
        keeps: the cuts that are to be kept, and those only.
        release: gives back the right to read this prompt for others.
    """

    n_tokens: int
    reason: str
    code: str
    restore_s: float = 0.0
    base_key: str = ""
    restored_bytes: int = 0
    fingerprint: Fingerprint | None = None
    keeps: frozenset[int] = frozenset()
    release: Callable[[], None] | None = None


class Settling:
    """The cuts of one prompt, one after the other.

    Args:
        engine: holds what is before the first cut to come.
        held: is told what the memory rests on.
        storing: decides what is kept; None where snapshots are off.
        prompt: being read.
        start: where reading it began.

    Attributes:
        unsaved: what is to be written, in order.
        choice: what was decided about the last cut that was looked at, or None.
    """

    def __init__(
        self, engine: Engine, held: Held, storing: Storing | None, prompt: Prompt, start: Start
    ) -> None:
        self._engine = engine
        self._held = held
        self._storing = storing if start.keeps else None
        self._prompt = prompt
        self._start = start
        self._base = (start.base_key, start.n_tokens)
        self._passed: list[int] = []
        self.unsaved: list[Unsaved] = []
        self.choice: Choice | None = None

    def settle(self, cut: int) -> None:
        """Settle the memory, which ends at a cut of the prompt."""
        wanted = cut in self._start.keeps and self._storing is not None
        moves = self._engine.restore_moves
        if self._engine.snapshot_block() or not (wanted or moves):
            return
        if wanted and cut != self._prompt.n_prefix and self._is_in_the_last():
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
        storing, fingerprint = self._storing, self._start.fingerprint
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
        storing, fingerprint = self._storing, self._start.fingerprint
        if storing is None or fingerprint is None:
            return False
        restored = storing.measure(self._engine, fingerprint, state)
        for passed in self._passed:
            if (head := head_of(state, passed)) is not None:
                self._add(storing, fingerprint, passed, head)
        self._passed.clear()
        return self._add(storing, fingerprint, cut, state) or restored

    def _add(self, storing: Storing, fingerprint: Fingerprint, cut: int, state: KVState) -> bool:
        """Pack a state as its tier keeps it, and go on from what a reader will unpack."""
        from edgellm.store.codec import pack_state, unpack_state
        from edgellm.store.state import PackedState

        self.choice = choice = storing.choose(fingerprint, state)
        if not choice.keep:
            return False
        tokens = self._prompt.tokens[:cut]
        base_key, n_before = self._base if self._is_kept(storing, self._base[0]) else ("", 0)
        kept = pack_state(state, choice.tier, n_before)
        is_packed = isinstance(kept, PackedState)
        if isinstance(kept, PackedState):
            self._engine.restore(unpack_state(kept, state))
            self._held.put(cut, kept.tier)
        self.unsaved.append(Unsaved(fingerprint, tokens, kept, base_key, choice.lossless))
        self._base = (storing.store.key(fingerprint, tokens), cut)
        return is_packed

    def _is_kept(self, storing: Storing, key: str) -> bool:
        """Return whether a snapshot is stored, or will be before the next one is."""
        return bool(self.unsaved) or (bool(key) and storing.writer.knows(key))

    def _read_again(self, cut: int) -> None:
        """Decode everything before a cut: the memory was lost, and what was rounded with it."""
        self._engine.truncate(0)
        self._held.keep(0)
        at = 0
        for end in (*(c for c in self._prompt.cuts if c < cut), cut):
            self._engine.decode(self._prompt.tokens[at:end])
            at = end


def head_of(state: KVState, n_tokens: int) -> KVState | None:
    """Return the state after the first tokens, as views; None where not every row is a position's."""
    if any(part.kind != "dense" or part.n_tokens != state.n_tokens for part in state.parts):
        return None
    parts = tuple(
        Part(
            part.kind,
            part.first,
            n_tokens,
            tuple(replace(section, rows=section.rows[:n_tokens]) for section in part.sections),
        )
        for part in state.parts
    )
    return KVState(n_tokens, parts)
