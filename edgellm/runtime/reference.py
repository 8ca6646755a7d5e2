"""The tokenizer a conversion started from, as its own library runs it.

What engines are known not to do (and the converter has warned of) is not compared: `comparable` says
which texts show nothing else.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from edgellm.engines.llamacpp.vocabulary import Vocabulary

_BLANKS = (" ", "\u2581")


class Reference(Protocol):
    """A source's tokenizer.

    Attributes:
        added: the text of each added token to its id.
        lead: what every compared text must begin with, or "".
        reads_control: whether it reads control tokens in a text at all.
    """

    added: dict[str, int]
    lead: str
    reads_control: bool

    def encode(self, text: str, *, special: bool, around: bool) -> list[int]:
        """Return ids; `special` reads control tokens, `around` adds what begins and ends a text."""

    def comparable(self, text: str, *, special: bool) -> bool:
        """Return whether an engine should give the same ids."""


def open_reference(
    source: Path,
    *,
    prefixed: bool,
    control: Collection[str] = frozenset(),
    found_first: Collection[str] = (),
) -> Reference:
    """Return the tokenizer of a checkpoint folder, or of a GGUF file.

    Args:
        source: the folder or the file.
        prefixed: whether the engine puts a blank before a text.
        found_first: texts that the engine takes for tokens before it cuts the others.
        control: texts that the engine reads as control tokens, and never from plain text; held
            against the source before (`compare_kinds`), for nothing they are in is compared.
    """
    if not source.is_dir():
        return GgufReference(source)
    if (source / "tokenizer.json").is_file():
        return HuggingFaceReference(source, prefixed=prefixed, control=control)
    return SentencePieceReference(source, found_first if prefixed else ())


class HuggingFaceReference:
    """tokenizer.json, run by the `tokenizers` library."""

    reads_control = True

    def __init__(self, folder: Path, *, prefixed: bool, control: Collection[str]) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        rows = self._tokenizer.get_added_tokens_decoder()
        self.added = {token.content: i for i, token in rows.items()}
        self._special = {token.content for token in rows.values() if token.special}
        self._odd = tuple(token.content for token in rows.values() if self._is_odd(token))
        # Engines make control tokens of some texts, and ordinary ones of others, whatever the
        # source calls them.
        promoted = set(control) - self._special
        self._promoted = {
            True: tuple(promoted - set(self.added)),
            False: (*promoted, *(self._special - set(control))),
        }
        scheme = _metaspace(self._tokenizer.pre_tokenizer)
        # Without a blank anywhere the engine is right behind special tokens, where chats are.
        behind = scheme == "first" and not prefixed
        self.lead = (
            next((text for text in self.added if text in self._special), "") if behind else ""
        )
        self._scheme = "never" if self.lead else scheme

    def _is_odd(self, token: Any) -> bool:
        if token.lstrip or token.rstrip or token.single_word:
            return True
        normalizer = self._tokenizer.normalizer
        if not token.normalized or normalizer is None:
            return False
        return bool(normalizer.normalize_str(token.content) != token.content)

    def encode(self, text: str, *, special: bool, around: bool) -> list[int]:
        """Return the library's ids."""
        self._tokenizer.encode_special_tokens = not special
        return list(self._tokenizer.encode(text, add_special_tokens=around).ids)

    def comparable(self, text: str, *, special: bool) -> bool:
        """Leave out composed characters, added tokens that take blanks, and blanks before a text."""
        if any(token in text for token in self._odd):
            return False
        if any(token in text for token in self._promoted[special]):
            return False
        if self.lead and not (special and text.startswith(self.lead)):
            return False
        composed = _composed(self._tokenizer, text)
        if composed is not None and composed != text:
            return False
        if self._scheme in ("", "never"):
            return True
        stretches = self._stretches(text, special=special)
        if any(stretch.startswith(_BLANKS) for stretch in stretches):
            return False
        return self._scheme == "always" or stretches == [text]

    def _stretches(self, text: str, *, special: bool) -> list[str]:
        """Return what stands between the added tokens of a text."""
        for token in sorted(self.added, key=len, reverse=True):
            if special or token not in self._special:
                text = text.replace(token, "\0")
        return [stretch for stretch in text.split("\0") if stretch]


def _metaspace(pre_tokenizer: Any) -> str:
    """Return when a Metaspace pre-tokenizer puts a blank before a text, or "" without one."""
    value = {} if pre_tokenizer is None else json.loads(pre_tokenizer.__getstate__())
    return str(value.get("prepend_scheme", "")) if value.get("type") == "Metaspace" else ""


def _composed(tokenizer: Any, text: str) -> str | None:
    normalizer = tokenizer.normalizer
    if normalizer is None or "NFC" not in repr(normalizer):
        return None
    return str(normalizer.normalize_str(text))


class SentencePieceReference:
    """tokenizer.model, run by the `sentencepiece` library."""

    reads_control = False

    def __init__(self, folder: Path, starts_anew: Collection[str]) -> None:
        from sentencepiece import SentencePieceProcessor

        data = (folder / "tokenizer.model").read_bytes()
        self._processor = SentencePieceProcessor(model_proto=data)
        self._starts_anew = tuple(starts_anew)  # the engine puts a blank behind them
        self.added: dict[str, int] = {}
        self.lead = ""

    def encode(self, text: str, *, special: bool, around: bool) -> list[int]:
        """Return the library's ids; it never reads control tokens in text."""
        del special
        ids = [int(i) for i in self._processor.encode(text)]
        begin = int(self._processor.bos_id())
        return [begin, *ids] if around and begin >= 0 else ids

    def comparable(self, text: str, *, special: bool) -> bool:
        """Leave out control tokens, and U+2581, which the library takes for a blank."""
        return (
            not special
            and _BLANKS[1] not in text
            and not any(token in text for token in self._starts_anew)
        )


class GgufReference:
    """Another GGUF, run by the engine itself."""

    reads_control = True

    def __init__(self, path: Path) -> None:
        from edgellm.engines.llamacpp.vocab_only import VocabOnly

        self._holder = VocabOnly(path)
        self.vocabulary: Vocabulary = self._holder.vocabulary
        self.added: dict[str, int] = {}
        self.lead = ""

    def encode(self, text: str, *, special: bool, around: bool) -> list[int]:
        """Return the engine's ids."""
        return self.vocabulary.tokenize(text, special=special, add_bos=around)

    def comparable(self, text: str, *, special: bool) -> bool:
        """Leave nothing out."""
        del text, special
        return True
