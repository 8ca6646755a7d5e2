"""Footing: what the memory of one engine stands on, and the way back down it.

What is known here describes the first tokens of the memory; whatever cuts the memory cuts this with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgellm.runtime.keeper import Base, Held

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgellm.engines.base import Engine
    from edgellm.runtime.found import Found
    from edgellm.runtime.live import Live
    from edgellm.runtime.storing import Storing


class Footing:
    """What is known of a memory beside its tokens.

    Args:
        engine: whose memory it is.
        storing: where snapshots lie, or None when they are off.

    Attributes:
        held: what the memory rests on.
        ends: where the memory was cut, besides the cuts of its prompt.
        base: the longest snapshot of what is in the memory, as far as this session knows.
        history: all places where decoding began anew in what the memory holds, ascending, each
            token of an answer among them: what a snapshot of it is known by, besides its tokens.
    """

    def __init__(self, engine: Engine, storing: Storing | None) -> None:
        self._engine = engine
        self._storing = storing
        self.held = Held()
        self.ends: tuple[int, ...] = ()
        self.base = Base()
        self.history: tuple[int, ...] = ()
        self._said_lost = False

    def history_after(self, live: Live, n_tokens: int) -> tuple[int, ...]:
        """Return the history of a memory that was prompt, then answer, cut back to so many tokens."""
        one_by_one = range(live.n_prompt, n_tokens + 1)
        return tuple(sorted({*(at for at in self.history if at <= n_tokens), *one_by_one}))

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

    def went_back(self, shared: Sequence[int]) -> int:
        """Cut the memory back to the longest of these cuts that it can be cut to, or empty it."""
        for cut in reversed(shared):
            if cut <= self._engine.position and self._engine.truncate(cut):
                self._forget(cut)
                return cut
        self._engine.truncate(0)
        self._forget(0)
        return 0

    def put(self, found: Found) -> None:
        """Note that the memory holds what was found in the store, and nothing else."""
        n_tokens = found.state.n_tokens
        self._forget(0)
        self.held.put(n_tokens, found.tier, found.changed)
        self.held.is_converted = found.code == "converted"
        self.ends = (n_tokens,)
        self.history = (*found.cuts, n_tokens)

    def _forget(self, n_tokens: int) -> None:
        """Note that the memory holds only so many tokens of what it held."""
        self.held.keep(n_tokens)
        self.base = self.base.up_to(n_tokens)
        self.ends = tuple(end for end in self.ends if end <= n_tokens)
        self.history = tuple(at for at in self.history if at <= n_tokens)
