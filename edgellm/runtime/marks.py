"""Marks: the places in a prompt where it is cut, and those up to which it may be stored or live.

A memory equals that of another run only where both were cut at the same places.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgellm.runtime.live import common_prefix
from edgellm.runtime.turns import turn_name
from edgellm.store.disk.names import cuts_below

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgellm.runtime.live import Live, Prompt
    from edgellm.runtime.storing import Storing
    from edgellm.store.state import Fingerprint


@dataclass(frozen=True, slots=True)
class Marks:
    """Where prompts are cut in one session.

    Attributes:
        min_tokens: the shortest prefix that is kept.
        keeps_turns: whether prompts are also cut, and kept, where messages end.
    """

    min_tokens: int
    keeps_turns: bool

    def segments(self, prompt: Prompt) -> tuple[int, ...]:
        """Return where decoding a prompt is cut, besides its end."""
        last_turn = _turns(prompt)[-1:] if self.keeps_turns else ()
        return (*prompt.cuts, *last_turn)

    def stored(self, prompt: Prompt) -> list[int]:
        """Return the prefixes of a prompt that may be stored, the shortest first."""
        marks = {*prompt.cuts, prompt.n_kept}
        if self.keeps_turns:
            marks.update(_turns(prompt))
        return sorted(mark for mark in marks if mark >= max(1, self.min_tokens))

    def shared(self, prompt: Prompt, live: Live | None, ends: Sequence[int]) -> tuple[int, ...]:
        """Return the places up to which live memory was made by the calls of a cold run.

        Args:
            prompt: what is to be read.
            live: what the memory holds.
            ends: where it was cut, besides the cuts of its prompt.
        """
        cuts = live.shared_cuts(prompt) if live else ()
        if live is None or not self.keeps_turns or cuts != prompt.cuts:
            return cuts
        n = common_prefix(live.tokens, prompt.tokens)
        turns = [turn for turn in _turns(prompt) if turn in ends and turn <= n]
        return (*cuts, *turns)


def cuts_before(
    storing: Storing, fingerprint: Fingerprint, prompt: Prompt, marks: Sequence[int]
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


def _turns(prompt: Prompt) -> tuple[int, ...]:
    n = len(prompt.tokens)
    return tuple(turn for turn in prompt.turns if prompt.n_prefix < turn < n)
