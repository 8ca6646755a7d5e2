"""tokenizer.json into a vocabulary whose ids never shift."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from edgellm.converters.tokenizer import read_vocabulary
from edgellm.converters.vocabulary import TokenKind
from edgellm.errors import ConvertError, ModelCorrupt

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Make = Callable[..., Path]
    Json = Callable[..., dict[str, Any]]

N_VOCAB = 384


def test_kinds_and_padding(checkpoint: Make) -> None:
    """Special tokens are control, added ones user-defined, free ids unused and named apart."""
    vocabulary = read_vocabulary(checkpoint(), N_VOCAB)
    kinds = vocabulary.kinds
    assert kinds[vocabulary.ids["<|stop|>"]] == TokenKind.CONTROL
    assert kinds[vocabulary.ids["Marrow Island"]] == TokenKind.USER_DEFINED
    assert kinds[vocabulary.ids["a"]] == TokenKind.NORMAL
    assert kinds[-1] == TokenKind.UNUSED
    assert vocabulary.texts[-1] == f"[PAD{N_VOCAB - 1}]"
    assert len(vocabulary.texts) == len(kinds) == N_VOCAB
    assert "unused tokens" in vocabulary.warnings[0]


def test_merges_in_either_spelling(checkpoint: Make, tokenizer_json: Json) -> None:
    """Pairs and joined strings give the same merges."""
    pairs = read_vocabulary(checkpoint(), N_VOCAB)
    model = tokenizer_json()["model"]
    model["merges"] = [" ".join(pair) for pair in model["merges"]]
    joined = read_vocabulary(checkpoint(tokenizer={"model": model}), N_VOCAB)
    assert pairs.merges == joined.merges
    assert len(pairs.merges) > 50


def change_model(**changes: Any) -> Callable[[dict[str, Any]], None]:
    def change(value: dict[str, Any]) -> None:
        value["model"] |= changes

    return change


def mixed_merges(value: dict[str, Any]) -> None:
    value["model"]["merges"][3] = " ".join(value["model"]["merges"][3])


def merge_to_nothing(value: dict[str, Any]) -> None:
    value["model"]["merges"][3] = ["z", "q"]


def two_texts_one_id(value: dict[str, Any]) -> None:
    value["model"]["vocab"]["another"] = 40


def negative_id(value: dict[str, Any]) -> None:
    value["model"]["vocab"]["another"] = -1


def fractional_id(value: dict[str, Any]) -> None:
    value["model"]["vocab"]["another"] = 3.5


def added_claims_an_id(value: dict[str, Any]) -> None:
    value["added_tokens"].append({"id": 40, "content": "mine", "special": True})


def added_without_text(value: dict[str, Any]) -> None:
    value["added_tokens"].append({"id": 375, "content": ""})


def beyond_the_embedding(value: dict[str, Any]) -> None:
    value["added_tokens"].append({"id": N_VOCAB, "content": "too far", "special": True})


def normalized(value: dict[str, Any]) -> None:
    value["normalizer"] = {"type": "NFD"}


def no_decoder(value: dict[str, Any]) -> None:
    value["decoder"] = None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (mixed_merges, "mixed"),
        (merge_to_nothing, "makes no token"),
        (two_texts_one_id, "id 40 is both"),
        (negative_id, "has id -1"),
        (fractional_id, "has id 3.5"),
        (added_claims_an_id, "claims id 40"),
        (added_without_text, "an added token"),
        (beyond_the_embedding, "belongs to another model"),
        (normalized, "normalizer"),
        (no_decoder, "decoder"),
        (change_model(type="WordPiece"), "WordPiece"),
        (change_model(vocab={}), "empty"),
        (change_model(byte_fallback=True), "byte_fallback"),
        (change_model(merges=None), "merges"),
        (lambda value: value.pop("model"), "no model"),
    ],
)
def test_contradictions_are_refused(
    checkpoint: Make, tokenizer_json: Json, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    """One id never stands for two texts, a merge always makes a token, another kind is refused."""
    value = tokenizer_json()
    change(value)
    folder = checkpoint(tokenizer={"model": ..., **value} if "model" not in value else value)
    with pytest.raises(ConvertError, match=message):
        read_vocabulary(folder, N_VOCAB)


def test_composing_normalizer_is_said_aloud(checkpoint: Make) -> None:
    """NFC changes only unusual text, so it is a warning."""
    vocabulary = read_vocabulary(checkpoint(tokenizer={"normalizer": {"type": "NFC"}}), N_VOCAB)
    assert any("NFC" in warning for warning in vocabulary.warnings)


def test_added_tokens_json_may_repeat_and_skip_but_not_contradict(checkpoint: Make) -> None:
    """Repeats that agree are ignored, gaps stay unused, one id with two texts is refused."""
    agreeing = {"<|begin|>": 0, "<new>": 380}
    vocabulary = read_vocabulary(checkpoint(added_tokens=agreeing), N_VOCAB)
    assert vocabulary.ids["<new>"] == 380
    assert vocabulary.kinds[0] == TokenKind.CONTROL
    assert vocabulary.kinds[379] == TokenKind.UNUSED
    with pytest.raises(ConvertError, match="elsewhere"):
        read_vocabulary(checkpoint(added_tokens={"other": 0}), N_VOCAB)


def test_the_older_list_in_tokenizer_config_counts(checkpoint: Make) -> None:
    """`added_tokens_decoder` may add what tokenizer.json lacks, and may not contradict it."""
    rows = {"0": {"content": "<|begin|>", "special": True}, "375": {"content": "<more>"}}
    folder = checkpoint(tokenizer_config={"added_tokens_decoder": rows})
    vocabulary = read_vocabulary(folder, N_VOCAB)
    assert vocabulary.ids["<more>"] == 375
    assert vocabulary.kinds[375] == TokenKind.USER_DEFINED
    wrongs: list[Any] = [{"0": {"content": "no"}}, {"x": {"content": "a"}}, {"5": "a"}, ["a"]]
    for wrong in wrongs:
        folder = checkpoint(tokenizer_config={"added_tokens_decoder": wrong})
        with pytest.raises(ConvertError, match="added"):
            read_vocabulary(folder, N_VOCAB)


def test_a_token_that_takes_blanks_is_said_aloud(checkpoint: Make, tokenizer_json: Json) -> None:
    """Engines do not strip blanks around added tokens, so texts around them may differ."""
    added = tokenizer_json()["added_tokens"]
    added[-1]["lstrip"] = True
    vocabulary = read_vocabulary(checkpoint(tokenizer={"added_tokens": added}), N_VOCAB)
    assert any("takes blanks" in warning for warning in vocabulary.warnings)


def test_a_pad_name_that_exists_is_refused(checkpoint: Make, tokenizer_json: Json) -> None:
    """Two ids with one text would stop the engine, so they stop here."""
    added = tokenizer_json()["added_tokens"]
    added.append({"id": 371, "content": "[PAD380]", "special": False})
    with pytest.raises(ConvertError, match="two ids stand for"):
        read_vocabulary(checkpoint(tokenizer={"added_tokens": added}), N_VOCAB)


def test_no_tokenizer_names_what_was_looked_for(checkpoint: Make) -> None:
    """The missing file is named."""
    with pytest.raises(ConvertError, match=r"looked for tokenizer\.json"):
        read_vocabulary(checkpoint(tokenizer=None), N_VOCAB)


def test_a_broken_file_is_corrupt(checkpoint: Make) -> None:
    """A tokenizer.json that is no JSON is told apart from one that is not supported."""
    with pytest.raises(ModelCorrupt, match="line 1"):
        read_vocabulary(checkpoint(tokenizer=b"{"), N_VOCAB)
