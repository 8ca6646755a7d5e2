"""A checkpoint's tokens as its own files list them, read with no converter in between.

What a written file may call a token, and what may be left out of a comparison, follows from these, never
from the written file alone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from edgellm.converters.byte_alphabet import alphabet

if TYPE_CHECKING:
    from pathlib import Path

BLANK: Final = "\u2581"
_BYTE_LEVEL: Final = "ByteLevel"
_BYTE_OF: Final = {char: byte for byte, char in enumerate(alphabet())}


@dataclass(frozen=True, slots=True)
class SourceTokens:
    """What the files say.

    Attributes:
        trained: the text of each id of the trained vocabulary.
        added: the text of each added token, by id.
        special: ids of those that are called special, and of SentencePiece's control pieces.
        unknown: the text of the token for what has none, or None.
        is_byte_level: whether texts are spelled in the byte alphabet.
        has_bytes: whether `<0x20>` and the like stand for bytes.
        is_pieces: whether they come from SentencePiece, which does not tell its added pieces apart.
        merges: pairs by rank; none from SentencePiece.
    """

    trained: dict[int, str]
    added: dict[int, str] = field(default_factory=dict)
    special: frozenset[int] = frozenset()
    unknown: str | None = None
    is_byte_level: bool = False
    has_bytes: bool = False
    is_pieces: bool = False
    merges: tuple[tuple[str, str], ...] = ()

    def text(self, i: int) -> str | None:
        """Return how an id is written, None of one without a token."""
        return self.added.get(i, self.trained.get(i))

    def read(self, spelled: str) -> str:
        """Return the characters that a trained token stands for; bytes that make none are left out."""
        if not self.is_byte_level:
            return spelled.replace(BLANK, " ")
        data = bytes(_BYTE_OF[char] for char in spelled if char in _BYTE_OF)
        return data.decode("utf-8", "ignore")

    def find(self, text: object) -> int | None:
        """Return the id of a text, or None."""
        for rows in (self.added, self.trained):
            found = next((i for i, known in rows.items() if known == text), None)
            if found is not None:
                return found
        return None


def read_source_tokens(folder: Path) -> SourceTokens:
    """Read tokenizer.json, or tokenizer.model where there is none, and the older lists of added tokens."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        return _from_sentencepiece(folder)
    value = json.loads(path.read_bytes())
    model = value["model"]
    trained = {i: text for text, i in model["vocab"].items()}
    added, special = _added(folder, value.get("added_tokens") or [], trained)
    parts = (value.get("decoder"), value.get("pre_tokenizer"))
    return SourceTokens(
        trained=trained,
        added=added,
        special=special,
        unknown=model.get("unk_token"),
        is_byte_level=any(_is_byte_level(part) for part in parts),
        has_bytes=bool(model.get("byte_fallback")),
        merges=tuple(map(_pair, model["merges"])),
    )


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object, an empty one where there is no file."""
    value = json.loads(path.read_bytes()) if path.is_file() else {}
    return value if isinstance(value, dict) else {}


def _pair(row: Any) -> tuple[str, str]:
    left, right = row.split(" ") if isinstance(row, str) else row
    return left, right


def _is_byte_level(part: Any) -> bool:
    if not isinstance(part, dict):
        return False
    inner = part.get("pretokenizers") or ()
    return part.get("type") == _BYTE_LEVEL or any(map(_is_byte_level, inner))


def _added(
    folder: Path, rows: list[dict[str, Any]], trained: dict[int, str]
) -> tuple[dict[int, str], frozenset[int]]:
    """Return the texts of added tokens, and which are special; the first file that names one decides."""
    decoder = read_json(folder / "tokenizer_config.json").get("added_tokens_decoder") or {}
    listed = [(row["id"], row) for row in rows]
    listed += [(int(key), row) for key, row in decoder.items()]
    plain = read_json(folder / "added_tokens.json").items()
    listed += [(i, {"content": text}) for text, i in plain if trained.get(i) != text]
    added: dict[int, str] = {}
    special: set[int] = set()
    for i, row in listed:
        if i not in added:
            added[i] = row["content"]
            special |= {i} if row.get("special") else set()
    return added, frozenset(special)


def _from_sentencepiece(folder: Path) -> SourceTokens:
    from sentencepiece import SentencePieceProcessor

    processor = SentencePieceProcessor(model_proto=(folder / "tokenizer.model").read_bytes())
    ids = range(processor.get_piece_size())
    trained = {i: str(processor.id_to_piece(i)) for i in ids if not processor.is_unused(i)}
    added, special = _added(folder, [], trained)
    control = {i for i in ids if processor.is_control(i) and i not in added}
    unknown = int(processor.unk_id())
    return SourceTokens(
        trained=trained,
        added=added,
        special=special | control,
        unknown=trained.get(unknown),
        has_bytes=True,
        is_pieces=True,
    )
