"""Tokens as text, control tokens as they are spelled: how two stored prefixes are compared by eye."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgellm.engines.base import Vocab


class Tokenize(Protocol):
    """Splits text into token ids, as `Engine.tokenize` does."""

    def __call__(self, text: str, *, special: bool, add_bos: bool) -> list[int]:
        """Return the token ids of `text`."""


class SpelledTokens:
    """Writes tokens of one vocabulary.

    Args:
        vocab: pieces of ordinary tokens, and the spellings of control tokens.
        tokenize: finds which control token a spelling is.
    """

    def __init__(self, vocab: Vocab, tokenize: Tokenize) -> None:
        self._piece = vocab.piece
        self._bos_text = vocab.bos_text
        self._controls: dict[int, bytes] = {}
        for spelling in vocab.spellings:
            tokens = tokenize(spelling, special=True, add_bos=False)
            if len(tokens) == 1:
                self._controls[tokens[0]] = spelling.encode()

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens; bytes that are no UTF-8 become the replacement character."""
        pieces = (self._controls.get(token) or self._piece(token) for token in tokens)
        return b"".join(pieces).decode("utf-8", "replace")

    def shift(self, spelled: str, rendered: str) -> int:
        """Return how many characters tokenising put in front of a rendered text.

        Args:
            spelled: what `text` gives for its tokens.
            rendered: the text that was tokenised, or more.
        """
        bos = self._bos_text
        n = len(bos) if bos and spelled.startswith(bos) and not rendered.startswith(bos) else 0
        return n + (spelled[n : n + 1] == " " and rendered[:1] != " ")
