"""How much several texts agree on, in characters and in tokens.

A token stands for sure only where every text has it at the same place, so that what follows decides
nothing before it.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from edgellm.prompt.provenance import PromptText

# Texts that share thousands of tokens are tokenised whole once and then from here on.
_WINDOW_CHARS = 320
# At the start of a window a tokenizer does what it does at the start of a text: so many tokens may
# differ from the whole text's, and at least so many must agree behind them.
_MAX_ODD_TOKENS = 16
_MIN_EVEN_TOKENS = 24


class Encode(Protocol):
    """What turns prompts into tokens, such as `PromptEncoder`."""

    def __call__(self, prompt: PromptText) -> list[int]:
        """Return the tokens of a whole prompt."""

    def more(self, prompt: PromptText) -> list[int]:
        """Return the tokens of what stands behind other text."""


class Beginnings:
    """Tokenises longer and longer beginnings of a text, each from near the end of the one before.

    Args:
        text: whose beginnings.
        encode: makes tokens of texts.
    """

    def __init__(self, text: PromptText, encode: Encode) -> None:
        self._text = text
        self._encode = encode
        self._start = 0
        self._near: list[int] = []
        self._tokens: list[int] = []

    def tokens(self, end: int) -> list[int]:
        """Return the tokens of what stands before a place, none before the last one asked for."""
        head = self._text.head(end)
        tokens = self._gone_on(head) or self._encode(head)
        self._tokens, self._near, self._start = tokens, [], _window_start(head, end)
        if self._start > 0:
            near = self._encode.more(head.tail(self._start))
            n_even = _same_at_end(near, tokens)
            self._near = near if len(near) - n_even <= _MAX_ODD_TOKENS else []
        return list(tokens)

    def _gone_on(self, head: PromptText) -> list[int]:
        """Return the tokens of the last beginning, gone on; none where its window does not show."""
        if not self._near:
            return []
        near = self._encode.more(head.tail(self._start))
        n_same = len(common_tokens(near, self._near))
        if n_same < _MAX_ODD_TOKENS + _MIN_EVEN_TOKENS:
            return []
        return self._tokens[: len(self._tokens) - len(self._near) + n_same] + near[n_same:]


def shared_tokens(
    texts: Sequence[PromptText], encode: Encode, known: Sequence[int] = ()
) -> list[int]:
    """Return the tokens that all of some texts begin with.

    Args:
        texts: at least one.
        encode: makes tokens of them.
        known: those of the first, or none.
    """
    first, *others = texts
    tokens = list(known) or encode(first)
    if not others:
        return tokens
    n_chars = min(agreed_chars(first, text) for text in others)
    n_shared = _seen_near(first, others, n_chars, tokens, encode)
    if n_shared is not None:
        return tokens[:n_shared]
    for text in others:
        tokens = common_tokens(tokens, encode(text))
    return tokens


def _seen_near(
    first: PromptText, others: Sequence[PromptText], n_chars: int, tokens: list[int], encode: Encode
) -> int | None:
    """Return how many of the first text's tokens all have, looking only at where they part.

    Pair merging that crosses neither of two places gives the same tokens on their far sides,
    whatever stands there. So where the window's tokens end like the whole text's, and the windows
    agree on tokens behind that, the whole texts agree up to there. None where it does not show.
    """
    start = _window_start(first, n_chars)
    if start <= 0:
        return None
    near = encode.more(first.tail(start))
    n_odd = len(near) - _same_at_end(near, tokens)
    n_even = min(len(common_tokens(near, encode.more(text.tail(start)))) for text in others)
    if n_odd > _MAX_ODD_TOKENS or n_even < n_odd + _MIN_EVEN_TOKENS:
        return None
    return len(tokens) - len(near) + n_even


def _window_start(text: PromptText, n_chars: int) -> int:
    start = n_chars - _WINDOW_CHARS
    return next((a for a, b in text.controls if a < start < b), start)


def _same_at_end(left: Sequence[int], right: Sequence[int]) -> int:
    n = 0
    for a, b in zip(reversed(left), reversed(right)):  # noqa: B905  (ends with the shorter)
        if a != b:
            break
        n += 1
    return n


def after_special(tokens: Sequence[int], special_ids: Collection[int]) -> int:
    """Return the position after the last control token, or 0."""
    for position in range(len(tokens), 0, -1):
        if tokens[position - 1] in special_ids:
            return position
    return 0


def common_tokens(left: list[int], right: list[int]) -> list[int]:
    """Return what two lists of tokens begin with."""
    for position, (a, b) in enumerate(zip(left, right)):  # noqa: B905  (ends with the shorter)
        if a != b:
            return left[:position]
    return left[: len(right)]


def agreed_chars(left: PromptText, right: PromptText) -> int:
    """Return how many characters are equal and mean the same, as control tokens or as text."""
    chars = _common_chars(left.text, right.text)
    nowhere = (chars, chars)
    for a, b in zip_longest(left.controls, right.controls, fillvalue=nowhere):
        if a != b:
            return min(chars, a[0], b[0])
    return chars


def _common_chars(left: str, right: str) -> int:
    """Return the length of the common beginning, by halving: slices compare fast."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[:middle] == right[:middle]:
            low = middle
        else:
            high = middle - 1
    return low
