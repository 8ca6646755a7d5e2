"""Tokens beyond the trained vocabulary, from the three files that may name them.

tokenizer.json is the truth. `added_tokens_decoder` of tokenizer_config.json and added_tokens.json (both
older) may repeat it and add to it, and may not contradict it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from edgellm.errors import ConvertError
from edgellm.formats.checked_json import read_json_object

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MAX_TOKENS: Final = 1 << 22
_MAX_ID_DIGITS: Final = 10


@dataclass(frozen=True, slots=True)
class AddedToken:
    """One added token: `is_odd` when it takes the blanks beside it or matches whole words only."""

    text: str
    special: bool
    is_odd: bool


def read_added(
    tokenizer: Mapping[str, Any], folder: Path, vocab: Mapping[str, int]
) -> dict[int, AddedToken]:
    """Return the added tokens of a checkpoint by id.

    Args:
        tokenizer: the content of tokenizer.json.
        folder: the checkpoint.
        vocab: the trained vocabulary; a plain repeat of one of its tokens adds nothing.

    Raises:
        ConvertError: a row is no token, or one id has two texts; names the file.
        ModelCorrupt: a file is no JSON object.
    """
    path = folder / "tokenizer.json"
    rows = tokenizer.get("added_tokens") or []
    if not isinstance(rows, list):
        raise ConvertError("added_tokens is no list", path=path)
    added: dict[int, AddedToken] = {}
    for row in rows:
        i = row.get("id") if isinstance(row, dict) else None
        _add(added, i, row, path)
    path = folder / "tokenizer_config.json"
    decoder = read_json_object(path).get("added_tokens_decoder") if path.is_file() else None
    if not isinstance(decoder, (dict, type(None))):
        raise ConvertError("added_tokens_decoder is no object", path=path)
    for key, row in (decoder or {}).items():
        is_id = key.isascii() and key.isdecimal() and len(key) <= _MAX_ID_DIGITS
        _add(added, int(key) if is_id else key, row, path)
    path = folder / "added_tokens.json"
    for text, i in (read_json_object(path) if path.is_file() else {}).items():
        if type(i) is not int or i in added or vocab.get(text) != i:
            _add(added, i, {"content": text}, path)
    return added


def _add(added: dict[int, AddedToken], i: Any, row: Any, path: Path) -> None:
    text = row.get("content") if isinstance(row, dict) else None
    if type(i) is not int or not 0 <= i < MAX_TOKENS or not isinstance(text, str) or not text:
        raise ConvertError(f"an added token is {str(row)[:120]} with id {str(i)[:40]}", path=path)
    odd = any(row.get(flag) for flag in ("lstrip", "rstrip", "single_word"))
    made = AddedToken(text, bool(row.get("special")), odd)
    known = added.setdefault(i, made)
    if known.text != text:
        raise ConvertError(
            f"added id {i} is {text[:80]!r} here and {known.text[:80]!r} elsewhere", path=path
        )


def odd_ones(added: Mapping[int, AddedToken]) -> list[str]:
    """Return a warning if engines look for an added token otherwise than its tokenizer does."""
    odd = next((token.text for token in added.values() if token.is_odd), None)
    if odd is None:
        return []
    return [f"added token {odd[:60]!r} takes blanks or whole words only; engines do not"]
