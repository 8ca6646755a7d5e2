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
    from edgellm.prompt.spellings import Span


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered and tokenised request.

    Attributes:
        text: as the template wrote it.
        tokens: all of them.
        cuts: the declared boundaries, ascending, at which decoding is cut; the last one ends the
            stable prefix. None is 0 or the prompt's end.
        controls: where the template's control tokens are spelled.
        turns: behind which tokens earlier messages end, where that was asked for and can be told.
        n_kept: length of a kept conversation whose very tokens these go on from, 0 without one.
        kept_cuts: all places where that conversation was cut.
    """

    text: str
    tokens: tuple[int, ...]
    cuts: tuple[int, ...]
    controls: tuple[Span, ...] = ()
    turns: tuple[int, ...] = ()
    n_kept: int = 0
    kept_cuts: tuple[int, ...] = ()

    @property
    def n_prefix(self) -> int:
        """Return where the last cut is: the length of the stable prefix, 0 without one."""
        return self.cuts[-1] if self.cuts else 0


@dataclass(frozen=True, slots=True)
class Live:
    """The memory after an answer.

    Attributes:
        tokens: what the engine holds, from position 0.
        text: the text of these tokens, or None when it is not valid UTF-8 or cannot be told.
        n_prompt: how many of them were the prompt.
        cuts: where the prompt was cut.
        pending: the text of the answer's tokens that were not decoded, or None if it is none.
        controls: where control tokens are spelled in the text; an answer has none.
        kept_cuts: of a conversation that was kept: all places where it was cut, answers included.
    """

    tokens: tuple[int, ...]
    text: str | None
    n_prompt: int
    cuts: tuple[int, ...]
    pending: str | None = ""
    controls: tuple[Span, ...] = ()
    kept_cuts: tuple[int, ...] = ()

    @property
    def n_prefix(self) -> int:
        """Return where the last cut is: the length of the stable prefix, 0 without one."""
        return self.cuts[-1] if self.cuts else 0

    def continued_by(self, tokens: Sequence[int]) -> int:
        """Return how many live tokens a request that goes on from here keeps; 0 if it does not."""
        n = common_prefix(self.tokens, tokens)
        return n if self.n_prompt <= n < len(tokens) else 0

    def shared_cuts(self, prompt: Prompt) -> tuple[int, ...]:
        """Return the cuts up to which a prompt was cut at the same places, after the same tokens."""
        n_cuts = common_prefix(self.cuts, prompt.cuts)
        n = common_prefix(self.tokens, prompt.tokens)
        return tuple(cut for cut in self.cuts[:n_cuts] if cut <= n)


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
    piece: Callable[[int], bytes],
    *,
    separator: str = "",
    controls: tuple[Span, ...] = (),
) -> Prompt:
    """Return the prompt, with the tokens that were generated kept as they were generated.

    A model may write a word in other tokens than the tokenizer would. Where the rendered text starts
    with the live text, only what follows is tokenised, so that a conversation is never re-read.

    Args:
        text: as rendered.
        boundary: of this text, tokenised as a whole.
        live: what is in memory.
        encode_more: tokenises the text behind the live text.
        special_ids: control tokens. They part a text: before anything else a tokenizer may join
            what stands on both sides, or put a space between.
        piece: the bytes of a token.
        separator: what stands between two messages of raw text, where no control token does; "" for
            a template. A whole message ends there, so nothing is cut in the middle of a word.
        controls: where control tokens are spelled in the text.
    """
    prompt = Prompt(text, boundary.tokens, boundary.cuts, controls, boundary.turns)
    if live is None or not live.text or not text.startswith(live.text):
        return prompt
    # A message may say what a template wrote: equal texts are equal prompts only with these.
    if live.controls != tuple(span for span in controls if span[0] < len(live.text)):
        return prompt
    n_prefix = boundary.n_prefix
    if live.cuts != boundary.cuts or live.tokens[:n_prefix] != boundary.tokens[:n_prefix]:
        return prompt
    delta = text[len(live.text) :]
    more = encode_more(delta)
    if not more:
        return prompt
    if more[0] not in special_ids and not (
        _starts_a_message(delta, live.pending, separator)
        # No space was put in front, as some tokenizers do with any text.
        and b"".join(map(piece, more)) == delta.encode("utf-8", "surrogatepass")
    ):
        return prompt
    turns = _moved(boundary, (*live.tokens, *more))
    return Prompt(text, (*live.tokens, *more), boundary.cuts, controls, turns)


def _moved(boundary: Boundary, tokens: tuple[int, ...]) -> tuple[int, ...]:
    """Return where messages end when an answer was written in other tokens than its text makes."""
    n_same = common_prefix(tokens, boundary.tokens)
    n_behind = common_prefix(tokens[::-1], boundary.tokens[::-1])
    n_more = len(tokens) - len(boundary.tokens)
    return tuple(
        turn if turn <= n_same else turn + n_more
        for turn in boundary.turns
        # The control token that closes the message stands behind what differs.
        if turn <= n_same or turn > len(boundary.tokens) - n_behind
    )


def _starts_a_message(delta: str, pending: str | None, separator: str) -> bool:
    """Return whether raw text goes on with the rest of the answer and then another message."""
    return bool(separator) and pending is not None and delta.startswith(pending + separator)


def live_after(
    prompt: Prompt, answer: Sequence[int], n_decoded: int, piece: Callable[[int], bytes]
) -> Live:
    """Describe the memory after an answer of which `n_decoded` tokens were decoded."""
    kept = tuple(answer[:n_decoded])
    return Live(
        (*prompt.tokens, *kept),
        _text(prompt.text, kept, piece),
        len(prompt.tokens),
        prompt.cuts,
        _text("", answer[n_decoded:], piece),
        prompt.controls,
    )


def _text(before: str, tokens: Sequence[int], piece: Callable[[int], bytes]) -> str | None:
    """Return a text and that of the tokens after it, or None when they are not valid UTF-8."""
    try:
        return before + b"".join(map(piece, tokens)).decode("utf-8")
    except UnicodeDecodeError:
        return None
