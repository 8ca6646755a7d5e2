"""Tokenizers over characters: what the engine joins as they do, and what is refused."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest

from edgellm.converters.tokenizer import read_vocabulary
from edgellm.converters.vocabulary import TokenKind
from edgellm.errors import ConvertError, EdgeLLMError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from edgellm.converters.vocabulary import Vocabulary

    Read = Callable[[dict[str, Any]], Vocabulary]

BLANK = "\u2581"
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": BLANK}
PREPEND = {"type": "Prepend", "prepend": BLANK}
N_VOCAB = 300


def metaspace(scheme: str, *, split: bool = False) -> dict[str, Any]:
    return {"type": "Metaspace", "replacement": BLANK, "prepend_scheme": scheme, "split": split}


def tokenizer(*tokens: str, merges: list[list[str]], **parts: Any) -> dict[str, Any]:
    """Give a tokenizer.json with the special tokens, the bytes, and `tokens` behind them."""
    head = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {
        "added_tokens": [
            {"id": i, "content": text, "special": True, **flags} for i, text in enumerate(head[:3])
        ],
        "normalizer": REPLACE,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "byte_fallback": True,
            "vocab": {text: i for i, text in enumerate([*head, *tokens])},
            "merges": merges,
        },
    } | parts


WHOLE = ("a", "b", "c", BLANK, "ab", "bc", "abc", BLANK + "a")
MERGES = [["a", "b"], ["b", "c"], ["ab", "c"], ["a", "bc"], [BLANK, "a"]]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Read a vocabulary from a tokenizer.json."""

    def vocabulary(value: dict[str, Any]) -> Vocabulary:
        (tmp_path / "tokenizer.json").write_text(json.dumps(value), encoding="utf-8")
        return read_vocabulary(tmp_path, N_VOCAB)

    return vocabulary


def test_ranks_become_scores(read: Read) -> None:
    """Where every join has a merge, the place of its merges is a token's score."""
    vocabulary = read(tokenizer(*WHOLE, merges=MERGES))
    assert (vocabulary.model, vocabulary.pre, vocabulary.merges) == ("llama", "default", [])
    scores = [vocabulary.scores[vocabulary.ids[text]] for text in ("ab", "bc", "abc", BLANK + "a")]
    assert scores == [0.0, -1.0, -2.0, -3.0]
    assert vocabulary.scores[vocabulary.ids["a"]] < -3.0
    values = vocabulary.key_values()
    assert values["tokenizer.ggml.add_space_prefix"] is False
    assert "tokenizer.ggml.merges" not in values


def test_kinds(read: Read) -> None:
    """Bytes, the unknown token, control tokens, ordinary ones and free ids are told apart."""
    vocabulary = read(tokenizer(*WHOLE, merges=MERGES))
    kinds = [vocabulary.kinds[vocabulary.ids[text]] for text in ("<0x41>", "<unk>", "</s>", "ab")]
    assert kinds == [TokenKind.BYTE, TokenKind.UNKNOWN, TokenKind.CONTROL, TokenKind.NORMAL]
    assert vocabulary.kinds[-1] == TokenKind.UNUSED


@pytest.mark.parametrize(
    ("parts", "prefix", "warning"),
    [
        ({}, "never", ""),
        ({"normalizer": {"type": "Sequence", "normalizers": [PREPEND, REPLACE]}}, "each", ""),
        ({"normalizer": {"type": "Sequence", "normalizers": [REPLACE, PREPEND]}}, "each", ""),
        ({"normalizer": None, "pre_tokenizer": metaspace("never")}, "never", ""),
        ({"normalizer": None, "pre_tokenizer": metaspace("always")}, "each", "begins with one"),
        ({"normalizer": None, "pre_tokenizer": metaspace("first")}, "first", "the head of a text"),
        (
            {
                "pre_tokenizer": {
                    "type": "Split",
                    "pattern": {"String": " "},
                    "behavior": "MergedWithPrevious",
                    "invert": False,
                }
            },
            "never",
            "",
        ),
    ],
)
def test_where_a_blank_goes_before_a_text(
    read: Read, parts: dict[str, Any], prefix: str, warning: str
) -> None:
    """Each spelling is understood, and what the engine does otherwise is said."""
    vocabulary = read(tokenizer(*WHOLE, merges=MERGES) | parts)
    assert vocabulary.prefix == prefix
    assert warning in " ".join(vocabulary.warnings)
    assert bool(warning) is any("blank" in text for text in vocabulary.warnings)


