"""Starting: bring the memory as far into a prompt as it can be brought without decoding.

Live memory first, where it reaches as far as anything stored can; then the longest stored prefix;
then what is live after all. Of several processes that miss a prefix one is let through.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Final

from edgellm.errors import SnapshotIncompatible
from edgellm.runtime.admission import admit
from edgellm.runtime.claim import Claim
from edgellm.runtime.footing import Footing
from edgellm.runtime.found import Found
from edgellm.runtime.keeper import Base
from edgellm.runtime.marks import cuts_before
from edgellm.runtime.settling import Start

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from edgellm.engines.base import Engine
    from edgellm.runtime.live import Live, Prompt
    from edgellm.runtime.marks import Marks
    from edgellm.runtime.storing import Storing
    from edgellm.store.state import Fingerprint

_N_WAITS: Final = 3
"""How often a process that was waited for may fail before the prompt is read here after all."""


class Starting:
    """Finds where reading a prompt begins, for one engine.

    Args:
        engine: whose memory it is.
        storing: where snapshots lie, or None when they are off.
        marks: where prompts are cut.

    Attributes:
        footing: what the memory stands on.
    """

    def __init__(self, engine: Engine, storing: Storing | None, marks: Marks) -> None:
        self._engine = engine
        self._storing = storing
        self._marks = marks
        self.footing = Footing(engine, storing)

    def start(self, prompt: Prompt, live: Live | None, stopped: Callable[[], bool]) -> Start:
        """Bring the memory to a place from which the prompt can be read on.

        Args:
            prompt: what is to be read.
            live: what the memory holds.
            stopped: asked while another process is waited for; True ends the waiting.
        """
        kept = live.continued_by(prompt.tokens) if live else 0
        if live and self._marks.keeps_turns and kept < len(live.tokens):
            kept = 0  # an answer that was changed is read from a place where all runs cut
        if live and kept and self._engine.truncate(kept):
            self.footing.history = self.footing.history_after(live, kept)
            return self._going_on(prompt, kept)
        shared = self._marks.shared(prompt, live, self.footing.ends)
        marks = self._marks.stored(prompt) if self._storing else []
        reach = max((prompt.n_prefix, *marks))
        if shared and shared[-1] >= reach and self.footing.went_back(shared[-1:]):
            return self._keeping(Start(shared[-1], "live: same prefix", "live"), prompt)
        if self._storing is None or not marks:
            at = self.footing.went_back(shared)
            if not prompt.n_prefix:
                return Start(at, "no stable prefix", "no_prefix")
            short = f"not kept: {prompt.n_prefix} tokens are fewer than {self._marks.min_tokens}"
            return Start(at, short, "too_short")
        return self._stored_start(self._storing, prompt, shared, marks, stopped)

    def _going_on(self, prompt: Prompt, at: int) -> Start:
        start = Start(at, "live: continues the conversation", "live")
        return self._keeping(start, prompt)

    def _keeping(self, start: Start, prompt: Prompt) -> Start:
        """Let the turn that follows be kept as well, where turns are."""
        storing = self._storing
        if storing is None or not self._marks.keeps_turns or self.footing.held.is_converted:
            return start
        fingerprint = self.footing.held.fingerprint(self._engine.fingerprint())
        base = self.footing.base_below(start.n_tokens)
        keeps = self._keeps(storing, fingerprint, prompt, start.n_tokens)
        return replace(start, base=base, fingerprint=fingerprint, keeps=keeps)

    def _keeps(
        self, storing: Storing, fingerprint: Fingerprint, prompt: Prompt, at: int
    ) -> frozenset[int]:
        """Return the cuts behind `at` that are to be kept."""
        if self.footing.held.is_converted or storing.refusal(fingerprint):
            return frozenset()
        ends = self._marks.segments(prompt)
        return frozenset(end for end in ends if end > at and end >= self._marks.min_tokens)

    def _stored_start(
        self,
        storing: Storing,
        prompt: Prompt,
        shared: Sequence[int],
        marks: Sequence[int],
        stopped: Callable[[], bool],
    ) -> Start:
        begun = perf_counter()
        fingerprint = self._engine.fingerprint()
        storing.speeds.note_model(fingerprint)
        prefixes = cuts_before(storing, fingerprint, prompt, marks)
        above = {n: prefixes[n] for n in marks if n > max(shared, default=0)}
        storing.notes += admit(self._engine, storing.store, fingerprint, prompt.tokens, above)
        start = self._restored(storing, fingerprint, prompt, above)
        claim, refusal = None, storing.refusal(fingerprint)
        with ExitStack() as owing:  # whatever fails from here on, the next one is let in
            if not refusal and start.n_tokens < prompt.n_prefix and prompt.n_prefix in above:
                tokens = prompt.tokens[: prompt.n_prefix]
                claim = Claim(storing.store, fingerprint, tokens, prompt.cuts)
                owing.callback(claim.release)
                start = self._claimed(claim, storing, fingerprint, prompt, above, start, stopped)
            if not start.n_tokens:
                start = self._live_start(storing, prompt, shared, start, prefixes, above)
            keeps = self._keeps(storing, fingerprint, prompt, start.n_tokens)
            owing.pop_all()
        if refusal and start.n_tokens < prompt.n_prefix:
            start = replace(start, reason=f"{start.reason}; not kept: {refusal}")
        took_s = perf_counter() - begun
        return replace(
            start, restore_s=took_s, keeps=keeps, release=claim.release if claim else None
        )

    def _live_start(
        self,
        storing: Storing,
        prompt: Prompt,
        shared: Sequence[int],
        miss: Start,
        prefixes: Mapping[int, Sequence[int]],
        above: Mapping[int, Sequence[int]],
    ) -> Start:
        """Go back to what is live, where nothing stored reaches further, or to what is stored below."""
        fingerprint = self._engine.fingerprint()
        at = self.footing.went_back(shared)
        if at:
            part = "" if at >= prompt.n_prefix else f", {at} of {prompt.n_prefix} tokens"
            base = self.footing.base_below(at)
            made_under = self.footing.held.fingerprint(fingerprint)
            reason = f"live: same prefix{part}"
            return Start(at, reason, "live", base=base, fingerprint=made_under)
        if shared and len(above) < len(prefixes):
            return self._restored(storing, fingerprint, prompt, prefixes)
        return miss

    def _claimed(
        self,
        claim: Claim,
        storing: Storing,
        fingerprint: Fingerprint,
        prompt: Prompt,
        above: Mapping[int, Sequence[int]],
        start: Start,
        stopped: Callable[[], bool],
    ) -> Start:
        """Take the right to read the prefix, or what another process has made of it meanwhile."""
        for _ in range(_N_WAITS):
            if start.n_tokens >= prompt.n_prefix:
                break
            if claim.taken():
                if not start.n_tokens:  # it may have been stored since the look before
                    again = self._restored(storing, fingerprint, prompt, above)
                    start = _unless_gone(start, again)
                break
            if not claim.waited(storing.speeds.prompt_tokens_per_s, stopped):
                break
            again = self._restored(storing, fingerprint, prompt, above)
            start = _unless_gone(start, again)
        return start

    def _restored(
        self,
        storing: Storing,
        fingerprint: Fingerprint,
        prompt: Prompt,
        prefixes: Mapping[int, Sequence[int]],
    ) -> Start:
        """Restore the longest of these prefixes that is stored; nothing changes where none is."""
        found = storing.find(self._engine, fingerprint, prompt.tokens, prefixes)
        if not isinstance(found, Found):
            return Start(0, f"miss: {found.reason}", found.code, fingerprint=fingerprint)
        begun = perf_counter()
        n = found.state.n_tokens
        try:
            self._engine.restore(found.state)
        except (SnapshotIncompatible, MemoryError) as err:
            why = "not enough memory to restore it"
            if isinstance(err, SnapshotIncompatible):
                why = err.message
            return Start(0, f"miss: {why}", "restore_failed", fingerprint=fingerprint)
        disk_s = found.find_s + perf_counter() - begun
        storing.speeds.note_restored(found.n_bytes, disk_s)
        self.footing.put(found)
        part = f": {n} of {prompt.n_prefix} tokens" if n < prompt.n_prefix else ""
        part = ": continues the conversation" if n > prompt.n_prefix else part
        if found.code == "hit":
            storing.writer.note(found.anchor)
        return Start(
            n,
            found.reason.replace("hit", f"hit{part}", 1),
            found.code,
            base=Base(found.key, n, found.n_links),
            restored_bytes=found.n_bytes,
            disk_s=disk_s,
            fingerprint=self.footing.held.fingerprint(fingerprint),
        )


def _unless_gone(first: Start, again: Start) -> Start:
    """Return the second look, or the first where that one removed what it could not use."""
    return first if again.code == "not_stored" else again
