"""What is in the engine's memory between two requests, and how much of it the next one can keep.

Two cases keep the promise of equal bits. A request that goes on from the last one (its tokens start
with all of the last prompt) continues the live conversation. A request that shares only the stable
prefix goes back to that boundary, where a cold run would have cut as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from edgellm.prompt.boundary import Boundary


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered and tokenised request.

    Attributes:
        text: as the template wrote it.
        tokens: all of them.
        n_prefix: length of the stable prefix.
    """

    text: str
    tokens: tuple[int, ...]
    n_prefix: int


@dataclass(frozen=True, slots=True)
class Live:
    """The memory after an answer.

    Attributes:
        tokens: what the engine holds, from position 0.
        text: the text of these tokens, or None when it is not valid UTF-8 or cannot be told.
        n_prompt: how many of them were the prompt.
        n_prefix: where the prompt was cut.
    """

    tokens: tuple[int, ...]
    text: str | None
    n_prompt: int
    n_prefix: int

    def continued_by(self, tokens: Sequence[int]) -> int:
        """Return how many live tokens a request that goes on from here keeps; 0 if it does not."""
        n = common_prefix(self.tokens, tokens)
        return n if self.n_prompt <= n < len(tokens) else 0

    def shares_prefix(self, prompt: Prompt) -> bool:
        """Return whether a prompt was cut at the same place after the same tokens."""
        n = prompt.n_prefix
        return 0 < n == self.n_prefix and self.tokens[:n] == prompt.tokens[:n]


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """Return the number of tokens equal from the start."""
    n = 0
    for a, b in zip(left, right):  # noqa: B905  (ends with the shorter)
        if a != b:
            break
        n += 1
    return n


def make_prompt(
    text: str,
    boundary: Boundary,
    live: Live | None,
    encode_more: Callable[[str], list[int]],
    special_ids: Collection[int],
) -> Prompt:
    """Return the prompt, with the tokens that were generated kept as they were generated.

    A model may write a word in other tokens than the tokenizer would. Where the rendered text starts
    with the live text, only what follows is tokenised, so that a conversation is never re-read.

    Args:
        text: as rendered.
        boundary: of this text, tokenised as a whole.
        live: what is in memory.
        encode_more: tokenises the text behind the live text.
        special_ids: control tokens. Only they part a text: before anything else a tokenizer may
            join what stands on both sides, or put a space between.
    """
    prompt = Prompt(text, boundary.tokens, boundary.n_prefix)
    if live is None or not live.text or not text.startswith(live.text):
        return prompt
    n_prefix = boundary.n_prefix
    if live.n_prefix != n_prefix or live.tokens[:n_prefix] != boundary.tokens[:n_prefix]:
        return prompt
    more = encode_more(text[len(live.text) :])
    if not more or more[0] not in special_ids:
        return prompt
    return Prompt(text, (*live.tokens, *more), n_prefix)


def live_after(
    prompt: Prompt, answer: Sequence[int], n_decoded: int, piece: Callable[[int], bytes]
) -> Live:
    """Describe the memory after an answer of which `n_decoded` tokens were decoded."""
    kept = tuple(answer[:n_decoded])
    try:
        text: str | None = prompt.text + b"".join(map(piece, kept)).decode("utf-8")
    except UnicodeDecodeError:
        text = None
    return Live((*prompt.tokens, *kept), text, len(prompt.tokens), prompt.n_prefix)
