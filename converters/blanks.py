"""What a tokenizer over characters does with blanks: normalizer, pre-tokenizer and decoder, by structure.

SentencePiece writes a blank as U+2581 and may put one before a text. tokenizer.json says so in several
ways; the ones here are understood, every other part is refused with its JSON.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from edgellm.errors import ConvertError

from .parts import parts_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from .parts import Part

BLANK: Final = "\u2581"
_REPLACE: Final = ("Replace", " ", BLANK)
_PREPEND: Final = ("Prepend", BLANK)
_SPLIT: Final = ("Split", " ", "MergedWithPrevious", False)
# (normalizer, pre-tokenizer) -> prefix. Once blanks are replaced, a split at them cuts nothing.
_KNOWN: Final[dict[tuple[tuple[Part, ...], tuple[Part, ...]], str]] = {
    ((_PREPEND, _REPLACE), ()): "each",
    ((_REPLACE, _PREPEND), ()): "each",
    ((_REPLACE,), ()): "never",
    ((_REPLACE,), (_SPLIT,)): "never",
}
_SCHEMES: Final = {"always": "each_word", "first": "first", "never": "never"}
_DECODERS: Final = frozenset({"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"})


@dataclass(frozen=True, slots=True)
class Blanks:
    """How blanks are treated.

    Attributes:
        escaped: whether they become U+2581.
        prefix: `never`, before `each` stretch between special tokens, `each_word` where a blank
            is not doubled, `first` when only the head of a text gets one.
        cut: whether text is cut before each U+2581.
    """

    escaped: bool
    prefix: str
    cut: bool


def blanks_of(tokenizer: Mapping[str, Any], path: Path) -> Blanks:
    """Read how a tokenizer.json treats blanks.

    Raises:
        ConvertError: a part is not understood; the message shows it.
    """
    normalizer = tuple(parts_of(tokenizer.get("normalizer"), "normalizers"))
    pre = tuple(parts_of(tokenizer.get("pre_tokenizer"), "pretokenizers"))
    decoders = {kind for kind, *_ in parts_of(tokenizer.get("decoder"), "decoders")}
    if not decoders <= _DECODERS:
        raise _refused("decoder", tokenizer, path)
    if not normalizer and not pre:
        return Blanks(escaped=False, prefix="never", cut=False)
    if not normalizer and len(pre) == 1 and pre[0][0] == "Metaspace":
        _, replacement, scheme, cut = pre[0]
        prefix = _SCHEMES.get(scheme)
        if replacement == BLANK and prefix is not None and isinstance(cut, bool):
            return Blanks(escaped=True, prefix=prefix, cut=cut)
    known = {known_normalizer for known_normalizer, _ in _KNOWN}
    if normalizer and normalizer not in known:
        raise _refused("normalizer", tokenizer, path)
    known_prefix = _KNOWN.get((normalizer, pre))
    if known_prefix is None:
        raise _refused("pre_tokenizer", tokenizer, path)
    return Blanks(escaped=True, prefix=known_prefix, cut=False)


def _refused(what: str, tokenizer: Mapping[str, Any], path: Path) -> ConvertError:
    shown = json.dumps(tokenizer.get(what), ensure_ascii=False)
    return ConvertError(f"{what} {shown[:600]} is not done by engines", path=path)
