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
from edgellm.runtime.found import Found
from edgellm.runtime.keeper import Base, Held
from edgellm.runtime.live import common_prefix
from edgellm.runtime.settling import Start
from edgellm.runtime.turns import turn_name
from edgellm.store.names import cuts_below

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from edgellm.engines.base import Engine
    from edgellm.runtime.live import Live, Prompt
    from edgellm.runtime.storing import Storing
    from edgellm.store.state import Fingerprint

_N_WAITS: Final = 3
"""How often a process that was waited for may fail before the prompt is read here after all."""


class Starting:
    """Finds where reading a prompt begins, for one engine.

    Args:
        engine: whose memory it is.
        storing: where snapshots lie, or None when they are off.
        min_tokens: the shortest prefix that is kept.
        keeps_turns: whether prompts are also cut, and kept, where messages end.

    Attributes:
        held: what the memory rests on.
        ends: where the memory was cut, besides the cuts of its prompt.
        base: the longest snapshot of what is in the memory, as far as this session knows.
        history: all places where decoding began anew in what the memory holds, ascending, each
            token of an answer among them: what a snapshot of it is known by, besides its tokens.
    """

    def __init__(
        self, engine: Engine, storing: Storing | None, *, min_tokens: int, keeps_turns: bool
    ) -> None:
        self._engine = engine
        self._storing = storing
        self._min_tokens = min_tokens
        self._keeps_turns = keeps_turns
        self.held = Held()
        self.ends: tuple[int, ...] = ()
        self.base = Base()
        self._said_lost = False
        self.history: tuple[int, ...] = ()

    def start(self, prompt: Prompt, live: Live | None, stopped: Callable[[], bool]) -> Start:
        """Bring the memory to a place from which the prompt can be read on.

        Args:
            prompt: what is to be read.
            live: what the memory holds.
            stopped: asked while another process is waited for; True ends the waiting.
        """
        kept = live.continued_by(prompt.tokens) if live else 0
        if live and self._keeps_turns and kept < len(live.tokens):
            kept = 0  # an answer that was changed is read from a place where all runs cut
        if live and kept and self._engine.truncate(kept):
            self.history = self.history_after(live, kept)
            return self._going_on(prompt, kept)
        shared = self._shared(prompt, live)
        marks = self._marks(prompt) if self._storing else []
        reach = max((prompt.n_prefix, *marks))
        if shared and shared[-1] >= reach and self._went_back(shared[-1:]):
            return self._keeping(Start(shared[-1], "live: same prefix", "live"), prompt)
        if self._storing is None or not marks:
            at = self._went_back(shared)
            if not prompt.n_prefix:
                return Start(at, "no stable prefix", "no_prefix")
            short = f"not kept: {prompt.n_prefix} tokens are fewer than {self._min_tokens}"
            return Start(at, short, "too_short")
        return self._stored_start(self._storing, prompt, shared, marks, stopped)

    def segments(self, prompt: Prompt) -> tuple[int, ...]:
        """Return where decoding a prompt is cut, besides its end."""
        last_turn = self._turns(prompt)[-1:] if self._keeps_turns else ()
        return (*prompt.cuts, *last_turn)

    def history_after(self, live: Live, n_tokens: int) -> tuple[int, ...]:
        """Return the history of a memory that was prompt, then answer, cut back to so many tokens."""
        one_by_one = range(live.n_prompt, n_tokens + 1)
        return tuple(sorted({*(at for at in self.history if at <= n_tokens), *one_by_one}))

    def _turns(self, prompt: Prompt) -> tuple[int, ...]:
        n = len(prompt.tokens)
        return tuple(turn for turn in prompt.turns if prompt.n_prefix < turn < n)

    def _marks(self, prompt: Prompt) -> list[int]:
        """Return the prefixes of a prompt that may be stored, the shortest first."""
        marks = {*prompt.cuts, prompt.n_kept}
        if self._keeps_turns:
            marks.update(self._turns(prompt))
        return sorted(mark for mark in marks if mark >= max(1, self._min_tokens))

    def _prefixes(
        self, storing: Storing, fingerprint: Fingerprint, prompt: Prompt, marks: Sequence[int]
    ) -> dict[int, tuple[int, ...]]:
        """Return for each of these marks where a memory that ends there was cut before."""
        prefixes: dict[int, tuple[int, ...]] = {}
        behind = any(mark > prompt.n_prefix for mark in marks)
        texts = storing.store.texts(fingerprint) if behind else None
        for mark in marks:
            cuts: tuple[int, ...] | None = prompt.cuts
            if mark == prompt.n_kept:
                cuts = prompt.kept_cuts
            elif texts and mark > prompt.n_prefix:  # an answer may have been read token by token
                name = turn_name(prompt.tokens[:mark], prompt.cuts)
                found = texts.find(name)
                cuts = None if found is None else found[1]
            prefixes[mark] = cuts_below(prompt.cuts if cuts is None else cuts, mark)
        return prefixes

    def _shared(self, prompt: Prompt, live: Live | None) -> tuple[int, ...]:
        """Return the places up to which live memory was made by the calls of a cold run."""
        cuts = live.shared_cuts(prompt) if live else ()
        if live is None or not self._keeps_turns or cuts != prompt.cuts:
            return cuts
        n = common_prefix(live.tokens, prompt.tokens)
        turns = [turn for turn in self._turns(prompt) if turn in self.ends and turn <= n]
        return (*cuts, *turns)

    def _going_on(self, prompt: Prompt, at: int) -> Start:
        start = Start(at, "live: continues the conversation", "live")
        return self._keeping(start, prompt)

    def _keeping(self, start: Start, prompt: Prompt) -> Start:
        """Let the turn that follows be kept as well, where turns are."""
        storing = self._storing
        if storing is None or not self._keeps_turns or self.held.is_converted:
            return start
        fingerprint = self.held.fingerprint(self._engine.fingerprint())
        base = self.base_below(start.n_tokens)
        keeps = self._keeps(storing, fingerprint, prompt, start.n_tokens)
        return replace(start, base=base, fingerprint=fingerprint, keeps=keeps)

    def _keeps(
        self, storing: Storing, fingerprint: Fingerprint, prompt: Prompt, at: int
    ) -> frozenset[int]:
        """Return the cuts behind `at` that are to be kept."""
        if self.held.is_converted or storing.refusal(fingerprint):
            return frozenset()
        ends = self.segments(prompt)
        return frozenset(end for end in ends if end > at and end >= self._min_tokens)

    def base_below(self, n_tokens: int) -> Base:
        """Return the longest snapshot of the first tokens in the memory that can be leant on.

        One that was to be written and was not is passed over, and the user told where that costs
        more than room: what was rounded there is rounded again.
        """
        storing, base = self._storing, self.base.up_to(n_tokens)
        if storing is None or storing.store.closed:  # nothing is written: it rounds as it would be
            return base
        self.base = found = base.first(lambda one: storing.writer.holds(one.key))
        if found.key != base.key and storing.allows_loss and not self._said_lost:
            self._said_lost = True
            how = f"on top of {found.n_tokens} tokens" if found.key else "whole"
            storing.notes.append(
                f"a part of the conversation was not stored: what follows is kept {how}"
            )
        return found

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
        prefixes = self._prefixes(storing, fingerprint, prompt, marks)
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
        at = self._went_back(shared)
        if at:
            part = "" if at >= prompt.n_prefix else f", {at} of {prompt.n_prefix} tokens"
            base, made_under = self.base_below(at), self.held.fingerprint(fingerprint)
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

    def _went_back(self, shared: Sequence[int]) -> int:
        """Cut the memory back to the longest of these cuts that it can be cut to, or empty it."""
        for cut in reversed(shared):
            if cut <= self._engine.position and self._engine.truncate(cut):
                self._forget(cut)
                return cut
        self._engine.truncate(0)
        self._forget(0)
        return 0

    def _forget(self, n_tokens: int) -> None:
        """Note that the memory holds only so many tokens of what it held."""
        self.held.keep(n_tokens)
        self.base = self.base.up_to(n_tokens)
        self.ends = tuple(end for end in self.ends if end <= n_tokens)
        self.history = tuple(at for at in self.history if at <= n_tokens)

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
        self._forget(0)
        self.held.put(n, found.tier, found.changed)
        self.held.is_converted = found.code == "converted"
        self.ends = (n,)
        self.history = (*found.cuts, n)
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
            fingerprint=self.held.fingerprint(fingerprint),
        )


def _unless_gone(first: Start, again: Start) -> Start:
    """Return the second look, or the first where that one removed what it could not use."""
    return first if again.code == "not_stored" else again
