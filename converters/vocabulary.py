"""A vocabulary as a GGUF says it: one text, one kind, and for some kinds one score for each id.

Ids never shift: what the tokenizer's files leave free becomes an unused token, and no two ids may
have the same text, because engines look ids up by it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

from edgellm.errors import ConvertError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from .added_tokens import AddedToken
    from .recipe import KeyValues

MAX_TOKEN_BYTES: Final = 1 << 16
_PREFIX: Final = "tokenizer.ggml."


class TokenKind(IntEnum):
    """`tokenizer.ggml.token_type`, as llama.cpp numbers it."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A vocabulary, one entry per row of the embedding.

    Attributes:
        model: `gpt2` joins pairs by the rank of their merge, `llama` by the score of what they make.
        texts: what each id stands for.
        kinds: a `TokenKind` for each id.
        merges: pairs joined by a space, most frequent first; `gpt2` only.
        pre: llama.cpp's name of the splitter; `gpt2` only.
        scores: float32 values, higher is joined first; `llama` only.
        prefix: when a blank goes before a text: `never`, before `each` stretch between special
            tokens, or before the `first` one only, which engines cannot do.
        post_processor: the JSON value that says what is put around a text.
        ids: text to id, as the checkpoint's files spell them.
        warnings: what the user should know.
    """

    model: str
    texts: list[str]
    kinds: list[int]
    merges: list[str]
    pre: str
    scores: list[float]
    prefix: str
    post_processor: Any
    ids: Mapping[str, int]
    warnings: tuple[str, ...]

    def key_values(self) -> KeyValues:
        """Return the vocabulary's metadata, in file order."""
        values: KeyValues = {
            f"{_PREFIX}model": self.model,
            f"{_PREFIX}pre": self.pre,
            f"{_PREFIX}tokens": self.texts,
        }
        if self.model == "llama":
            values[f"{_PREFIX}scores"] = self.scores
            values[f"{_PREFIX}add_space_prefix"] = self.prefix != "never"
        values[f"{_PREFIX}token_type"] = self.kinds
        if self.model != "llama":
            values[f"{_PREFIX}merges"] = self.merges
        return values


def lay_out(
    vocab: Mapping[str, int], added: Mapping[int, AddedToken], n_vocab: int, path: Path
) -> tuple[list[str], list[int]]:
    """Return the text and the kind of each id; trained tokens are `NORMAL` here.

    Raises:
        ConvertError: an id is beyond the embedding, has two texts, or its text is too long.
    """
    n_tokens = max(*vocab.values(), *added, -1) + 1
    if n_tokens > n_vocab:
        raise ConvertError(
            f"the tokenizer has ids up to {n_tokens - 1}, the embedding {n_vocab} rows",
            path=path,
            hint="the tokenizer belongs to another model",
        )
    texts = [f"[PAD{i}]" for i in range(n_vocab)]
    kinds = [int(TokenKind.UNUSED)] * n_vocab
    for text, i in vocab.items():
        texts[i], kinds[i] = text, int(TokenKind.NORMAL)
    for i, token in added.items():
        if kinds[i] == TokenKind.NORMAL and texts[i] != token.text:
            raise ConvertError(
                f"added token {token.text[:80]!r} claims id {i}, which is {texts[i][:80]!r}",
                path=path,
            )
        texts[i] = token.text
        kinds[i] = int(TokenKind.CONTROL if token.special else TokenKind.USER_DEFINED)
    if not all(texts):
        raise ConvertError(f"token {texts.index('')} has no text", path=path)
    longest = max(texts, key=len)
    if len(longest.encode("utf-8", "replace")) > MAX_TOKEN_BYTES:
        raise ConvertError(f"a token of {len(longest)} characters", path=path)
    return texts, kinds


def index(texts: list[str], path: Path) -> dict[str, int]:
    """Return text to id.

    Raises:
        ConvertError: two ids stand for one text.
    """
    ids = {text: i for i, text in enumerate(texts)}
    if len(ids) != len(texts):
        twice = next(text for i, text in enumerate(texts) if ids[text] != i)
        raise ConvertError(f"two ids stand for {twice[:80]!r}", path=path)
    return ids


def free_ids(kinds: list[int]) -> list[str]:
    """Return the warning about ids without a token, if there are any."""
    n_free = kinds.count(TokenKind.UNUSED)
    if not n_free:
        return []
    return [f"{n_free} ids have no token in the tokenizer; they become unused tokens"]