@pytest.mark.parametrize(
    ("merges", "tokens"),
    [
        ([["a", "b"], ["ab", "c"]], ("a", "b", "c", "ab", "bc", "abc")),  # "b" + "c" has no merge
        ([["a", "b"], ["b", "c"], ["ab", "c"]], ("a", "b", "c", "ab", "bc", "abc")),
        (
            [["a", "b"], ["b", "c"], ["ab", "c"], ["b", "b"], ["a", "bc"]],
            ("a", "b", "c", "ab", "bc", "bb", "abc"),  # the merges of "abc" stand apart
        ),
    ],
)
def test_what_scores_cannot_say_is_joined_by_rank(
    read: Read, merges: list[list[str]], tokens: tuple[str, ...]
) -> None:
    """A vocabulary that joins by rank, if no blank goes before a text; else a refusal with the pair."""
    value = tokenizer(*tokens, merges=merges)
    vocabulary = read(value)
    assert (vocabulary.model, vocabulary.pre) == ("gpt2", "sarvam-moe")
    assert vocabulary.merges == [" ".join(pair) for pair in merges]
    value["normalizer"] = {"type": "Sequence", "normalizers": [PREPEND, REPLACE]}
    with pytest.raises(ConvertError, match="a blank goes before a text"):
        read(value)


def test_a_text_that_is_cut_at_blanks_has_no_blank_inside_a_token(read: Read) -> None:
    """Merges over a cut never apply: they are left out, and the rest is joined by rank."""
    value = tokenizer(*WHOLE, BLANK * 2, merges=[*MERGES, [BLANK, BLANK]], normalizer=None)
    assert read(value | {"pre_tokenizer": metaspace("never")}).model == "llama"
    vocabulary = read(value | {"pre_tokenizer": metaspace("never", split=True)})
    assert vocabulary.model == "gpt2"
    assert f"{BLANK} {BLANK}" not in vocabulary.merges


def test_merges_that_join_newlines_to_text_are_refused(read: Read) -> None:
    """The engine that joins by rank cuts at newlines."""
    value = tokenizer("a", "\n", "\na", "b", "\nab", merges=[["\n", "a"]])
    value["model"]["vocab"]["ab"] = len(value["model"]["vocab"])
    with pytest.raises(ConvertError, match="a merge joins newlines"):
        read(value)


def test_a_vocabulary_of_bytes_keeps_its_blanks(read: Read) -> None:
    """Without any replacement of blanks, bytes are spelled in the byte alphabet; ids stay."""
    value = tokenizer("a", "b", "ab", merges=[["a", "b"]], normalizer=None)
    vocabulary = read(value)
    assert (vocabulary.model, vocabulary.pre, vocabulary.prefix) == ("gpt2", "gpt-2", "never")
    assert vocabulary.texts[value["model"]["vocab"]["<0x20>"]] == "Ġ"
    assert vocabulary.kinds[value["model"]["vocab"]["<0x20>"]] == TokenKind.NORMAL
    # No text makes this byte, "a" is a token itself; a model may still answer with it.
    assert vocabulary.texts[value["model"]["vocab"]["<0x61>"]] == "<0x61>"
    assert vocabulary.kinds[value["model"]["vocab"]["<0x61>"]] == TokenKind.BYTE


