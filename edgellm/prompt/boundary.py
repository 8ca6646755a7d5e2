"""Where the stable prefix of a prompt ends, in token space.

The prefix is what every user text leaves as it is: system messages and the template text around
them. It never depends on the user's words, so one snapshot serves every question.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import zip_longest
from typing import TYPE_CHECKING

from edgellm.core import Message
from edgellm.errors import TemplateError
from edgellm.prompt.provenance import PromptText

if TYPE_CHECKING:
    from collections.abc import Collection

Render = Callable[[Sequence[Message], datetime], PromptText]
Encode = Callable[[PromptText], list[int]]

# What user texts begin with, as far as tokenizers care: nothing, a letter, a space and a digit, a
# line break, several bytes a character, a word, a digit, closing and opening punctuation.
PROBES = ("", "a", " 1", "\n", "\U0001f642", "The", "7", ")", "(")
# Two clocks that differ in the first character of each field, so that no prefix ends inside one.
CLOCKS = (datetime(2001, 2, 3, 4, 5, 6), datetime(1999, 12, 31, 23, 59, 58))  # noqa: DTZ001
# A role's header (`user`, a line break) between the last control token and the user's text is not
# worth the risk that tokens merge there; a system prompt that a template puts there is.
MAX_TRIM_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Boundary:
    """A tokenised prompt and its stable prefix.

    Attributes:
        tokens: the whole prompt.
        cuts: where the prompt may be cut, ascending, none of them 0 or `len(tokens)`: behind each
            declared part that may stay while what follows changes. What stands before the last cut
            is equal for every user text.
        volatile: whether the template writes the time into what would be the prefix, so that the
            prefix ends before it.
    """

    tokens: tuple[int, ...]
    cuts: tuple[int, ...]
    volatile: bool

    @property
    def n_prefix(self) -> int:
        """Return where the last cut is: the length of the stable prefix, 0 without one."""
        return self.cuts[-1] if self.cuts else 0


def stable_prefix(
    render: Render,
    messages: Sequence[Message],
    encode: Encode,
    special_ids: Collection[int],
    now: datetime,
) -> Boundary:
    """Tokenise the prompt and find its stable prefix.

    The template is rendered with the system messages and one of several user texts, at two clocks.
    Where tokens agree under all of them, cut back to the last control token, ends the prefix.

    Args:
        render: the template, such as `PromptWriter.write`.
        messages: the conversation.
        encode: a `PromptEncoder`.
        special_ids: control tokens, at which a prefix can be cut without looking at its neighbours.
        now: the time the prompt is rendered for.

    Raises:
        TemplateError: the conversation cannot be rendered.
    """
    tokens = encode(render(messages, now))
    texts = _rendered(render, messages, PROBES, CLOCKS[0])
    agreed = _agreement(texts, encode, special_ids)
    volatile = False
    other_clock = _rendered(render, messages, PROBES[:2], CLOCKS[1])
    if not set(other_clock) <= set(texts):
        shorter = _agreement([*texts, *other_clock], encode, special_ids)
        volatile = len(shorter) < len(agreed)
        agreed = shorter
    n_prefix = len(agreed)
    if tokens[:n_prefix] != agreed:
        # A template that treats a whole conversation differently from its first question.
        n_prefix = _after_special(_common(agreed, tokens), special_ids)
    n_prefix = min(n_prefix, len(tokens) - 1)
    return Boundary(tuple(tokens), (n_prefix,) if n_prefix else (), volatile)


def _rendered(
    render: Render, messages: Sequence[Message], probes: Sequence[str], clock: datetime
) -> list[PromptText]:
    """Render each probe behind the system messages; a probe the template refuses is left out."""
    system = []
    for message in messages:
        if message.role != "system":
            break
        system.append(message)
    texts = []
    for probe in probes:
        with suppress(TemplateError):
            texts.append(render([*system, Message("user", probe)], clock))
    return texts


def _agreement(
    texts: Sequence[PromptText], encode: Encode, special_ids: Collection[int]
) -> list[int]:
    """Return the tokens all texts begin with, cut where that is safe."""
    if len(texts) < 2:
        return []
    first = texts[0]
    nearest = min(texts[1:], key=lambda text: _agreed_chars(first, text))
    common = _common(encode(first), encode(nearest))
    cut = _after_special(common, special_ids)
    if cut and cut >= len(common) - MAX_TRIM_TOKENS:
        # Tokens up to a control token depend on nothing after it, and no two texts agree less than
        # these two: the others need not be looked at.
        return common[:cut]
    for text in texts[1:]:
        common = _common(common, encode(text))
    return common


def _after_special(tokens: Sequence[int], special_ids: Collection[int]) -> int:
    """Return the position after the last control token, or 0."""
    for position in range(len(tokens), 0, -1):
        if tokens[position - 1] in special_ids:
            return position
    return 0


def _common(left: list[int], right: list[int]) -> list[int]:
    for position, (a, b) in enumerate(zip(left, right)):  # noqa: B905  (ends with the shorter)
        if a != b:
            return left[:position]
    return left[: len(right)]


def _agreed_chars(left: PromptText, right: PromptText) -> int:
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
