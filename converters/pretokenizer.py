"""Which of llama.cpp's named text splitters a tokenizer.json means, told from its structure.

The parts of `pre_tokenizer` are compared whole, regexes included. A look-alike is not good enough:
one other token in a thousand costs quality that nobody can see. The table is in `splitters.py`.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from edgellm.errors import ConvertError

from .parts import leaves
from .splitters import CUT_DIGITS, NAMES, STEADY

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from .parts import Part

_TWO_DIGITS: Final = re.compile("[0-9][0-9]")
_MIN_TELLING_TOKENS: Final = 5_000  # fewer may have met no number often enough


def name_of(value: Any, path: Path, *, ignore_merges: bool) -> str:
    """Return llama.cpp's name for a `pre_tokenizer` of tokenizer.json.

    Args:
        value: the JSON value.
        path: the file, for messages.
        ignore_merges: the flag of the BPE model, which is part of the rule.

    Raises:
        ConvertError: no name means exactly this; the message shows what it is.
    """
    if value is None:
        raise ConvertError("has no pre_tokenizer; only byte-level BPE is converted", path=path)
    parts = tuple(_part(leaf, path) for leaf in leaves(value, "pretokenizers"))
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


def warnings_of(name: str, texts: Collection[str]) -> list[str]:
    """Return what the user should know of a splitter.

    Args:
        name: what `name_of` gave.
        texts: the vocabulary, in the byte alphabet and without added tokens.
    """
    warnings = []
    if name not in STEADY:
        warnings.append(
            f"llama.cpp's splitter {name!r} ends the process of other programs on a single word of "
            "tens of thousands of characters; edgellm splits or refuses it"
        )
    is_large = len(texts) >= _MIN_TELLING_TOKENS
    if is_large and name not in CUT_DIGITS and not any(map(_TWO_DIGITS.search, texts)):
        warnings.append(
            f"the pre-tokenizer ({name}) seems to have lost its digit splitting: none of the "
            f"{len(texts)} tokens joins two digits, so the model was trained on digits one by one, "
            "and numbers would be split differently; some programs that write tokenizer.json from "
            'a GGUF drop {"type": "Digits", "individual_digits": true}: put it back in front of '
            "the pre_tokenizer, or take the original model's tokenizer.json"
        )
    return warnings


def _part(value: Any, path: Path) -> Part:
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "Sequence":
        raise ConvertError("pre_tokenizer: a Sequence without its parts", path=path)

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