@pytest.mark.parametrize(
    ("tokens", "merges", "shown"),
    [
        (("é",), [], "'é'"),
        (("e", "s", "es"), [["s", "e"]], ""),
        (("1", "2", "12"), [["1", "2"]], ""),
    ],
)
def test_characters_that_keep_their_blanks_are_refused(
    read: Read, tokens: tuple[str, ...], merges: list[list[str]], shown: str
) -> None:
    """Tokens of several bytes, and merges that a splitter might cut, cannot be spelled as bytes."""
    value = tokenizer(*tokens, merges=[], normalizer=None)
    for left, right in merges:
        value["model"]["vocab"].setdefault(left + right, len(value["model"]["vocab"]))
    value["model"]["merges"] = merges
    with pytest.raises(ConvertError, match="blanks stay blanks") as found:
        read(value)
    assert shown in found.value.message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"normalizer": {"type": "NFKC"}}, "NFKC"),
        (
            {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, REPLACE]}},
            "Low",
        ),
        ({"normalizer": REPLACE | {"content": "_"}}, "Replace"),
        ({"normalizer": REPLACE | {"pattern": {"Regex": " "}}}, "Regex"),
        ({"normalizer": REPLACE | {"content": ["x"]}}, "Replace"),
        ({"normalizer": None, "pre_tokenizer": metaspace("sometimes")}, "sometimes"),
        (
            {"normalizer": None, "pre_tokenizer": metaspace("first") | {"replacement": "_"}},
            "Metaspace",
        ),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "Whitespace"),
        ({"pre_tokenizer": 7}, "pre_tokenizer 7"),
        ({"decoder": {"type": "WordPiece"}}, "decoder"),
        ({"decoder": {"type": "CTC"}}, "CTC"),
    ],
)
def test_what_is_not_understood_is_shown(read: Read, change: dict[str, Any], message: str) -> None:
    """A part no engine does is a refusal with its JSON."""
    with pytest.raises(ConvertError, match=message):
        read(tokenizer(*WHOLE, merges=MERGES) | change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"byte_fallback": False}, "neither byte-level nor with byte fallback"),
        ({"ignore_merges": True}, "ignore_merges"),
        ({"dropout": 0.1}, "dropout"),
        ({"unk_token": "nope"}, "unk_token"),
        ({"merges": [["<0x41>", "a"]]}, "merge 0 makes no token"),
        ({"merges": [*MERGES, ["a", "b"]]}, "merges 0 and 5 are the same"),
        ({"type": "Unigram"}, "likeliest pieces"),
    ],
)
def test_models_of_another_kind(read: Read, change: dict[str, Any], message: str) -> None:
    """What the engine would do otherwise, or die of, is refused."""
    value = tokenizer(*WHOLE, merges=MERGES)
    value["model"] |= change
    with pytest.raises(ConvertError, match=message):
        read(value)


def test_a_byte_without_a_token_is_refused(read: Read) -> None:
    """The engine fails on it, and text with it would turn into nothing."""
    value = tokenizer(*WHOLE, merges=MERGES)
    vocab = value["model"]["vocab"]
    value["model"]["vocab"] = {text: i for text, i in vocab.items() if text != "<0xF0>"}
    with pytest.raises(ConvertError, match="<0xF0>"):
        read(value)


def test_added_tokens_that_stand_for_blanks_are_printed_as_blanks(read: Read) -> None:
    """Only an ordinary token's sign for a blank is printed as one, so it stays ordinary."""
    value = tokenizer(*WHOLE, BLANK * 2, merges=[[BLANK, BLANK], *MERGES])
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    i = value["model"]["vocab"][BLANK * 2]
    value["added_tokens"].append({"id": i, "content": BLANK * 2, "special": False, **flags})
    vocabulary = read(value)
    assert vocabulary.kinds[i] == TokenKind.NORMAL
    assert vocabulary.scores[i] == 0.0


NASTY: tuple[Any, ...] = (None, 5, -1, 1.5, "x", [], {}, True, "9" * 5000, [[]], {"type": []})


def places(value: Any, where: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    rows = list(value.items() if isinstance(value, dict) else enumerate(value))
    for key, inner in rows[:8]:
        yield (*where, key)
        if isinstance(inner, (dict, list)):
            yield from places(inner, (*where, key))


def test_any_value_anywhere_is_a_typed_error_or_a_vocabulary(read: Read) -> None:
    """Each value is replaced by numbers, texts and containers in turn."""
    value = tokenizer(*WHOLE, merges=MERGES)
    value["normalizer"] = {"type": "Sequence", "normalizers": [PREPEND, REPLACE]}
    bent = [value, value | {"normalizer": None, "pre_tokenizer": metaspace("first")}]
    n_refused = 0
    for whole in bent:
        for where in places(whole):
            for new in NASTY:
                made = copy.deepcopy(whole)
                inner: Any = made
                for key in where[:-1]:
                    inner = inner[key]
                inner[where[-1]] = new
                try:
                    read(made)
                except EdgeLLMError as err:
                    n_refused += "tokenizer.json" in str(err)
    assert n_refused > 100
