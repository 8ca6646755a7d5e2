"""Splitters are told apart by structure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgellm.converters.pretokenizer import name_of, warnings_of
from edgellm.converters.splitters import NAMES, STEADY
from edgellm.errors import ConvertError

PATH = Path("tokenizer.json")
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
DIGITS = {"type": "Digits", "individual_digits": True}


def sequence(*parts: Any) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(parts)}


def test_the_digits_part_is_what_makes_smollm() -> None:
    """Digits before the usual rule is another splitter than the rule alone."""
    assert name_of(sequence(DIGITS, BYTES), PATH, ignore_merges=False) == "smollm"
    assert name_of(BYTES, PATH, ignore_merges=False) == "gpt-2"
    assert name_of(sequence(BYTES), PATH, ignore_merges=False) == "gpt-2"


def test_ignore_merges_is_part_of_the_rule() -> None:
    """The same regex has two names, because whole words may skip the merges."""
    llama3 = next(parts for (parts, _), name in NAMES.items() if name == "llama-bpe")
    split = {
        "type": "Split",
        "pattern": {"Regex": llama3[0][1]},
        "behavior": "Isolated",
        "invert": False,
    }
    value = sequence(split, BYTES | {"use_regex": False})
    assert name_of(value, PATH, ignore_merges=True) == "llama-bpe"
    assert name_of(value, PATH, ignore_merges=False) == "dbrx"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "no pre_tokenizer"),
        (BYTES | {"add_prefix_space": True}, "add_prefix_space"),
        (sequence({"type": "Digits", "individual_digits": False}, BYTES), "no engine splits"),
        (sequence({"type": "Metaspace"}, BYTES), "Metaspace"),
        (sequence({"type": "Split", "pattern": {"Regex": "x+"}}, BYTES), r"x\+"),
        ({"type": "Sequence"}, "without its parts"),
        (sequence(*[BYTES] * 40), "without its parts"),
        (17, "17"),
    ],
)
def test_a_look_alike_is_refused_and_shown(value: Any, message: str) -> None:
    """What has no name is an error that prints the splitter and the known names."""
    with pytest.raises(ConvertError, match=message):
        name_of(value, PATH, ignore_merges=False)


def test_splitters_that_long_words_break_are_told() -> None:
    """The usual ones have code of their own in the engine; the others come with a warning."""
    assert {"llama-bpe", "gpt-2", "qwen2", "smollm"} <= STEADY <= set(NAMES.values())
    assert warnings_of("smollm") == []
    assert "single word" in warnings_of("deepseek-coder")[0]
