"""Storing: what a session needs of the prefix store, and the facts that decide how prefixes are kept.

It never decides: it measures (how fast the model reads, how fast the disk is, how much is free, what
a tier costs this model) and asks `policy/snapshots.py`.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from edgellm.core import Tier
from edgellm.errors import SnapshotIncompatible, UsageError
from edgellm.policy.route import taints
from edgellm.policy.snapshots import Choice, SnapshotFacts, choose, coarsest
from edgellm.runtime.found import converted, own
from edgellm.runtime.speeds import Speeds
from edgellm.store.answers import Hit
from edgellm.store.background import SnapshotWriter
from edgellm.store.ledger import Ledger
from edgellm.store.shared.read_through import ReadThroughStore

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from edgellm.core import Message
    from edgellm.engines.base import Engine
    from edgellm.runtime.found import Found
    from edgellm.runtime.loss import LossBook
    from edgellm.runtime.session import SessionOptions
    from edgellm.store.answers import Miss
    from edgellm.store.snapshots import SnapshotStore
    from edgellm.store.state import Fingerprint, KVState

_STILL_PLAIN: Final = (
    "snapshots are encrypted now, and {} from before are not: remove those with "
    "`edgellm snapshots rm --plain`, or all with `edgellm snapshots purge`"
)
ROUNDED: Final = (Tier.Q8, Tier.Q6, Tier.Q5, Tier.Q4)


def open_store(options: SessionOptions) -> SnapshotStore | None:
    """Return the store that a session's options ask for, or None when snapshots are off.

    Raises:
        UsageError: `EDGELLM_HOME` is wrong, or how a key or a shared tier is named.
        KeyUnavailable, MissingExtra: the store is to be encrypted or shared, and cannot be.
    """
    from edgellm.paths import snapshots_dir
    from edgellm.runtime.sharing import open_shared
    from edgellm.store.key_sources import open_key
    from edgellm.store.snapshots import SnapshotStore

    if options.snapshot is Tier.OFF:
        return None
    root = snapshots_dir()
    key, cap_bytes = open_key(options.snapshot_key, root), options.snapshot_cap_bytes
    if options.snapshot_share is not None:
        return open_shared(root, options.snapshot_share, options.mode, key=key, cap_bytes=cap_bytes)
    return SnapshotStore(root, key=key, cap_bytes=cap_bytes)


def make_storing(store: SnapshotStore, options: SessionOptions) -> Storing:
    """Return how a session with these options uses its store.

    Raises:
        UsageError: loss is allowed for a tier that was chosen already.
    """
    from edgellm.paths import cache_dir
    from edgellm.runtime.loss import LossBook

    if options.snapshot_loss > 0 and options.snapshot is not Tier.AUTO:
        raise UsageError(
            f"snapshot_loss is for snapshot=auto, not {options.snapshot.value}",
            hint="a tier that was chosen says itself what it costs",
        )
    storing = Storing(
        store,
        tier=options.snapshot,
        loss=options.snapshot_loss,
        losses=LossBook(cache_dir() / "losses") if options.snapshot_loss > 0 else None,
        speeds=Speeds(None if store.trouble else Ledger(store.root)),
    )
    if n_plain := store.n_plain:
        storing.notes.append(_STILL_PLAIN.format(n_plain))
    return storing


class Storing:
    """One session's use of the store.

    Args:
        store: where snapshots lie.
        tier: how they are kept, and the coarsest that is read; `auto` decides by what is measured.
        loss: the mean KL divergence that `auto` may cost, in nats.
        losses: where measured losses are kept.
        speeds: what was measured, in this process and before.

    Attributes:
        store, speeds: as given.
        writer: saves states in the background.
        notes: what the user is to be told; whoever tells it takes it out.
    """

    def __init__(
        self,
        store: SnapshotStore,
        *,
        tier: Tier = Tier.AUTO,
        loss: float = 0.0,
        losses: LossBook | None = None,
        speeds: Speeds | None = None,
    ) -> None:
        self.store = store
        self.speeds = speeds or Speeds()
        self.writer = SnapshotWriter(store, self.speeds.note_saved)
        self.notes: list[str] = []
        if isinstance(store, ReadThroughStore):
            store.tokens_per_s = lambda: self.speeds.prompt_tokens_per_s
        self._said_unshared = False
        self._said_damaged = False
        self._asked = tier
        self._loss = loss
        self._losses = losses

    @property
    def allows_loss(self) -> bool:
        """Whether the user takes numbers that are rounded otherwise."""
        return self._loss > 0 or self._asked in ROUNDED

    def tier(self, fingerprint: Fingerprint) -> Tier:
        """Return the tier that is asked for, which under `auto` rests on what was measured."""
        if self._asked is not Tier.AUTO:
            return self._asked
        return coarsest(self._measured(fingerprint) or {}, self._loss)

    def look_at(self, messages: Sequence[Message]) -> None:
        """Share nothing from here on where a message is private: a snapshot can be read back."""
        if isinstance(self.store, ReadThroughStore) and taints(messages):
            self.store.shared.keep_here("a message is private")

    def refusal(self, fingerprint: Fingerprint) -> str:
        """Say why nothing is captured, because it cannot be written; "" where it may be.

        Where a tier rounds, a run captures all the same: it goes on from the rounded memory.
        """
        exact = self.tier(fingerprint) is Tier.EXACT and not self.must_measure(fingerprint)
        return self.store.closed if exact else ""

    def must_measure(self, fingerprint: Fingerprint) -> bool:
        """Return whether loss is allowed and nobody knows yet what a tier costs this model."""
        return (
            self._asked is Tier.AUTO
            and self._loss > 0
            and self._losses is not None
            and self._measured(fingerprint) is None
        )

    def measure(self, engine: Engine, fingerprint: Fingerprint, state: KVState) -> bool:
        """Measure what rounding costs, once a model; return whether the memory was restored.

        Raises:
            SnapshotIncompatible: the engine does not take its own state back.
        """
        if self._losses is None or not self.must_measure(fingerprint):
            return False
        from edgellm.runtime.loss import describe, measure_losses

        losses = measure_losses(engine, state)
        self._losses.put(fingerprint, losses)
        self.notes.append(describe(losses, self._loss))
        return True

    def find(
        self,
        engine: Engine,
        fingerprint: Fingerprint,
        tokens: Sequence[int],
        lengths: Sequence[int] | Mapping[int, Sequence[int]],
    ) -> Found | Miss:
        """Return the longest of some prefixes that is stored, or why the longest is not.

        The lengths are those of `SnapshotStore.longest`, with where each was cut before. A state
        made under other settings is taken where loss is allowed, and after all others.
        """
        tier = self.tier(fingerprint)
        found = self.store.longest(fingerprint, tokens, lengths, tier, landing=engine.landing)
        self._note_sharing()
        self._note_damage()
        if isinstance(found, Hit):
            return own(found)
        if not self.allows_loss:
            return found
        for source in engine.relatives():
            other = self.store.longest(source, tokens, lengths, tier)
            if isinstance(other, Hit):
                with suppress(SnapshotIncompatible, MemoryError):
                    state = engine.adapt(other.state, source)
                    return converted(other, state, source, fingerprint)
        return found

    def _note_sharing(self) -> None:
        """Say once why the shared tier is not used, or not any more."""
        store = self.store
        if isinstance(store, ReadThroughStore) and store.shared.trouble and not self._said_unshared:
            self._said_unshared = True
            self.notes.append(f"snapshots are not shared: {store.shared.trouble}")

    def _note_damage(self) -> None:
        """Say once that something damaged was found, also where a shorter prefix still serves."""
        if self.store.damage and not self._said_damaged:
            self._said_damaged = True
            self.notes.append(f"a prefix snapshot was damaged and is not used: {self.store.damage}")

    def choose(self, fingerprint: Fingerprint, state: KVState) -> Choice:
        """Decide how a state is kept, and whether it is worth it."""
        self.speeds.note_model(fingerprint)
        if self._asked is not Tier.AUTO:
            return Choice(self._asked, lossless=False, keep=True, reason="")
        return choose(
            SnapshotFacts(
                n_tokens=state.n_tokens,
                state_bytes=bytes_of(state),
                prefill_tokens_per_s=self.speeds.prompt_tokens_per_s,
                write_bytes_per_s=self.speeds.save_bytes_per_s,
                read_bytes_per_s=self.speeds.restore_bytes_per_s,
                free_bytes=self.store.free_bytes,
                loss_allowed=self._loss,
                losses=self._measured(fingerprint) or {},
            )
        )

    def _measured(self, fingerprint: Fingerprint) -> dict[Tier, float] | None:
        if self._losses is None or not self._loss > 0:
            return None
        return self._losses.get(fingerprint)


def bytes_of(state: KVState) -> int:
    """Return how many bytes the rows of a state take."""
    return sum(section.rows.nbytes for part in state.parts for section in part.sections)
