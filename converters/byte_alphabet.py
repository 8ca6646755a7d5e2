"""A vocabulary of bytes whose blanks stay blanks, in the spelling of byte-level BPE.

Engines replace blanks in every vocabulary over characters. One whose tokens are the 256 bytes and little
else can be spelled in the byte alphabet instead, where a blank is a character like any other. Ids stay.
Source: `bytes_to_unicode` of GPT-2 for the alphabet; `gpt-2` of llama-vocab.cpp 0c1e57098 for a splitter
that cuts between two ASCII letters in one place only, behind a contraction.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from edgellm.errors import ConvertError

from .vocabulary import TokenKind, index

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

SPLITTER: Final = "gpt-2"
_NEVER_CUT: Final = re.compile(
    r"[A-Za-z]*[A-Za-cf-kn-ru-z]\Z"
)  # the end of no 's 't 're 've 'm 'll 'd
_PRINTED: Final = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))


def alphabet() -> list[str]:
    """Return the character of each byte: printed ones stand for themselves, the others from U+0100."""
    made = [""] * 256
    free = 0x100
    for byte in range(256):
        made[byte] = chr(byte if byte in _PRINTED else free)
        free += byte not in _PRINTED
    return made


def as_bytes(
    texts: Sequence[str], kinds: Sequence[int], merges: Iterable[tuple[str, str]], path: Path
) -> tuple[list[str], list[int]]:
    """Spell tokens in the byte alphabet.

    Args:
        texts: of each id; bytes as `<0x20>`.
        kinds: of each id.
        merges: pairs of the tokenizer; their parts are spelled alike in both alphabets.
        path: the file, for messages.

    Raises:
        ConvertError: a token is of characters that are several bytes, or a merge may be cut.
    """
    why = (
        "blanks stay blanks in this tokenizer, and engines replace them unless all tokens are bytes"
    )
    for left, right in merges:
        if not _NEVER_CUT.match(left) or not (right.isascii() and right.isalpha()):
            raise ConvertError(f"{why}: a merge makes {(left + right)[:60]!r}", path=path)
    spelled = alphabet()
    known = {text for text, kind in zip(texts, kinds, strict=True) if kind == TokenKind.NORMAL}
    made, made_kinds = list(texts), list(kinds)
    for i, (text, kind) in enumerate(zip(texts, kinds, strict=True)):
        if kind == TokenKind.BYTE:
            char = spelled[int(text[3:5], 16)]
            # A byte whose character is a token itself is never made from text: it keeps its name.
            if char not in known:
                made[i], made_kinds[i] = char, int(TokenKind.NORMAL)
        elif kind == TokenKind.NORMAL and not all("!" <= char <= "~" for char in text):
            raise ConvertError(f"{why}: token {text[:60]!r}", path=path)
    index(made, path)
    return made, made_kinds
