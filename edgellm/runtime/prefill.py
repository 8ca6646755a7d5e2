"""Prefill: get a prompt into the engine's memory, from what is live, from disk, or by decoding.

One canonical split: the prompt is decoded in segments cut at every declared boundary, always.
Snapshots off, a cold run and a warm run then make the same calls after any boundary on the same
bits. Where a tier rounds, the cold run goes on from the rounded memory as well.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Final

from edgellm.core import SnapshotUse, Tier
from edgellm.errors import SnapshotIncompatible
from edgellm.runtime.admission import admit
from edgellm.runtime.claim import Claim
from edgellm.runtime.settling import Held, Settling, Start
from edgellm.runtime.storing import Found

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from edgellm.engines.base import Engine
    from edgellm.runtime.live import Live, Prompt
    from edgellm.runtime.storing import Storing
    from edgellm.store.background import Unsaved
    from edgellm.store.state import Fingerprint

MIN_SNAPSHOT_TOKENS: Final = 128
"""Shorter prefixes are decoded faster than the file is worth: a few ms against its bytes on disk."""

BEING_STORED: Final = "; being stored"
_N_WAITS: Final = 3
"""How often a process that was waited for may fail before the prompt is read here after all."""


def never() -> bool:
    """Return False: nobody stops the prefill."""
    return False


@dataclass(frozen=True, slots=True)
class Prefilled:
    """A prompt that is in memory.

    Attributes:
        logits: of its last token, shape (n_vocab,); None where only the prefix was read.
        reused_tokens: how many were not decoded anew.
        restore_s: time to look up, verify and restore.
        prefill_s: time to decode.
        snapshot: what the store did.
        restored_bytes: length of the snapshot that was restored.
        unsaved: what is to be saved once the answer has begun, the shortest prefix first.
        release: called when all of it is saved, or will not be: others may wait for it.
    """

    logits: NDArray[np.float32] | None
    reused_tokens: int
    restore_s: float
    prefill_s: float
    snapshot: SnapshotUse
    restored_bytes: int = 0
    unsaved: tuple[Unsaved, ...] = ()
    release: Callable[[], None] | None = None


class Prefiller:
    """Fills one engine's memory.

    Args:
        engine: whose context is reserved.
        storing: where snapshots lie and how they are kept, or None when they are off.
        off_reason: why they are off.
        min_tokens: the shortest prefix that is kept.
    """

    def __init__(
        self,
        engine: Engine,
        storing: Storing | None,
        *,
        off_reason: str = "asked",
        min_tokens: int = MIN_SNAPSHOT_TOKENS,
    ) -> None:
        self._engine = engine
        self._storing = storing
        self.held = Held()
        self._off = SnapshotUse(Tier.OFF.value, "", f"off: {off_reason}", "off")
        self._min_tokens = min_tokens

    def run(
        self, prompt: Prompt, live: Live | None, stopped: Callable[[], bool] = never
    ) -> Prefilled:
        """Bring the memory to the end of the prompt.

        Args:
            prompt: what is to be read.
            live: what the memory holds.
            stopped: asked while another process is waited for; True ends the waiting.

        Raises:
            Cancelled: the engine was stopped; the memory holds some whole chunks.
            EngineFailed: the engine failed; the memory is empty.
        """
        kept = live.continued_by(prompt.tokens) if live else 0
        if kept and self._engine.truncate(kept):
            return self._read(prompt, Start(kept, "live: continues the conversation", "live"))
        return self._read(prompt, self._start(prompt, live, stopped))

    def run_prefix(self, prompt: Prompt, stopped: Callable[[], bool] = never) -> Prefilled:
        """Bring an empty memory to the last cut of the prompt and no further; it has one.

        Raises:
            Cancelled, EngineFailed: as `run`.
        """
        start = self._start(prompt, None, stopped)
        return self._read(replace(prompt, tokens=prompt.tokens[: prompt.n_prefix]), start)

    def use(self, reason: str, code: str, key: str = "") -> SnapshotUse:
        """Say what the store did, and on which tier's numbers the memory rests."""
        return (
            self._off
            if self._storing is None
            else SnapshotUse(self.held.tier.value, key, reason, code)
        )

    def _start(self, prompt: Prompt, live: Live | None, stopped: Callable[[], bool]) -> Start:
        """Bring the memory as far as it can be brought without decoding."""
        shared = live.shared_cuts(prompt) if live else ()
        if shared and shared[-1] == prompt.n_prefix and self._went_back(shared[-1:]):
            return Start(shared[-1], "live: same prefix", "live")
        storing = self._storing
        if not prompt.n_prefix or storing is None or prompt.n_prefix < self._min_tokens:
            at = self._went_back(shared)
            if not prompt.n_prefix:
                return Start(0, "no stable prefix", "no_prefix")
            short = f"not kept: {prompt.n_prefix} tokens are fewer than {self._min_tokens}"
            return Start(at, short, "too_short")
        return self._stored_start(storing, prompt, shared, stopped)

    def _stored_start(
        self,
        storing: Storing,
        prompt: Prompt,
        shared: Sequence[int],
        stopped: Callable[[], bool],
    ) -> Start:
        begun = perf_counter()
        fingerprint = self._engine.fingerprint()
        storing.speeds.note_model(fingerprint)
        cuts = [cut for cut in prompt.cuts if cut >= self._min_tokens]
        above = [cut for cut in cuts if cut > max(shared, default=0)]
        storing.notes += admit(self._engine, storing.store, fingerprint, prompt.tokens, above)
        start = self._restored(storing, fingerprint, prompt, above)
        claim = Claim(storing.store, fingerprint, prompt.tokens[: prompt.n_prefix])
        for _ in range(_N_WAITS):
            if start.n_tokens == prompt.n_prefix:
                break
            if claim.taken():
                if not start.n_tokens:  # it may have been stored since the look before
                    start = self._restored(storing, fingerprint, prompt, above)
                break
            if not claim.waited(storing.speeds.prompt_tokens_per_s, stopped):
                break
            start = self._restored(storing, fingerprint, prompt, above)
        at = start.n_tokens or self._went_back(shared)
        if not at and shared and len(above) < len(cuts):
            start = self._restored(storing, fingerprint, prompt, cuts)
            at = start.n_tokens
        elif at and not start.n_tokens:
            reason = f"live: same prefix, {at} of {prompt.n_prefix} tokens"
            base_key = storing.store.key(fingerprint, prompt.tokens[:at])
            start = Start(at, reason, "live", 0.0, base_key, 0, fingerprint)
        keeps = frozenset() if start.code == "converted" else frozenset(c for c in cuts if c > at)
        took_s = perf_counter() - begun
        return replace(start, restore_s=took_s, keeps=keeps, release=claim.release)

    def _went_back(self, shared: Sequence[int]) -> int:
        """Cut the memory back to the longest of these cuts that it can be cut to, or empty it."""
        for cut in reversed(shared):
            if cut <= self._engine.position and self._engine.truncate(cut):
                self.held.keep(cut)
                return cut
        self._engine.truncate(0)
        self.held.keep(0)
        return 0

    def _restored(
        self, storing: Storing, fingerprint: Fingerprint, prompt: Prompt, cuts: Sequence[int]
    ) -> Start:
        """Restore the longest of these cuts that is stored; nothing changes where none is."""
        found = storing.find(self._engine, fingerprint, prompt.tokens, cuts)
        if not isinstance(found, Found):
            return Start(0, f"miss: {found.reason}", found.code, fingerprint=fingerprint)
        begun = perf_counter()
        n = found.state.n_tokens
        try:
            self._engine.restore(found.state)
        except SnapshotIncompatible as err:
            reason = f"miss: {err.message}"
            return Start(0, reason, "restore_failed", fingerprint=fingerprint)
        storing.speeds.note_restored(found.n_bytes, found.find_s + perf_counter() - begun)
        self.held.keep(0)
        self.held.put(n, found.tier)
        part = "" if n == prompt.n_prefix else f": {n} of {prompt.n_prefix} tokens"
        reason = found.reason.replace("hit", f"hit{part}", 1)
        if found.code == "hit":
            storing.writer.note(found.anchor)
        return Start(n, reason, found.code, 0.0, found.key, found.n_bytes, found.mixed(fingerprint))

    def _read(self, prompt: Prompt, start: Start) -> Prefilled:
        """Decode what is missing, segment by segment, and settle the memory at every cut."""
        self.held.keep(start.n_tokens)
        settling = Settling(self._engine, self.held, self._storing, prompt, start)
        begun = perf_counter()
        at, logits = start.n_tokens, None
        try:
            for end in (*(cut for cut in prompt.cuts if at < cut), len(prompt.tokens)):
                if at < end:
                    logits = self._decoded(prompt.tokens[at:end])
                    at = end
                if end in prompt.cuts and end > start.n_tokens:
                    settling.settle(end)
        except BaseException:
            if start.release is not None:
                start.release()
            raise
        took_s = perf_counter() - begun
        use = self._snapshot_use(prompt, start, settling)
        unsaved, release = tuple(settling.unsaved), start.release
        if release is not None and not unsaved:
            release()
            release = None
        return Prefilled(
            logits,
            start.n_tokens,
            start.restore_s,
            took_s,
            use,
            start.restored_bytes,
            unsaved,
            release,
        )

    def _decoded(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        begun = perf_counter()
        logits: NDArray[np.float32] = self._engine.decode(tokens)[0]
        if self._storing is not None:
            self._storing.speeds.note_prompt(len(tokens), perf_counter() - begun)
        return logits

    def _snapshot_use(self, prompt: Prompt, start: Start, settling: Settling) -> SnapshotUse:
        key, reason, code = start.base_key, start.reason, start.code
        storing, fingerprint, choice = self._storing, start.fingerprint, settling.choice
        if storing is None or fingerprint is None or not start.keeps:
            return self.use(reason, code, key)
        key = storing.store.key(fingerprint, prompt.tokens[: prompt.n_prefix])
        if settling.unsaved:
            how = f", {choice.reason}" if choice and choice.reason not in {"", "exact"} else ""
            return self.use(f"{reason}{BEING_STORED}{how}", code, key)
        if choice is not None and not choice.keep:
            code = "not_worth" if code == "not_stored" else code
            return self.use(f"{reason}; not kept: {choice.reason}", code, key)
        return self.use(f"{reason}; cannot be kept", code, key)
