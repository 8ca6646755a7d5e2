"""Storing: what a session needs of the prefix store, and the facts that decide how prefixes are kept.

It never decides: it measures (how fast the model reads, how fast the disk is, how much is free, what
a tier costs this model) and asks `policy/snapshots.py`.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Final

from edgellm.core import Tier
from edgellm.policy.snapshots import Choice, SnapshotFacts, choose, coarsest
from edgellm.store.answers import Hit
from edgellm.store.flight import Lease

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from edgellm.engines.base import Engine
    from edgellm.runtime.loss import LossBook
    from edgellm.runtime.session import SessionOptions
    from edgellm.store.answers import Miss
    from edgellm.store.snapshots import SnapshotStore
    from edgellm.store.state import Anchor, Fingerprint, KVState

ROUNDED: Final = (Tier.Q8, Tier.Q6, Tier.Q5, Tier.Q4)
FREE_FLOOR_BYTES: Final = 256 << 20
"""What snapshots leave free on the disk, for everything else that runs there."""

SLOW_TOKENS_PER_S: Final = 50.0
"""How fast another process is taken to read its prompt where nothing was measured."""

WAIT_FACTOR: Final = 2.0
WAIT_MORE_S: Final = 1.0


def open_store(options: SessionOptions) -> SnapshotStore | None:
    """Return the store that a session's options ask for, or None when snapshots are off.

    Raises:
        UsageError: `EDGELLM_HOME` is wrong, or how a key is named.
        KeyUnavailable, MissingExtra: the store is to be encrypted, and cannot be.
    """
    from edgellm.paths import snapshots_dir
    from edgellm.store.key_sources import open_key
    from edgellm.store.snapshots import SnapshotStore

    if options.snapshot is Tier.OFF:
        return None
    root = snapshots_dir()
    return SnapshotStore(root, key=open_key(options.snapshot_key, root))


@dataclass(frozen=True, slots=True)
class Found:
    """A state that can be restored.

    Attributes:
        state: as this engine takes it.
        key, n_bytes, tier: of the file.
        anchor: what a longer snapshot may lean on.
        reason, code: for `SnapshotUse`.
        changed: names of the soft fields that differ now.
        find_s: time to look it up, read and check it.
    """

    state: KVState
    key: str
    n_bytes: int
    tier: Tier
    anchor: Anchor
    reason: str
    code: str
    changed: tuple[str, ...]
    find_s: float

    def mixed(self, now: Fingerprint) -> Fingerprint:
        """Return the fingerprint of what is made on top of this state: its rounding is of both."""
        soft = {**dict(now.soft), **dict.fromkeys(self.changed, "mixed")}
        return replace(now, soft=tuple(sorted(soft.items())))


class Speeds:
    """What was measured in this process: amounts and seconds, summed up."""

    def __init__(self) -> None:
        self._prompt = (0, 0.0)
        self._restore = (0, 0.0)

    def read_prompt(self, n_tokens: int, seconds: float) -> None:
        """Add one decode call of a prompt."""
        self._prompt = (self._prompt[0] + n_tokens, self._prompt[1] + seconds)

    def restored(self, n_bytes: int, seconds: float) -> None:
        """Add one restore, from the look-up on."""
        self._restore = (self._restore[0] + n_bytes, self._restore[1] + seconds)

    @property
    def prompt_tokens_per_s(self) -> float | None:
        """How fast the model reads, or None when nothing was read."""
        return per_s(*self._prompt)

    @property
    def restore_bytes_per_s(self) -> float | None:
        """How fast snapshots are restored, or None when none was."""
        return per_s(*self._restore)


class Storing:
    """One session's use of the store.

    Args:
        store: where snapshots lie.
        tier: how they are kept, and the coarsest that is read; `auto` decides by what is measured.
        loss: the mean KL divergence that `auto` may cost, in nats.
        losses: where measured losses are kept.
        written: bytes written in this process, and the seconds they took.
    """

    def __init__(
        self,
        store: SnapshotStore,
        *,
        tier: Tier = Tier.AUTO,
        loss: float = 0.0,
        losses: LossBook | None = None,
        written: Callable[[], tuple[int, float]] = lambda: (0, 0.0),
    ) -> None:
        self.store = store
        self.speeds = Speeds()
        self.notes: list[str] = []
        self._asked = tier
        self._loss = loss
        self._losses = losses
        self._written = written

    @property
    def allows_loss(self) -> bool:
        """Whether the user takes numbers that are rounded otherwise."""
        return self._loss > 0 or self._asked in ROUNDED

    def tier(self, fingerprint: Fingerprint) -> Tier:
        """Return the tier that is asked for, which under `auto` rests on what was measured."""
        if self._asked is not Tier.AUTO:
            return self._asked
        return coarsest(self._measured(fingerprint) or {}, self._loss)

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
        self, fingerprint: Fingerprint, tokens: Sequence[int], cuts: Sequence[int]
    ) -> Found | Miss:
        """Return the longest of these prefixes that is stored, or why the longest is not."""
        begun = perf_counter()
        tier = self.tier(fingerprint)
        found = self.store.longest(fingerprint, tokens, cuts, tier)
        if isinstance(found, Hit):
            changed = "; ".join(found.soft_changes)
            reason = f"hit, rounding may differ ({changed})" if changed else "hit"
            return _found(found, found.state, reason, "hit", perf_counter() - begun)
        return found

    def claim(self, fingerprint: Fingerprint, tokens: Sequence[int]) -> Claim:
        """Ask for the right to read a prefix for all processes that miss it."""
        return Claim(self, fingerprint, tokens)

    def choose(self, fingerprint: Fingerprint, state: KVState) -> Choice:
        """Decide how a state is kept, and whether it is worth it."""
        if self._asked is not Tier.AUTO:
            return Choice(self._asked, lossless=False, keep=True, reason="")
        return choose(
            SnapshotFacts(
                n_tokens=state.n_tokens,
                state_bytes=bytes_of(state),
                prefill_tokens_per_s=self.speeds.prompt_tokens_per_s,
                write_bytes_per_s=per_s(*self._written()),
                read_bytes_per_s=self.speeds.restore_bytes_per_s,
                free_bytes=free_bytes(self.store.root),
                loss_allowed=self._loss,
                losses=self._measured(fingerprint) or {},
            )
        )

    def _measured(self, fingerprint: Fingerprint) -> dict[Tier, float] | None:
        if self._losses is None or not self._loss > 0:
            return None
        return self._losses.get(fingerprint)


class Claim:
    """Who reads a prefix: this process, or another one that can be waited for."""

    def __init__(self, storing: Storing, fingerprint: Fingerprint, tokens: Sequence[int]) -> None:
        self._storing = storing
        self._fingerprint = fingerprint
        self._tokens = tokens
        lease = getattr(storing.store, "lease", None)
        self._lease: Lease | None = lease(fingerprint, tokens) if lease else Lease()

    @property
    def is_ours(self) -> bool:
        """Whether this process reads it."""
        return self._lease is not None

    def waited(self, stopped: Callable[[], bool]) -> bool:
        """Wait for the other process; return True when it is done, False when it takes too long."""
        speed = self._storing.speeds.prompt_tokens_per_s or SLOW_TOKENS_PER_S
        wait_s = WAIT_FACTOR * len(self._tokens) / speed + WAIT_MORE_S
        wait = getattr(self._storing.store, "await_other", None)
        return bool(wait and wait(self._fingerprint, self._tokens, wait_s, stopped))

    def release(self) -> None:
        """Let the next one in; calling it again does nothing."""
        if self._lease is not None:
            self._lease.release()


def bytes_of(state: KVState) -> int:
    """Return how many bytes the rows of a state take."""
    return sum(section.rows.nbytes for part in state.parts for section in part.sections)


def free_bytes(root: Path) -> int | None:
    """Return what snapshots may take of the disk below a folder, or None where nobody can say."""
    try:
        there = next((folder for folder in (root, *root.parents) if folder.exists()), root)
        return max(0, shutil.disk_usage(there).free - FREE_FLOOR_BYTES)
    except OSError:
        return None


def per_s(amount: float, seconds: float) -> float | None:
    """Return amount for each second, or None where nothing was measured."""
    return amount / seconds if amount > 0 and seconds > 0 else None


def _found(hit: Hit, state: KVState, reason: str, code: str, find_s: float) -> Found:
    info = hit.info
    changed = tuple(change.partition(":")[0] for change in hit.soft_changes)
    return Found(
        state, info.key, info.n_bytes, info.tier, hit.anchor, reason, code, changed, find_s
    )
