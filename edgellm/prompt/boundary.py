"""Where the stable prefix of a prompt ends, in token space.

The prefix is what every user text leaves as it is: system messages and the template text around
them. It never depends on the user's words, so one snapshot serves every question.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from edgellm.core import Message

Render = Callable[[Sequence[Message], datetime], str]
Encode = Callable[[str], list[int]]


class Tokenize(Protocol):
    """An engine's `tokenize`."""

    def __call__(self, text: str, *, special: bool, add_bos: bool) -> list[int]:
        """Split text into token ids."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """A tokenised prompt and its stable prefix.

    Attributes:
        tokens: the whole prompt.
        n_prefix: how many of them are equal for every user text; less than `len(tokens)`.
        volatile: whether the template writes the time of day into what would be the prefix, so
            that the prefix ends before it.
    """

    tokens: tuple[int, ...]
    n_prefix: int
    volatile: bool


def prompt_encoder(tokenize: Tokenize, *, bos_text: str, special: bool = True) -> Encode:
    """Return a function from rendered text to token ids with exactly one beginning-of-sequence.

    Args:
        tokenize: the engine's.
        bos_text: how the template writes the BOS token; a text that starts with it gets no other.
        special: read control tokens in the text; pass `not prompter.fallback`.
    """
    raise NotImplementedError


def stable_prefix(
    render: Render,
    messages: Sequence[Message],
    encode: Encode,
    special_ids: Collection[int],
    now: datetime,
) -> Boundary:
    """Tokenise the prompt and find its stable prefix.

    Args:
        render: the template, such as `lambda messages, now: prompter.render(messages, now=now)`.
        messages: the conversation.
        encode: from `prompt_encoder`.
        special_ids: control tokens, at which a prefix can be cut without looking at its neighbours.
        now: the time the prompt is rendered for.

    Raises:
        TemplateError: the conversation cannot be rendered.
    """
    raise NotImplementedError
