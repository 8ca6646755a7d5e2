"""Prefill: get a prompt into the engine's memory, from what is live, from disk, or by decoding.

One canonical split: the prompt is decoded in segments cut at every declared boundary, always.
Snapshots off, a cold run and a warm run then make the same calls after any boundary on the same
bits. Where a tier rounds, the cold run goes on from the rounded memory as well.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Final

from edgellm.core import SnapshotUse, Tier
from edgellm.errors import SnapshotIncompatible
from edgellm.runtime.keeper import Keeper
from edgellm.runtime.marks import Marks
from edgellm.runtime.settling import Settling
from edgellm.runtime.starting import Starting
from edgellm.runtime.turns import text_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from edgellm.engines.base import Engine
    from edgellm.runtime.live import Live, Prompt
    from edgellm.runtime.settling import Start
    from edgellm.runtime.storing import Storing
    from edgellm.store.background import Unsaved

MIN_SNAPSHOT_TOKENS: Final = 128
"""Shorter prefixes are decoded faster than the file is worth: a few ms against its bytes on disk."""

BEING_STORED: Final = "; being stored"


def never() -> bool:
    """Return False: nobody stops the prefill."""
    return False


@dataclass(frozen=True, slots=True)
class Prefilled:
    """A prompt that is in memory.

    Attributes:
        logits: of its last token, shape (n_vocab,); None where only the prefix was read.
        reused_tokens: how many were not decoded anew.
        restore_s: time until reading could begin: looking up, others that were waited for, restoring.
        prefill_s: time to decode, and to copy out and pack what is kept.
        snapshot: what the store did.
        restored_bytes: length of the snapshot that was restored.
        unsaved: what is to be saved once the answer has begun, the shortest prefix first.
        release: called when all of it is saved, or will not be: others may wait for it.
        disk_s: of `restore_s`, what finding, reading, checking and restoring the snapshot took.
        decode_s: of `prefill_s`, what the decode calls took.
    """

    logits: NDArray[np.float32] | None
    reused_tokens: int
    restore_s: float
    prefill_s: float
    snapshot: SnapshotUse
    restored_bytes: int = 0
    unsaved: tuple[Unsaved, ...] = ()
    release: Callable[[], None] | None = None
    disk_s: float = 0.0
    decode_s: float = 0.0


class Prefiller:
    """Fills one engine's memory.

    Args:
        engine: whose context is reserved.
        storing: where snapshots lie and how they are kept, or None when they are off.
        off_reason: why they are off.
        min_tokens: the shortest prefix that is kept.
        keeps_turns: the state is also kept where messages end, and the prompt cut at the last one,
            whether snapshots are on or not.
    """

    def __init__(
        self,
        engine: Engine,
        storing: Storing | None,
        *,
        off_reason: str = "asked",
        min_tokens: int = MIN_SNAPSHOT_TOKENS,
        keeps_turns: bool = False,
    ) -> None:
        self._engine = engine
        self._storing = storing
        self._off = SnapshotUse(Tier.OFF.value, "", f"off: {off_reason}", "off")
        self._marks = Marks(min_tokens, keeps_turns)
        self._starting = Starting(engine, storing, self._marks)
        self._footing = self._starting.footing

    def run(
        self, prompt: Prompt, live: Live | None, stopped: Callable[[], bool] = never
    ) -> Prefilled:
        """Bring the memory to the end of the prompt.

        Args:
            prompt: what is to be read.
            live: what the memory holds.
            stopped: asked while another process is waited for; True ends the waiting.

        Raises:
            Cancelled: the engine was stopped; the memory holds some whole chunks, or nothing where
                it cannot take a part of one back, as recurrent kinds.
            EngineFailed: the engine failed; the memory is empty.
        """
        return self._read(prompt, self._starting.start(prompt, live, stopped))

    def run_prefix(self, prompt: Prompt, stopped: Callable[[], bool] = never) -> Prefilled:
        """Bring an empty memory to the last cut of the prompt and no further; it has one.

        Raises:
            Cancelled, EngineFailed: as `run`.
        """
        short = replace(prompt, turns=(), n_kept=0)
        start = self._starting.start(short, None, stopped)
        return self._read(replace(short, tokens=prompt.tokens[: prompt.n_prefix]), start)

    def use(self, reason: str, code: str, key: str = "") -> SnapshotUse:
        """Say what the store did, and on which tier's numbers the memory rests."""
        return (
            self._off
            if self._storing is None
            else SnapshotUse(self._footing.held.tier.value, key, reason, code)
        )

    def keep_answer(self, live: Live) -> Unsaved | None:
        """Keep the memory after an answer; it goes on as whoever restores it will have it.

        Args:
            live: what the memory holds.

        Returns:
            What is to be written, or None where nothing is kept.
        """
        storing, engine = self._storing, self._engine
        if not self._marks.keeps_turns or engine.snapshot_block() or live.text is None:
            return None
        held = self._footing.held
        fingerprint = held.fingerprint(engine.fingerprint())
        is_kept = not held.is_converted and len(live.tokens) >= self._marks.min_tokens
        is_kept = is_kept and storing is not None and not storing.refusal(fingerprint)
        if not is_kept and not engine.restore_moves:
            return None
        try:
            state = engine.capture()
            kept = None
            if storing is not None and is_kept:
                name = text_name(live.text, live.cuts, live.controls)
                keeper = Keeper(engine, storing, held)
                cuts = self._footing.history_after(live, len(live.tokens))
                base = self._footing.base_below(len(live.tokens))
                kept = keeper.keep(fingerprint, live.tokens, state, base, name, cuts=cuts)
                if kept.unsaved is not None:
                    key = storing.store.key(fingerprint, live.tokens, cuts=cuts)
                    self._footing.base = base.with_longer(key, len(live.tokens))
            if engine.restore_moves and not (kept and kept.was_restored):
                engine.restore(state)
        except (SnapshotIncompatible, MemoryError):
            return None  # the session asks the engine what it still holds
        return kept.unsaved if kept else None

    def _read(self, prompt: Prompt, start: Start) -> Prefilled:
        """Decode what is missing, segment by segment, and settle the memory at every cut."""
        footing = self._footing
        footing.held.keep(start.n_tokens)
        segments = self._marks.segments(prompt)
        settling = Settling(
            self._engine,
            footing.held,
            self._storing,
            tokens=prompt.tokens,
            ends=segments,
            n_prefix=prompt.n_prefix,
            start=start,
            base=start.base if start.base.key else footing.base.up_to(start.n_tokens),
            history=footing.history,
        )
        ends = tuple(end for end in segments if end > start.n_tokens)
        begun = perf_counter()
        with ExitStack() as failed:
            failed.callback(start.let_in)  # whatever stops this process, others may read
            logits, decode_s = self._decoded(prompt.tokens, start.n_tokens, ends, settling)
            failed.pop_all()
        took_s = perf_counter() - begun
        footing.ends = (*footing.ends, *ends)
        footing.history = settling.cuts
        footing.base = settling.base
        if not settling.unsaved:
            start.let_in()
        return Prefilled(
            logits,
            start.n_tokens,
            start.restore_s,
            took_s,
            self._snapshot_use(prompt, start, settling),
            start.restored_bytes,
            tuple(settling.unsaved),
            start.release if settling.unsaved else None,
            start.disk_s,
            decode_s,
        )

    def _decoded(
        self, tokens: Sequence[int], at: int, ends: Sequence[int], settling: Settling
    ) -> tuple[NDArray[np.float32] | None, float]:
        """Decode from a place on and settle at these ends; return the last logits and how long it took."""
        logits, decode_s = None, 0.0
        for end in (*ends, len(tokens)):
            if at < end:
                begun = perf_counter()
                logits = self._engine.decode(tokens[at:end])[0]
                took_s = perf_counter() - begun
                if self._storing is not None:
                    self._storing.speeds.note_prompt(end - at, took_s)
                decode_s += took_s
                at = end
            if end in ends:
                settling.settle(end)
        return logits, decode_s

    def _snapshot_use(self, prompt: Prompt, start: Start, settling: Settling) -> SnapshotUse:
        key, reason, code = start.base.key, start.reason, start.code
        storing, fingerprint, choice = self._storing, start.fingerprint, settling.choice
        if storing is None or fingerprint is None or not start.keeps:
            return self.use(reason, code, key)
        if start.n_tokens >= prompt.n_prefix:  # only the turn is kept, which is not what was asked
            return self.use(reason, code, key)
        prefix = prompt.tokens[: prompt.n_prefix]
        key = storing.store.key(fingerprint, prefix, cuts=prompt.cuts)
        if any(len(unsaved.tokens) == prompt.n_prefix for unsaved in settling.unsaved):
            how = f", {choice.reason}" if choice and choice.reason not in {"", "exact"} else ""
            return self.use(f"{reason}{BEING_STORED}{how}", code, key)
        if choice is not None and not choice.keep:
            code = "not_worth" if code == "not_stored" else code
            return self.use(f"{reason}; not kept: {choice.reason}", code, key)
        return self.use(f"{reason}; cannot be kept", code, key)
