"""Checkpoint metadata that nobody vouches for: a typed error that names the file, or a plan."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest

from edgellm.converters.plan import make_plan
from edgellm.errors import EdgeLLMError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Make = Callable[..., Path]
    Where = tuple[str | int, ...]

NASTY: tuple[Any, ...] = (
    None, 5, -1, 1.5, 10**400, 1e-300, "x", [], {}, True, "9" * 5000, [[]],
)  # fmt: skip
INDEX = "model.safetensors.index"
FILES = ("config", "tokenizer", "tokenizer_config", "generation_config", INDEX, "added_tokens")
MOST_OF_A_LIST = 3  # of a thousand tokens and merges, these stand for all
SHARDED = "llama3-untied-sharded-bf16"


def places(value: Any, where: Where = ()) -> Iterator[Where]:
    """Yield the way to every value inside a JSON value, the first few of long lists and tables."""
    rows = list(value.items() if isinstance(value, dict) else enumerate(value))
    for key, inner in rows[: MOST_OF_A_LIST if len(rows) > 60 else None]:
        yield (*where, key)
        if isinstance(inner, (dict, list)):
            yield from places(inner, (*where, key))


def changed(value: Any, where: Where, new: Any) -> Any:
    """Return a copy with another value at one place."""
    made = copy.deepcopy(value)
    inner = made
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = new
    return made


def rich(checkpoint: Make, name: str) -> Path:
    """Make a checkpoint whose files hold every key that is read."""
    return checkpoint(
        name,
        tokenizer_config={
            "chat_template": [{"name": "default", "template": "x"}, {"name": "t", "template": "y"}],
            "added_tokens_decoder": {"0": {"content": "<|begin|>", "special": True}},
            "bos_token": {"content": "<|begin|>"},
            "add_bos_token": True,
            "tokenizer_class": "LlamaTokenizer",
        },
        generation_config={"eos_token_id": [1, 3], "pad_token_id": 0},
        added_tokens={"Marrow Island": 370, "extra": 371},
        tokenizer={"normalizer": {"type": "Sequence", "normalizers": []}},
    )


def outcome(folder: Path) -> str | None:
    """Plan a conversion: None, or what the typed error says."""
    try:
        make_plan(folder, "q8_0")
    except EdgeLLMError as err:
        return str(err)
    return None


@pytest.mark.parametrize("name", [SHARDED, "yarn-biased-f16"])
def test_any_value_anywhere_is_a_typed_error_or_a_plan(checkpoint: Make, name: str) -> None:
    """Each value of each JSON file is replaced by numbers, texts and containers in turn."""
    folder = rich(checkpoint, name)
    (folder / "chat_template.jinja").unlink()
    make_plan(folder, "q8_0")
    n_tried = 0
    for path in [path for stem in FILES if (path := folder / f"{stem}.json").is_file()]:
        good = path.read_bytes()
        for where in places(json.loads(good)):
            for new in NASTY:
                path.write_text(json.dumps(changed(json.loads(good), where, new)))
                n_tried += 1
                said = outcome(folder)
                assert said is None or said.startswith(str(folder)), (where, str(new)[:20])
                assert said is None or ("\n" not in said and len(said) < 2000), where
        path.write_bytes(good)
    assert n_tried > 1000


def wrong(folder: Path, message: str) -> None:
    with pytest.raises(EdgeLLMError, match=message) as caught:
        make_plan(folder, "q8_0")
    assert str(folder) in str(caught.value)


def test_an_id_of_many_digits(checkpoint: Make) -> None:
    """Python refuses to read such a number; so is the file, by name."""
    row = {"9" * 5000: {"content": "x"}}
    wrong(checkpoint(tokenizer_config={"added_tokens_decoder": row}), "with id 999")
    row = {"٣": {"content": "x"}}  # a digit to Python, none to JSON
    wrong(checkpoint(tokenizer_config={"added_tokens_decoder": row}), "with id ٣")


@pytest.mark.parametrize(
    ("post", "message"),
    [
        ({"type": "Sequence", "processors": 5}, r"post_processor\.processors"),
        ({"type": "TemplateProcessing", "single": 5}, r"post_processor\.single"),
        (5, "post_processor"),
    ],
)
def test_a_post_processor_that_is_none(checkpoint: Make, post: Any, message: str) -> None:
    """Its lists are lists."""
    wrong(checkpoint(tokenizer={"post_processor": post}), message)


@pytest.mark.parametrize(
    ("part", "key"),
    [
        ({"type": "ByteLevel", "add_prefix_space": []}, "add_prefix_space"),
        ({"type": "ByteLevel", "add_prefix_space": 0}, "add_prefix_space"),
        ({"type": "ByteLevel", "add_prefix_space": False, "use_regex": {}}, "use_regex"),
        ({"type": "Digits", "individual_digits": {}}, "individual_digits"),
        ({"type": "Split", "pattern": {"Regex": "x"}, "behavior": {}}, "behavior"),
        ({"type": "Split", "pattern": {"Regex": "x"}, "behavior": "x", "invert": []}, "invert"),
    ],
)
def test_a_splitter_with_a_flag_that_is_none(checkpoint: Make, part: Any, key: str) -> None:
    """The field is named."""
    wrong(checkpoint(tokenizer={"pre_tokenizer": part}), rf"pre_tokenizer: .*{key}")


@pytest.mark.parametrize("key", ["rope_theta", "rms_norm_eps"])
@pytest.mark.parametrize("value", [10**400, 1e300, 1e-300])
def test_a_number_that_float32_cannot_hold(checkpoint: Make, key: str, value: float) -> None:
    """A GGUF keeps it in float32, where it would be infinite or zero."""
    wrong(checkpoint("tied-v4-f32", config={key: value}), f"{key} is")


@pytest.mark.parametrize("value", [5, True, {"default": "x"}, [5], [{"name": "default"}]])
def test_a_chat_template_that_is_no_text(checkpoint: Make, value: Any) -> None:
    """It is not dropped in silence: the model would lose its chat format."""
    folder = checkpoint(tokenizer_config={"chat_template": value})
    (folder / "chat_template.jinja").unlink()
    wrong(folder, "chat_template")


def test_values_nested_too_deeply_to_be_shown(checkpoint: Make) -> None:
    """What the parser still takes may be too deep for the rest."""
    for n in range(700, 1000, 10):
        deep = "[" * n + "]" * n
        folder = checkpoint(tokenizer_config=f'{{"chat_template": {deep}}}'.encode())
        (folder / "chat_template.jinja").unlink()
        with pytest.raises(EdgeLLMError):
            make_plan(folder, "q8_0")
