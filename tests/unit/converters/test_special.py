"""Beginnings, ends and chat templates, from four files in order of trust."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from edgellm.converters.spec import Config
from edgellm.converters.special import Specials, read_specials
from edgellm.converters.tokenizer import read_vocabulary
from edgellm.converters.vocabulary import TokenKind
from edgellm.errors import ConvertError
from edgellm.formats.checked_json import read_json_object

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from edgellm.converters.vocabulary import Vocabulary

    Make = Callable[..., Path]
    Json = Callable[..., dict[str, Any]]

BEGIN, STOP, IM_START, IM_END = 0, 1, 2, 3
ADDED = 370  # "Marrow Island"


def read(folder: Path) -> tuple[Specials, Vocabulary]:
    vocabulary = read_vocabulary(folder, 384)
    path = folder / "config.json"
    return read_specials(folder, Config(read_json_object(path), path), vocabulary), vocabulary


def ids(specials: Specials) -> dict[str, Any]:
    values = specials.key_values
    return {
        key.removeprefix("tokenizer.ggml.").removesuffix("_token_id"): value
        for key, value in values.items()
        if key.endswith("_token_id")
    }


def test_generation_config_is_trusted_most(checkpoint: Make) -> None:
    """Its end id wins over config.json's; the tokenizer's own end token still ends an answer."""
    folder = checkpoint(
        generation_config={"eos_token_id": IM_START}, config={"eos_token_id": IM_END}
    )
    specials, _ = read(folder)
    assert specials.end_ids == (IM_START, STOP)
    assert ids(specials)["eos"] == IM_START
    assert ids(specials)["eot"] == STOP


def test_the_token_the_template_prints_is_the_main_one(checkpoint: Make) -> None:
    """Of several ends the tokenizer's is `eos`, because chat templates print it."""
    specials, _ = read(checkpoint(generation_config={"eos_token_id": [IM_END, STOP]}))
    assert specials.end_ids == (STOP, IM_END)
    assert ids(specials) == {"bos": BEGIN, "eos": STOP, "eot": IM_END}


def test_every_end_gets_a_place_or_a_warning(checkpoint: Make) -> None:
    """Ends the engine does not know by their text take the free places; none is lost in silence."""
    folder = checkpoint(generation_config={"eos_token_id": [STOP, IM_END, BEGIN, IM_START, ADDED]})
    specials, vocabulary = read(folder)
    assert ids(specials)["eot"] == BEGIN
    assert ids(specials)["eom"] == IM_START
    assert any("Marrow Island" in warning for warning in specials.warnings)
    assert not any("im_end" in warning for warning in specials.warnings)
    assert vocabulary.kinds[ADDED] == TokenKind.CONTROL


def test_no_end_anywhere(checkpoint: Make) -> None:
    """Id 0 is never assumed: a base model gets what engines stop at anyway, a chat model is refused."""
    silent: dict[str, Any] = {
        "generation_config": {"eos_token_id": ...},
        "config": {"eos_token_id": ...},
        "tokenizer_config": {"eos_token": ...},
    }
    with pytest.raises(ConvertError, match="which token ends"):
        read(checkpoint(**silent))
    folder = checkpoint(**silent)
    (folder / "chat_template.jinja").unlink()
    specials, vocabulary = read(folder)
    assert vocabulary.texts[ids(specials)["eos"]] == "<|im_end|>"
    assert any("stop at '<|im_end|>'" in warning for warning in specials.warnings)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"generation_config": {"eos_token_id": 9999}}, "ids go from 0 to 383"),
        ({"generation_config": {"eos_token_id": [1, "2"]}}, "ids go from"),
        ({"config": {"bos_token_id": -1}, "tokenizer_config": {"bos_token": ...}}, "bos_token_id"),
        ({"tokenizer_config": {"eos_token": "<nowhere>"}}, "no token"),
    ],
)
def test_ids_and_texts_outside_the_vocabulary(
    checkpoint: Make, changes: dict[str, Any], message: str
) -> None:
    """A special token that is not there is an error with its key."""
    changes.setdefault("generation_config", {"eos_token_id": ..., "bos_token_id": ...})
    with pytest.raises(ConvertError, match=message):
        read(checkpoint(**changes))


