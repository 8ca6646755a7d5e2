"""Which of llama.cpp's named text splitters a tokenizer.json means, told from its structure.

The parts of `pre_tokenizer` are compared whole, regexes included. A look-alike is not good enough:
one other token in a thousand costs quality that nobody can see.
Source of the names and their rules: `llm_tokenizer_bpe` and `impl::load`, llama-vocab.cpp 0c1e57098.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from edgellm.errors import ConvertError

if TYPE_CHECKING:
    from pathlib import Path

    Part = tuple[Any, ...]

_MAX_PARTS: Final = 16
_CONTRACTIONS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
_WORDS: Final = r"[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST: Final = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _split(regex: str) -> Part:
    return ("split", regex, "Isolated", False)


def _byte_level(*, use_regex: bool) -> Part:
    return ("bytes", False, use_regex)


_LLAMA3: Final = (
    _split(_CONTRACTIONS + _WORDS + r"\p{N}{1,3}" + _REST),
    _byte_level(use_regex=False),
)
_QWEN2: Final = (_split(_CONTRACTIONS + _WORDS + r"\p{N}" + _REST), _byte_level(use_regex=False))
_GPT2: Final = (_byte_level(use_regex=True),)
_DIGITS_GPT2: Final = (("digits", True), _byte_level(use_regex=True))
_DEEPSEEK_CODER: Final = (
    _split("[\r\n]"),
    _split(r"\s?\p{L}+"),
    _split(r"\s?\p{P}+"),
    _split("[一-龥ࠀ-一가-퟿]+"),
    ("digits", True),
    _byte_level(use_regex=False),
)

# (parts, ignore_merges) -> name. With `ignore_merges` a word that is a token is never cut.
NAMES: Final[dict[tuple[tuple[Part, ...], bool], str]] = {
    (_LLAMA3, True): "llama-bpe",
    (_LLAMA3, False): "dbrx",
    (_QWEN2, False): "qwen2",
    (_GPT2, False): "gpt-2",
    (_DIGITS_GPT2, False): "smollm",
    (_DEEPSEEK_CODER, False): "deepseek-coder",
}


def name_of(value: Any, path: Path, *, ignore_merges: bool) -> str:
    """Return llama.cpp's name for a `pre_tokenizer` of tokenizer.json.

    Args:
        value: the JSON value.
        path: the file, for messages.
        ignore_merges: the flag of the BPE model, which is part of the rule.

    Raises:
        ConvertError: no name means exactly this; the message shows what it is.
    """
    parts = tuple(_parts(value, path))
    name = NAMES.get((parts, ignore_merges))
    if name is None:
        shown = json.dumps(value, ensure_ascii=False)
        raise ConvertError(
            f"no engine splits text as this tokenizer does: {shown[:600]}"
            + (", ignore_merges" if ignore_merges else ""),
            path=path,
            hint=f"known splitters: {', '.join(NAMES.values())}",
        )
    return name


def _parts(value: Any, path: Path) -> list[Part]:
    """Return a pre-tokenizer as comparable tuples; sequences are laid out flat."""
    if value is None:
        raise ConvertError("has no pre_tokenizer; only byte-level BPE is converted", path=path)
    if isinstance(value, dict) and value.get("type") == "Sequence":
        inner = value.get("pretokenizers")
        if not isinstance(inner, list) or len(inner) > _MAX_PARTS:
            raise ConvertError("pre_tokenizer: a Sequence without its parts", path=path)
        return [part for item in inner for part in _parts(item, path)]
    return [_part(value, path)]


def _part(value: Any, path: Path) -> Part:
    kind = value.get("type") if isinstance(value, dict) else None

    def field(key: str, default: bool | str) -> bool | str:
        found = value.get(key, default)
        if type(found) is not type(default):  # 0 would pass for false, a list cannot be looked up
            shown = str(found)[:60]
            raise ConvertError(f"pre_tokenizer: {kind}.{key} is {shown!r}", path=path)
        return found

    if kind == "ByteLevel":
        return ("bytes", field("add_prefix_space", True), field("use_regex", True))
    if kind == "Digits":
        return ("digits", field("individual_digits", False))
    if kind == "Split":
        pattern = value.get("pattern")
        regex = pattern.get("Regex") if isinstance(pattern, dict) else None
        if isinstance(regex, str):
            return ("split", regex, field("behavior", ""), field("invert", False))
    return ("unknown", json.dumps(value, sort_keys=True))
