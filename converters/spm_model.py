"""`tokenizer.model` of SentencePiece, where there is no tokenizer.json: pieces, scores, kinds.

The file is a protocol buffer. Only the few fields that decide are read, by length and never beyond it;
nothing of the file is run. What engines would do otherwise is refused: another algorithm than BPE, a
normaliser, blanks that are dropped.
Source: `sentencepiece_model.proto` of SentencePiece 0.2 for field numbers and defaults.
"""

from __future__ import annotations

import importlib.util
import math
import struct
from typing import TYPE_CHECKING, Final

from edgellm.errors import ConvertError, MissingExtra, ModelCorrupt
from edgellm.formats.checked_json import read_bounded

from .added_tokens import MAX_TOKENS, read_added
from .blanks import BLANK
from .spm import BYTE_TOKENS
from .vocabulary import TokenKind, Vocabulary, free_ids, index, lay_out

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    Field = int | bytes

MAX_MODEL_BYTES: Final = 64 << 20  # the largest known, of 262,144 pieces, has 4.7 MB
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES: Final = 10
_MAX_FIELDS: Final = 1 << 19  # twice the largest vocabulary: more would take longer than seconds
_MAX_PIECE_FIELDS: Final = 4  # text, score, kind, and one unknown
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_BPE: Final = 2
_ALGORITHMS: Final = {1: "Unigram", 3: "whole words", 4: "characters"}
# Of the trainer: model_type, treat_whitespace_as_suffix, byte_fallback, bos_id.
_MODEL_TYPE, _SUFFIX, _BYTE_FALLBACK, _BOS_ID = 3, 24, 35, 41
# Of the normaliser: name, precompiled_charsmap, add_dummy_prefix, remove_extra_whitespaces, escape.
_NAME, _CHARSMAP, _DUMMY_PREFIX, _REMOVE_EXTRA, _ESCAPE = 1, 2, 3, 4, 5


def read_model_file(folder: Path, n_vocab: int) -> Vocabulary:
    """Make the vocabulary of a checkpoint that has a tokenizer.model alone.

    Args:
        folder: the checkpoint; tokens added later are read from its other files.
        n_vocab: rows of the embedding.

    Raises:
        MissingExtra: `sentencepiece` is not installed; the result could not be proven.
        ConvertError: engines would cut text otherwise; says why.
        ModelCorrupt: the file is larger than `MAX_MODEL_BYTES`, or no such protocol buffer.
    """
    path = folder / "tokenizer.model"
    if importlib.util.find_spec("sentencepiece") is None:
        raise MissingExtra(
            "there is no tokenizer.json, and reading tokenizer.model needs sentencepiece",
            path=path,
            hint="run: pip install 'edgellm[spm]'",
        )
    message = _message(read_bounded(path, max_bytes=MAX_MODEL_BYTES), path)
    trainer, normalizer = (_one(message, field, path) for field in (_TRAINER, _NORMALIZER))
    _check(trainer, normalizer, path)
    pieces, scores, piece_kinds = _pieces(message, path)
    vocab = {text: i for i, text in enumerate(pieces)}
    if len(vocab) != len(pieces):
        index(pieces, path)
    added = read_added({}, folder, vocab)
    texts, kinds = lay_out(vocab, added, n_vocab, path)
    for i, kind in enumerate(piece_kinds):
        if kinds[i] == TokenKind.NORMAL:
            kinds[i] = kind
        if kinds[i] == TokenKind.USER_DEFINED:  # engines look for them before blanks are replaced
            texts[i] = texts[i].replace(BLANK, " ")
    missing = [text for text in BYTE_TOKENS if text not in vocab]
    if missing:
        raise ConvertError(f"{len(missing)} bytes have no token: {missing[0]}", path=path)
    has_prefix = bool(_number(normalizer, _DUMMY_PREFIX, 1))
    bos = _number(trainer, _BOS_ID, 1)
    return Vocabulary(
        model="llama",
        texts=texts,
        kinds=kinds,
        merges=[],
        pre="default",
        scores=scores + [0.0] * (n_vocab - len(scores)),
        prefix="each" if has_prefix else "never",
        post_processor=_begin(pieces[bos] if 0 <= bos < len(pieces) else None),
        ids=index(texts, path),
        warnings=(*free_ids(kinds), *_starts_anew(texts, kinds, has_prefix=has_prefix)),
    )


def _starts_anew(texts: list[str], kinds: list[int], *, has_prefix: bool) -> list[str]:
    token = next(
        (t for t, k in zip(texts, kinds, strict=True) if k == TokenKind.USER_DEFINED), None
    )
    if token is None or not has_prefix:
        return []
    return [f"engines put a blank behind {token[:60]!r} and its like, the tokenizer does not"]


