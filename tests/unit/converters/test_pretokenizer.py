"""Splitters are told apart by structure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgellm.converters.pretokenizer import name_of, warnings_of
from edgellm.converters.splitters import CUT_DIGITS, NAMES, STEADY
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
    assert warnings_of("smollm", []) == []
    assert "single word" in warnings_of("deepseek-coder", [])[0]


LETTERS = [
    f"{a}{b}{c}"
    for a in "abcdefghijklmnopqr"
    for b in "stuvwxyzABCDEFGHIJ"
    for c in "0123456789abcdefg"
]


@pytest.mark.parametrize("name", sorted(NAMES.values()))
def test_which_splitters_cut_digits_one_by_one(name: str) -> None:
    """The table says what each splitter does to a number."""
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split

    def part(kind: str, *fields: Any) -> Any:
        if kind == "split":
            return Split(Regex(fields[0]), "isolated")
        return Digits(fields[0]) if kind == "digits" else ByteLevel(fields[0], use_regex=fields[1])

    parts = next(parts for (parts, _), found in NAMES.items() if found == name)
    pieces = Sequence([part(*row) for row in parts]).pre_tokenize_str("x1234567")
    numbers = [text for text, _ in pieces if text != "x"]
    assert (numbers == list("1234567")) is (name in CUT_DIGITS)


@pytest.mark.parametrize(
    ("name", "texts", "is_flagged"),
    [
        ("gpt-2", LETTERS, True),
        ("llama-bpe", LETTERS, True),
        ("smollm", LETTERS, False),
        ("qwen2", LETTERS, False),
        ("gpt-2", [*LETTERS, "10"], False),
        ("gpt-2", LETTERS[:4999], False),
    ],
)
def test_a_vocabulary_without_numbers_wants_digits_cut(
    name: str, texts: list[str], is_flagged: bool
) -> None:
    """Thousands of tokens, none of two digits, and a splitter that leaves numbers whole: a loss."""
    warnings = warnings_of(name, texts)
    assert any("lost its digit splitting" in text for text in warnings) is is_flagged
