"""What is in the engine's memory between two requests, and how much of it the next one can keep.

Two cases keep the promise of equal bits. A request that goes on from the last one (its tokens start
with all of the last prompt) continues the live conversation. A request that shares only the stable
prefix goes back to that boundary, where a cold run would have cut as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
    text: str, boundary: Boundary, live: Live | None, encode_more: Callable[[str], list[int]]
) -> Prompt:
    """Return the prompt, with the tokens that were generated kept as they were generated.

    A model may write a word in other tokens than the tokenizer would. Where the rendered text starts
    with the live text, only what follows is tokenised, so that a conversation is never re-read.
    """
    if live is not None and live.text and len(live.text) < len(text):
        is_next = text.startswith(live.text) and live.n_prefix == boundary.n_prefix
        if is_next and live.shares_prefix(Prompt(text, boundary.tokens, boundary.n_prefix)):
            more = encode_more(text[len(live.text) :])
            return Prompt(text, (*live.tokens, *more), boundary.n_prefix)
    return Prompt(text, boundary.tokens, boundary.n_prefix)


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
