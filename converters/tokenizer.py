"""`tokenizer.json` -> the vocabulary of a GGUF: texts, kinds, merges, and the splitter's name.

Only byte-level BPE. Ids never shift: what the file leaves free becomes an unused token, what it
claims twice is an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from edgellm.errors import ConvertError
from edgellm.formats.checked_json import read_json_object

from .added_tokens import MAX_TOKENS, read_added
from .pretokenizer import name_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from .added_tokens import AddedToken
    from .recipe import KeyValues

MAX_TOKEN_BYTES = 1 << 16


class TokenKind(IntEnum):
    """`tokenizer.ggml.token_type`, as llama.cpp numbers it."""

    NORMAL = 1
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A byte-level BPE vocabulary, one entry per row of the embedding.

    Attributes:
        texts: what each id stands for; ordinary tokens in the byte alphabet, added ones as they are.
        kinds: a `TokenKind` for each id.
        merges: pairs joined by a space, most frequent first.
        pre: llama.cpp's name of the splitter.
        post_processor: the JSON value that says what is put around a text.
        ids: text to id.
        warnings: what the user should know.
    """

    texts: list[str]
    kinds: list[int]
    merges: list[str]
    pre: str
    post_processor: Any
    ids: Mapping[str, int]
    warnings: tuple[str, ...]

    def key_values(self) -> KeyValues:
        """Return the vocabulary's `tokenizer.ggml` metadata, in file order."""
        return {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": self.pre,
            "tokenizer.ggml.tokens": self.texts,
            "tokenizer.ggml.token_type": self.kinds,
            "tokenizer.ggml.merges": self.merges,
        }


def read_vocabulary(folder: Path, n_vocab: int) -> Vocabulary:
    """Read and check `tokenizer.json` of a checkpoint folder.

    Args:
        folder: the checkpoint.
        n_vocab: rows of the embedding; ids beyond the tokenizer's become unused tokens.

    Raises:
        ConvertError: the tokenizer is of another kind, contradicts itself, or exceeds `n_vocab`.
        ModelCorrupt: the file is no JSON object.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ConvertError(
            "no tokenizer: looked for tokenizer.json",
            path=folder,
            hint="copy the tokenizer's files from the original model",
        )
    value = read_json_object(path)
    model = _model(value, path)
    vocab = _vocab(model, path)
    added = read_added(value, folder, vocab)
    merges = _merges(model, vocab, path)
    pre = name_of(value.get("pre_tokenizer"), path, ignore_merges=bool(model.get("ignore_merges")))
    warnings = _normalizer(value, path)
    odd = next((token.text for token in added.values() if token.is_odd), None)
    if odd is not None:
        warnings.append(
            f"added token {odd[:60]!r} takes blanks or whole words only; engines do not"
        )
    texts, kinds = _lay_out(vocab, added, n_vocab, path)
    n_free = kinds.count(TokenKind.UNUSED)
    if n_free:
        warnings.append(f"{n_free} ids have no token in tokenizer.json; they become unused tokens")
    ids = {text: i for i, text in enumerate(texts)}
    if len(ids) != n_vocab:
        twice = next(text for i, text in enumerate(texts) if ids[text] != i)
        raise ConvertError(f"two ids stand for {twice[:80]!r}", path=path)
    post = value.get("post_processor")
    return Vocabulary(texts, kinds, merges, pre, post, ids, tuple(warnings))


def _model(value: dict[str, Any], path: Path) -> dict[str, Any]:
    model = value.get("model")
    kind = model.get("type", "BPE") if isinstance(model, dict) else None
    if not isinstance(model, dict) or kind != "BPE":
        shown = "no model" if model is None else f"a model of type {str(kind)[:40]!r}"
        raise ConvertError(f"{shown}; only byte-level BPE is converted", path=path)
    for key in ("continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"):
        if model.get(key):
            raise ConvertError(
                f"model.{key} is {str(model[key])[:60]!r}; only byte-level BPE is converted",
                path=path,
            )
    if not isinstance(model.get("ignore_merges"), (bool, type(None))):
        shown = str(model["ignore_merges"])[:60]
        raise ConvertError(f"model.ignore_merges is {shown!r}", path=path)
    decoder = value.get("decoder")
    if not isinstance(decoder, dict) or decoder.get("type") != "ByteLevel":
        raise ConvertError(
            "the decoder is not ByteLevel; only byte-level BPE is converted", path=path
        )
    return model


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


def _merges(model: dict[str, Any], vocab: Mapping[str, int], path: Path) -> list[str]:
    """Return merges as "a b", from either spelling; each must make a token of two tokens."""
    rows = model.get("merges")
    if not isinstance(rows, list) or len(rows) > MAX_TOKENS:
        raise ConvertError("model.merges is no list", path=path)
    as_text = bool(rows) and isinstance(rows[0], str)
    made: list[str] = []
    for i, row in enumerate(rows):
        if isinstance(row, str) is not as_text:
            raise ConvertError(f"merge {i}: strings and pairs are mixed", path=path)
        pair = row.split(" ") if as_text else row
        if not isinstance(pair, list) or len(pair) != 2 or not all(type(p) is str for p in pair):
            raise ConvertError(f"merge {i} is no pair: {str(row)[:80]!r}", path=path)
        left, right = pair
        if left + right not in vocab or left not in vocab or right not in vocab:
            raise ConvertError(
                f"merge {i} makes no token: {left[:60]!r} + {right[:60]!r}", path=path
            )
        if " " in left or " " in right:
            raise ConvertError(f"merge {i} has a space inside a part", path=path)
        made.append(f"{left} {right}")
    return made


def _normalizer(value: dict[str, Any], path: Path) -> list[str]:
    """Engines do not normalise: NFC changes only unusual text, anything else is refused."""
    normalizer = value.get("normalizer")
    kind = normalizer.get("type") if isinstance(normalizer, dict) else normalizer
    if normalizer is None or (kind == "Sequence" and not normalizer.get("normalizers")):
        return []
    if kind == "NFC":
        return ["the tokenizer composes text (NFC), engines do not: decomposed text differs"]
    raise ConvertError(f"normalizer {str(normalizer)[:120]} is not done by engines", path=path)


def _lay_out(
    vocab: dict[str, int], added: Mapping[int, AddedToken], n_vocab: int, path: Path
) -> tuple[list[str], list[int]]:
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
    longest = max(texts, key=len)
    if len(longest.encode("utf-8", "replace")) > MAX_TOKEN_BYTES:
        raise ConvertError(f"a token of {len(longest)} characters", path=path)
    return texts, kinds
