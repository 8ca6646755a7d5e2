"""Keeper: how a state that was captured is kept, and what the memory rests on afterwards.

Where a tier rounds, the memory goes on from what a reader will unpack.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from edgellm.core import Tier
from edgellm.runtime.found import mixed
from edgellm.store.background import Unsaved
from edgellm.store.disk.names import cuts_below
from edgellm.store.format.layout import MAX_LINKS
from edgellm.store.state import KVState, Part

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from edgellm.engines.base import Engine
    from edgellm.policy.snapshots import Choice
    from edgellm.runtime.storing import Storing
    from edgellm.store.state import Fingerprint

_COARSEST_LAST: Final = (Tier.EXACT, Tier.Q8, Tier.Q6, Tier.Q5, Tier.Q4)


class Held:
    """Which tier's numbers are in the memory, and from which cut on.

    Attributes:
        is_converted: whether it began with a state of other settings: nothing of it is kept, because
            its file would promise what it does not hold.
        changed: names of the soft fields that were others when its first rows were made.
    """

    def __init__(self) -> None:
        self._tiers: dict[int, Tier] = {}
        self.is_converted = False
        self.changed: tuple[str, ...] = ()

    def put(self, cut: int, tier: Tier, changed: tuple[str, ...] = ()) -> None:
        """Note that everything before a cut was rounded so, and with which other soft fields."""
        self._tiers = {n: held for n, held in self._tiers.items() if n < cut} | {cut: tier}
        self.changed = tuple(dict.fromkeys((*self.changed, *changed)))

    def keep(self, n_tokens: int) -> None:
        """Forget what came after the first `n_tokens`."""
        if n_tokens <= 0:
            self._tiers, self.is_converted, self.changed = {}, False, ()
            return
        behind = min((n for n in self._tiers if n > n_tokens), default=0)
        kept = {n: held for n, held in self._tiers.items() if n <= n_tokens}
        self._tiers = kept | {n_tokens: self._tiers[behind]} if behind else kept

    def fingerprint(self, now: Fingerprint) -> Fingerprint:
        """Return that of the memory, and of what is made on top of it.

        Args:
            now: of the engine.
        """
        return mixed(now, self.changed)

    @property
    def tier(self) -> Tier:
        """Return the coarsest tier the memory rests on."""
        return max(self._tiers.values(), key=_COARSEST_LAST.index, default=Tier.EXACT)


@dataclass(frozen=True, slots=True)
class Base:
    """The longest snapshot of what the memory holds.

    Attributes:
        key: its name, or "" where there is none.
        n_tokens: length of its prefix.
        n_links: of how many files its rows come, its own among them.
        before: the one that it leans on, or that would have been leant on.
    """

    key: str = ""
    n_tokens: int = 0
    n_links: int = 0
    before: Base | None = None

    def with_longer(self, key: str, n_tokens: int) -> Base:
        """Return the base that a snapshot is which leans on this one."""
        return Base(key, n_tokens, self.fit.n_links + 1, self)

    def up_to(self, n_tokens: int) -> Base:
        """Return the longest of these snapshots that ends within so many tokens."""
        return self.first(lambda base: base.n_tokens <= n_tokens)

    def first(self, is_good: Callable[[Base], bool]) -> Base:
        """Return the longest of these snapshots that is good, or none."""
        base: Base | None = self
        while base is not None and base.key and not is_good(base):
            base = base.before
        return base or Base()

    @property
    def fit(self) -> Base:
        """What a longer snapshot leans on: none where the chain is as long as it may be."""
        return self if self.n_links < MAX_LINKS else Base()


@dataclass(frozen=True, slots=True)
class Kept:
    """What became of a captured state.

    Attributes:
        unsaved: what is to be written, or None where it is not worth it.
        choice: why.
        was_restored: whether the memory was restored from what was packed.
    """

    unsaved: Unsaved | None
    choice: Choice
    was_restored: bool = False


class Keeper:
    """Packs the states of one engine.

    Args:
        engine: whose memory they are.
        storing: decides how they are kept.
        held: is told what the memory rests on.
    """

    def __init__(self, engine: Engine, storing: Storing, held: Held) -> None:
        self._engine = engine
        self._storing = storing
        self._held = held

    def keep(
        self,
        fingerprint: Fingerprint,
        tokens: tuple[int, ...],
        state: KVState,
        base: Base,
        text_sha256: str = "",
        *,
        cuts: Sequence[int] = (),
    ) -> Kept:
        """Make a state ready to be written, and go on from what a reader will have of it.

        Args:
            fingerprint: of the engine.
            tokens: after which it is the state.
            state: as captured, of a memory that holds just these tokens where it may be packed.
            base: whose rows are the first of these.
            text_sha256: the hash of the text of these tokens, or "".
            cuts: all places where the memory was cut.

        Raises:
            SnapshotIncompatible: the engine does not take back what was packed.
            MemoryError: there is no room for it.
        """
        from edgellm.store.format.codec import pack_state, unpack_state
        from edgellm.store.state import PackedState

        choice = self._storing.choose(fingerprint, state)
        if not choice.keep:
            return Kept(None, choice)
        # Cut at its base whether that is on the disk by now or not: the rounding must not depend on it.
        kept = pack_state(state, choice.tier, base.fit.n_tokens)
        is_packed = isinstance(kept, PackedState)
        if not is_packed and self._held.tier is not Tier.EXACT:
            why = "it rests on rounded rows and has none that can be rounded"
            return Kept(None, replace(choice, keep=False, reason=why))
        if isinstance(kept, PackedState):
            self._engine.restore(unpack_state(kept, state))
            self._held.put(len(tokens), kept.tier)
        inside = cuts_below(cuts, len(tokens))
        unsaved = Unsaved(
            fingerprint, tokens, kept, base.fit.key, choice.lossless, text_sha256, inside
        )
        return Kept(unsaved, choice, is_packed)


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
