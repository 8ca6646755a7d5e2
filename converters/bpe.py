"""The `model` part of tokenizer.json when it is byte-pair encoding: vocabulary and merges, checked.

Merges come in two spellings, "a b" and ["a", "b"]; each must make a token of two tokens, and stand
once, because two readers disagree about which of two ranks counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from edgellm.errors import ConvertError

from .added_tokens import MAX_TOKENS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_WHY: Final = {
    "Unigram": "engines cut text into the likeliest pieces by other rules than this file's",
    "WordPiece": "no engine generates text with it",
    "WordLevel": "no engine generates text with it",
}


@dataclass(frozen=True, slots=True)
class Bpe:
    """A byte-pair model.

    Attributes:
        vocab: text to id; every id once.
        merges: pairs, the one joined first at the head.
        byte_fallback: characters without a token become the tokens of their bytes.
        ignore_merges: a word that is a token is never cut.
        unknown: the token for what has no token, or None.
    """

    vocab: dict[str, int]
    merges: list[tuple[str, str]]
    byte_fallback: bool
    ignore_merges: bool
    unknown: str | None


def read_bpe(tokenizer: Mapping[str, Any], path: Path) -> Bpe:
    """Check the model of a tokenizer.json.

    Raises:
        ConvertError: it is of another kind, or contradicts itself.
    """
    model = tokenizer.get("model")
    kind = model.get("type", "BPE") if isinstance(model, dict) else None
    if not isinstance(model, dict) or kind != "BPE":
        shown = "no model" if model is None else f"a model of type {str(kind)[:40]!r}"
        why = _WHY.get(str(kind), "")
        raise ConvertError(
            f"{shown}; only byte-pair encoding (BPE) is converted{why and ': ' + why}", path=path
        )
    for key in ("continuing_subword_prefix", "end_of_word_suffix", "dropout"):
        if model.get(key):
            raise ConvertError(
                f"model.{key} is {str(model[key])[:60]!r}, which no engine does", path=path
            )
    flags = {key: model.get(key) or False for key in ("byte_fallback", "ignore_merges")}
    for key, flag in flags.items():
        if not isinstance(flag, bool):
            raise ConvertError(f"model.{key} is {str(flag)[:60]!r}", path=path)
    vocab = _vocab(model, path)
    unknown = model.get("unk_token")
    if unknown is not None and (not isinstance(unknown, str) or unknown not in vocab):
        raise ConvertError(f"unk_token is {str(unknown)[:60]!r}, which is no token", path=path)
    return Bpe(vocab, _merges(model, vocab, path), unknown=unknown, **flags)


def _vocab(model: dict[str, Any], path: Path) -> dict[str, int]:
    vocab = model.get("vocab")
    if not isinstance(vocab, dict) or not 0 < len(vocab) <= MAX_TOKENS:
        raise ConvertError("model.vocab is empty or no object", path=path)
    for text, i in vocab.items():
        if type(i) is not int or not 0 <= i < MAX_TOKENS:
            raise ConvertError(f"token {text[:80]!r} has id {str(i)[:40]}", path=path)
    if len(set(vocab.values())) != len(vocab):
        seen: dict[int, str] = {}
        for text, i in vocab.items():
            if i in seen:
                raise ConvertError(f"id {i} is both {seen[i][:80]!r} and {text[:80]!r}", path=path)
            seen[i] = text
    return vocab


def _merges(model: dict[str, Any], vocab: Mapping[str, int], path: Path) -> list[tuple[str, str]]:
    rows = model.get("merges")
    if not isinstance(rows, list) or len(rows) > MAX_TOKENS:
        raise ConvertError("model.merges is no list", path=path)
    as_text = bool(rows) and isinstance(rows[0], str)
    made: list[tuple[str, str]] = []
    for i, row in enumerate(rows):
        if isinstance(row, str) is not as_text:
            raise ConvertError(f"merge {i}: strings and pairs are mixed", path=path)
        pair = row.split(" ") if as_text else row
        if not isinstance(pair, list) or len(pair) != 2:
            raise ConvertError(f"merge {i} is no pair: {str(row)[:80]!r}", path=path)
        left, right = pair
        if not isinstance(left, str) or not isinstance(right, str):
            raise ConvertError(f"merge {i} is no pair: {str(row)[:80]!r}", path=path)
        if left + right not in vocab or left not in vocab or right not in vocab:
            raise ConvertError(
                f"merge {i} makes no token: {left[:60]!r} + {right[:60]!r}", path=path
            )
        if " " in left or " " in right:
            raise ConvertError(f"merge {i} has a space inside a part", path=path)
        made.append((left, right))
    if len(set(made)) != len(made):
        ranks: dict[tuple[str, str], int] = {}
        i = next(i for i, pair in enumerate(made) if ranks.setdefault(pair, i) != i)
        raise ConvertError(f"merges {ranks[made[i]]} and {i} are the same", path=path)
    return made
