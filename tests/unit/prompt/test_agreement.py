"""Tokens that texts share, seen through a window, are those of the whole texts."""

from __future__ import annotations

import random

import pytest

from edgellm.prompt.agreement import Beginnings, common_tokens, shared_tokens
from edgellm.prompt.provenance import PromptText

WORDS = [
    "the",
    "they've",
    "system",
    "(Brackets)",
    "1234",
    "3.14",
    "\U0001f642",
    "값",
    "user:",
    "naïve...",
]
SEEDS = range(6)


class Encode:
    """A vocabulary's tokens, counting the characters that were read."""

    def __init__(self, vocabulary) -> None:
        self._tokenize = vocabulary.tokenize
        self.n_chars = 0

    def __call__(self, prompt: PromptText) -> list[int]:
        """Tokenise behind a beginning-of-sequence."""
        self.n_chars += len(prompt.text)
        return self._tokenize(prompt.text, special=True, add_bos=True)

    def more(self, prompt: PromptText) -> list[int]:
        """Tokenise without one."""
        self.n_chars += len(prompt.text)
        return self._tokenize(prompt.text, special=True, add_bos=False)


def some_text(rng: random.Random, n_words: int) -> str:
    """Return words, spaces and line ends in no order, or one thing over and over."""
    if rng.random() < 0.3:
        return rng.choice([*WORDS, "ab ", "\n", " ", "aa"]) * n_words
    parts = (rng.choice(WORDS) + rng.choice([" ", "\n", "\n\n", "", "  "]) for _ in range(n_words))
    return "".join(parts)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_window_shows_what_whole_texts_share(vocabulary, seed: int) -> None:
    """Over texts of a few thousand characters and every kind of ending."""
    rng = random.Random(seed)
    head = some_text(rng, 600)
    texts = [PromptText(head + some_text(rng, 3)) for _ in range(8)]
    texts.append(PromptText(head[: -rng.randrange(1, 30)] + "!"))
    whole = Encode(vocabulary)
    expected = whole(texts[0])
    for text in texts[1:]:
        expected = common_tokens(expected, whole(text))
    assert shared_tokens(texts, Encode(vocabulary)) == expected


@pytest.mark.parametrize("seed", SEEDS)
def test_beginnings_are_tokenised_as_if_alone(vocabulary, seed: int) -> None:
    """Each gone on from the one before, or read whole where that does not show."""
    rng = random.Random(seed)
    text = PromptText("".join(some_text(rng, 150) for _ in range(6)))
    encode = Encode(vocabulary)
    beginnings = Beginnings(text, encode)
    for end in sorted(rng.randrange(1, len(text.text)) for _ in range(12)):
        assert beginnings.tokens(end) == Encode(vocabulary)(text.head(end))


def test_a_long_text_is_read_once(vocabulary) -> None:
    """Not once for every ending, nor for every beginning."""
    rng = random.Random(1)
    head = "".join(rng.choice(WORDS) + " " for _ in range(4000))
    encode = Encode(vocabulary)
    shared_tokens([PromptText(head + end) for end in ("", "a", "\n", "7", ")", "(")], encode)
    assert encode.n_chars < 1.2 * len(head)
    encode.n_chars = 0
    beginnings = Beginnings(PromptText(head), encode)
    for n in range(1, 9):
        beginnings.tokens(n * len(head) // 8)
    assert encode.n_chars < 1.5 * len(head)
