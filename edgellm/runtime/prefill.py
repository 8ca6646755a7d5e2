"""Prefill: get a prompt into the engine's memory, from what is live, from disk, or by decoding.

One canonical split: the prompt is decoded in two segments cut at its boundary, always. Snapshots
off, a cold run and a warm run then make the same calls after the boundary on the same bits. Where a
tier rounds, the cold run goes on from the rounded memory as well.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Final

from edgellm.core import SnapshotUse, Tier
from edgellm.errors import SnapshotIncompatible

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from edgellm.engines.base import Engine
    from edgellm.runtime.live import Live, Prompt
    from edgellm.store.snapshots import SnapshotStore
    from edgellm.store.state import Fingerprint, KVState, PackedState

MIN_SNAPSHOT_TOKENS: Final = 128
"""Shorter prefixes are decoded faster than the file is worth: a few ms against its bytes on disk."""

BEING_STORED: Final = "being stored"


@dataclass(frozen=True, slots=True)
class Unsaved:
    """A state that was captured and waits to be written.

    Attributes:
        fingerprint: of the engine when it was captured.
        tokens: the prefix.
        state: the memory after exactly these tokens, as its tier keeps it.
    """

    fingerprint: Fingerprint
    tokens: tuple[int, ...]
    state: KVState | PackedState


@dataclass(frozen=True, slots=True)
class Prefilled:
    """A prompt that is in memory.

    Attributes:
        logits: of its last token, shape (n_vocab,).
        reused_tokens: how many were not decoded anew.
        restore_s: time to look up, verify and restore.
        prefill_s: time to decode.
        snapshot: what the store did.
        unsaved: what is to be saved once the answer has begun, or None.
    """

    logits: NDArray[np.float32]
    reused_tokens: int
    restore_s: float
    prefill_s: float
    snapshot: SnapshotUse
    unsaved: Unsaved | None


class Prefiller:
    """Fills one engine's memory.

    Args:
        engine: whose context is reserved.
        store: where snapshots lie, or None when they are off.
        tier: how they are kept, and the coarsest that is read.
        off_reason: why they are off.
        min_tokens: the shortest prefix that is kept.
    """

    def __init__(
        self,
        engine: Engine,
        store: SnapshotStore | None,
        *,
        tier: Tier = Tier.EXACT,
        off_reason: str = "asked",
        min_tokens: int = MIN_SNAPSHOT_TOKENS,
    ) -> None:
        self._engine = engine
        self._store = store
        self._tier = tier
        self._held = Tier.EXACT  # the tier whose numbers are in the memory, up to the boundary
        self._off = SnapshotUse(Tier.OFF.value, "", f"off: {off_reason}")
        self._min_tokens = min_tokens

    def run(self, prompt: Prompt, live: Live | None) -> Prefilled:
        """Bring the memory to the end of the prompt.

        Raises:
            Cancelled: the engine was stopped; the memory holds some whole chunks.
            EngineFailed: the engine failed; the memory is empty.
        """
        kept = live.continued_by(prompt.tokens) if live else 0
        if kept and self._engine.truncate(kept):
            return self._decode_rest(prompt, kept, self._use("live: continues the conversation"))
        if live and live.shares_prefix(prompt) and self._engine.truncate(prompt.n_prefix):
            use = self._use("live: same prefix")
            return self._decode_rest(prompt, prompt.n_prefix, use)
        self._engine.truncate(0)
        self._held = Tier.EXACT
        if not prompt.n_prefix:
            return self._decode_rest(prompt, 0, self._use("no stable prefix"))
        return self._from_boundary(prompt)

    def _use(self, reason: str, key: str = "") -> SnapshotUse:
        return self._off if self._store is None else SnapshotUse(self._held.value, key, reason)

    def _from_boundary(self, prompt: Prompt) -> Prefilled:
        prefix = prompt.tokens[: prompt.n_prefix]
        fingerprint = self._engine.fingerprint()
        started = perf_counter()
        reason, key, unsaved = "", "", None
        if self._store is not None and len(prefix) < self._min_tokens:
            reason = f"not kept: {len(prefix)} tokens are fewer than {self._min_tokens}"
        elif self._store is not None:
            key = self._store.key(fingerprint, prefix)
            reason = self._restore(self._store, fingerprint, prefix)
        restore_s = perf_counter() - started
        if self._engine.position == len(prefix):
            rest = self._decode_rest(prompt, len(prefix), self._use(reason, key))
            return replace(rest, restore_s=restore_s)
        started = perf_counter()
        self._engine.decode(prefix)
        state = self._settle(prefix, wanted=bool(key))
        if key and state is None:
            reason = f"{reason}; cannot be kept"
        elif state is not None:
            reason, unsaved = f"{reason}; {BEING_STORED}", Unsaved(fingerprint, prefix, state)
        prefix_s = perf_counter() - started
        rest = self._decode_rest(prompt, len(prefix), self._use(reason, key))
        return replace(
            rest,
            reused_tokens=0,
            restore_s=restore_s,
            prefill_s=rest.prefill_s + prefix_s,
            unsaved=unsaved,
        )

    def _restore(
        self, store: SnapshotStore, fingerprint: Fingerprint, prefix: tuple[int, ...]
    ) -> str:
        """Restore the prefix if the store has it; return the reason phrase either way."""
        from edgellm.store.snapshots import Miss

        found = store.lookup(fingerprint, prefix, self._tier)
        if isinstance(found, Miss):
            return f"miss: {found.reason}"
        try:
            self._engine.restore(found.state)
        except SnapshotIncompatible as err:
            return f"miss: {err.message}"
        self._held = found.info.tier
        changed = "; ".join(found.soft_changes)
        return f"hit, rounding may differ ({changed})" if changed else "hit"

    def _settle(self, prefix: tuple[int, ...], *, wanted: bool) -> KVState | PackedState | None:
        """Copy the state out at the boundary, and back in where a warm run's would be another."""
        moves = self._engine.restore_moves
        if not (wanted or moves) or self._engine.snapshot_block():
            return None
        try:
            state = self._engine.capture()
            kept = self._round(state) if wanted else state
            if kept is state and moves:
                self._engine.restore(state)
        except (SnapshotIncompatible, MemoryError):
            if self._engine.position != len(prefix):
                self._engine.truncate(0)
                self._engine.decode(prefix)
            return None
        return kept if wanted else None

    def _round(self, state: KVState) -> KVState | PackedState:
        """Pack a state as the tier keeps it, and go on from what a reader will unpack."""
        from edgellm.store.codec import pack_state, unpack_state
        from edgellm.store.state import PackedState

        kept = pack_state(state, self._tier)
        if isinstance(kept, PackedState):
            self._engine.restore(unpack_state(kept))
            self._held = kept.tier
        return kept

    def _decode_rest(self, prompt: Prompt, reused: int, use: SnapshotUse) -> Prefilled:
        started = perf_counter()
        logits = self._engine.decode(prompt.tokens[reused:])[0]
        return Prefilled(logits, reused, 0.0, perf_counter() - started, use, None)