def test_post_processor_says_whether_texts_begin_with_bos(checkpoint: Make) -> None:
    """What tokenizer.json puts around a text becomes add_bos_token; without it nothing is added."""
    with_bos, _ = read(checkpoint("llama3-untied-sharded-bf16"))
    assert with_bos.key_values["tokenizer.ggml.add_bos_token"] is True
    assert with_bos.key_values["tokenizer.ggml.add_eos_token"] is False
    without, _ = read(checkpoint(tokenizer_config={"add_bos_token": True}))
    assert without.key_values["tokenizer.ggml.add_bos_token"] is False
    llama, _ = read(
        checkpoint(
            tokenizer_config={"add_bos_token": True, "tokenizer_class": "LlamaTokenizerFast"}
        )
    )
    assert llama.key_values["tokenizer.ggml.add_bos_token"] is True


def test_template_from_its_own_file_first(checkpoint: Make) -> None:
    """chat_template.jinja, then chat_template.json, then tokenizer_config.json."""
    folder = checkpoint(
        tokenizer_config={"chat_template": "third"}, chat_template={"chat_template": "second"}
    )
    key = "tokenizer.chat_template"
    assert str(read(folder)[0].key_values[key]).startswith("{{ bos_token }}")
    (folder / "chat_template.jinja").unlink()
    assert read(folder)[0].key_values[key] == "second"
    (folder / "chat_template.json").unlink()
    assert read(folder)[0].key_values[key] == "third"


def test_named_templates_are_all_kept(checkpoint: Make) -> None:
    """Of a list, `default` is the template; the others keep their names."""
    rows = [{"name": "tool_use", "template": "B"}, {"name": "default", "template": "A"}]
    folder = checkpoint(tokenizer_config={"chat_template": rows})
    (folder / "chat_template.jinja").unlink()
    values = read(folder)[0].key_values
    assert values["tokenizer.chat_template"] == "A"
    assert values["tokenizer.chat_template.tool_use"] == "B"
    assert values["tokenizer.chat_templates"] == ["tool_use"]


def test_what_engines_know_by_text_is_said(checkpoint: Make, tokenizer_json: Json) -> None:
    """Some texts end answers whatever the file calls them, others are read from plain text."""
    value = tokenizer_json()
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    first = max(value["model"]["vocab"].values(), default=0) + 1
    first = max([first, *(row["id"] + 1 for row in value["added_tokens"])])
    value["added_tokens"] += [
        {"id": first, "content": "</s>", "special": False, **flags},
        {"id": first + 1, "content": "<|start|>", "special": True, **flags},
    ]
    specials, vocabulary = read(checkpoint(tokenizer=value))
    assert vocabulary.kinds[first] == TokenKind.CONTROL
    assert any("end an answer at '</s>'" in warning for warning in specials.warnings)
    assert any("read '<|start|>' from plain text" in warning for warning in specials.warnings)


def test_an_end_that_no_text_makes_is_chosen_where_there_is_none(
    checkpoint: Make, tokenizer_json: Json
) -> None:
    """Engines would take a token of their own: an unused one changes nothing."""
    value = tokenizer_json()
    for row in value["added_tokens"]:
        row["content"] = row["content"].replace("im_end", "over")
    vocab = value["model"]["vocab"]
    value["model"]["vocab"] = {text.replace("im_end", "over"): i for text, i in vocab.items()}
    folder = checkpoint(
        tokenizer=value,
        generation_config={"eos_token_id": ...},
        config={"eos_token_id": ...},
        tokenizer_config={"eos_token": ...},
    )
    (folder / "chat_template.jinja").unlink()
    specials, vocabulary = read(folder)
    assert vocabulary.kinds[ids(specials)["eos"]] == TokenKind.UNUSED
    assert any("length limit" in warning for warning in specials.warnings)