def _begin(bos: str | None) -> object:
    """Say in tokenizer.json's words that a text begins with `bos`, as all such tokenizers do."""
    if bos is None:
        return None
    parts = [{"SpecialToken": {"id": bos}}, {"Sequence": {"id": "A"}}]
    return {"type": "TemplateProcessing", "single": parts}


def _check(
    trainer: Mapping[int, list[Field]], normalizer: Mapping[int, list[Field]], path: Path
) -> None:
    algorithm = _number(trainer, _MODEL_TYPE, 1)
    if algorithm != _BPE:
        name = _ALGORITHMS.get(algorithm, f"number {algorithm}")
        raise ConvertError(f"a SentencePiece model of {name}; only BPE is converted", path=path)
    if not _number(trainer, _BYTE_FALLBACK, 0):
        raise ConvertError(
            "has no byte fallback: engines fail on characters without a token", path=path
        )
    rule = (normalizer.get(_NAME) or [b""])[-1]
    if (normalizer.get(_CHARSMAP) or [b""])[-1] or rule not in (b"", b"identity"):
        raise ConvertError(f"normalizer {str(rule)[:60]} is not done by engines", path=path)
    if _number(normalizer, _REMOVE_EXTRA, 1):
        raise ConvertError("drops extra blanks, which engines do not", path=path)
    if not _number(normalizer, _ESCAPE, 1) or _number(trainer, _SUFFIX, 0):
        raise ConvertError("treats blanks in a way that engines do not", path=path)


def _pieces(
    message: Mapping[int, list[Field]], path: Path
) -> tuple[list[str], list[float], list[int]]:
    rows = message.get(_PIECES) or []
    if not 0 < len(rows) <= MAX_TOKENS:
        raise ConvertError(f"has {len(rows)} pieces", path=path)
    pieces, scores, kinds = [], [], []
    for i, row in enumerate(rows):
        piece = _message(row, path, _MAX_PIECE_FIELDS)
        raw, score = (piece.get(1) or [b""])[-1], (piece.get(2) or [bytes(4)])[-1]
        try:
            text, value = (
                _text(raw),
                struct.unpack("<f", score if isinstance(score, bytes) else b"")[0],
            )
            kinds.append(int(TokenKind(_number(piece, 3, 1))))
        except (UnicodeDecodeError, struct.error, ValueError, TypeError) as err:
            raise ModelCorrupt(f"piece {i} is damaged", path=path) from err
        if not text or not math.isfinite(value):
            raise ModelCorrupt(f"piece {i} is {text[:60]!r} with score {value}", path=path)
        pieces.append(text)
        scores.append(value)
    return pieces, scores, kinds


def _text(value: Field) -> str:
    if not isinstance(value, bytes):
        raise TypeError("a number where a text is expected")
    return value.decode("utf-8")


def _one(message: Mapping[int, list[Field]], field: int, path: Path) -> dict[int, list[Field]]:
    """Return a message inside a message; parts of it that stand apart are read as one."""
    parts = message.get(field) or []
    return _message(b"".join(part for part in parts if isinstance(part, bytes)), path)


def _number(message: Mapping[int, list[Field]], field: int, default: int) -> int:
    value = (message.get(field) or [default])[-1]
    if not isinstance(value, int):
        return default
    return value - (1 << 64) if value >> 63 else value  # a negative int32 takes ten bytes


def _message(data: Field, path: Path, most: int = _MAX_FIELDS) -> dict[int, list[Field]]:
    """Read the fields of one message, `most` in all, by number; each may stand several times."""
    if not isinstance(data, bytes):
        raise ModelCorrupt("not a SentencePiece model", path=path)
    found: dict[int, list[Field]] = {}
    try:
        for n_read, (number, value) in enumerate(_fields(data)):
            if n_read >= most:
                raise ModelCorrupt(f"more than {most} fields in one message", path=path)
            found.setdefault(number, []).append(value)
    except EOFError as err:
        raise ModelCorrupt(f"not a SentencePiece model: {err}", path=path) from err
    return found


def _fields(data: bytes) -> Iterator[tuple[int, Field]]:
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        n_bytes = {_FIXED64: 8, _FIXED32: 4}.get(kind, -1)
        if kind == _BYTES:
            n_bytes, at = _varint(data, at)
        if not 0 <= n_bytes <= len(data) - at:
            raise EOFError(f"a field of kind {kind} and {n_bytes} bytes at byte {at}")
        yield tag >> 3, data[at : at + n_bytes]
        at += n_bytes


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for i in range(_MAX_VARINT_BYTES):
        if at + i >= len(data):
            break
        value |= (data[at + i] & 0x7F) << (7 * i)
        if data[at + i] < 0x80:
            return value & ((1 << 64) - 1), at + i + 1
    raise EOFError(f"a number without an end at byte {at}")
