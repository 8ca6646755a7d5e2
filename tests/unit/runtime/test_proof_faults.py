"""Faults put into a written tokenizer on purpose: the proof finds each, and no file is believed about itself."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import edgellm.converters.plan as plan_module
from edgellm.errors import VerifyFailed
from edgellm.runtime.conversion import ConvertOptions, convert
from edgellm.runtime.proof import prove

if TYPE_CHECKING:
    from collections.abc import Callable

CHECKPOINT = Path(__file__).resolve().parents[2] / "data" / "checkpoints" / "tied-v4-f32"
PREFIX = "tokenizer.ggml."
BEGIN, STOP, LETTER, ISLAND = 0, 1, 138, 370
UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 2, 3, 4, 5


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Convert, without the proof, with a vocabulary or special tokens changed on the way."""

    def make(
        kinds: Callable[[list[int], list[str]], list[int]] | None = None, **values: Any
    ) -> Path:
        read_vocabulary, read_specials = plan_module.read_vocabulary, plan_module.read_specials

        def specials(*args: Any) -> Any:
            found = read_specials(*args)
            vocabulary = args[2]  # whose kinds are final by now
            if kinds:
                vocabulary.kinds[:] = kinds(vocabulary.kinds, vocabulary.texts)
            changed = {f"{PREFIX}{key}": value for key, value in values.items()}
            merged = found.key_values | changed
            kept = {key: value for key, value in merged.items() if value is not None}
            return dataclasses.replace(found, key_values=kept)

        def vocabulary(*args: Any) -> Any:
            found = read_vocabulary(*args)
            return dataclasses.replace(found, kinds=list(found.kinds))

        monkeypatch.setattr(plan_module, "read_specials", specials)
        monkeypatch.setattr(plan_module, "read_vocabulary", vocabulary)
        out = tmp_path / "m.gguf"
        convert(ConvertOptions(CHECKPOINT, out, "q8_0", prove=False))
        return out

    return make


def one(i: int, kind: int) -> Callable[[list[int], list[str]], list[int]]:
    """Give one id another kind."""
    return lambda kinds, _: [kind if j == i else k for j, k in enumerate(kinds)]


def letters(kind: int) -> Callable[[list[int], list[str]], list[int]]:
    """Give every token of one character another kind."""
    return lambda kinds, texts: [
        kind if len(t) == 1 else k for k, t in zip(kinds, texts, strict=True)
    ]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"eos_token_id": LETTER}, "the engine stops at token 138"),
        ({"eos_token_id": None}, "does not stop at token 1, '<|stop|>'"),
        ({"eot_token_id": 7}, "the engine stops at token 7"),
        ({"unknown_token_id": 7}, "unk_token_id is None in the source and 7 in the file"),
        ({"padding_token_id": 7}, "pad_token_id is None in the source and 7 in the file"),
    ],
)
def test_a_wrong_special_token_is_found(
    faulty: Callable[..., Path], values: dict[str, Any], message: str
) -> None:
    """Ends, unknown and padding are those that the checkpoint's files name, and no others."""
    with pytest.raises(VerifyFailed, match="source") as found:
        prove(faulty(**values), CHECKPOINT)
    assert message in found.value.message


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        (lambda kinds, _: [CONTROL] * len(kinds), "is of kind CONTROL"),
        (letters(CONTROL), "is of kind CONTROL"),
        (letters(UNKNOWN), "is of kind UNKNOWN"),
        (one(LETTER, CONTROL), r"token 138, '\\xca', is of kind CONTROL"),
        (one(LETTER, UNUSED), "token 138, .* is of kind UNUSED"),
        (one(BEGIN, USER_DEFINED), r"token 0, '<\|begin\|>', is of kind USER_DEFINED"),
        (one(STOP, 1), r"token 1, '<\|stop\|>', is of kind NORMAL"),
        (one(ISLAND, CONTROL), "token 370, 'Marrow Island', is of kind CONTROL"),
    ],
)
def test_a_token_of_another_kind_is_found(
    faulty: Callable[..., Path], kinds: Any, message: str
) -> None:
    """A file that calls ordinary tokens control tokens leaves nothing out of the comparison."""
    with pytest.raises(VerifyFailed, match=message):
        prove(faulty(kinds), CHECKPOINT)


def test_a_file_made_from_a_gguf_has_its_end(faulty: Callable[..., Path], tmp_path: Path) -> None:
    """Where the source is a GGUF, the engine says of both where it stops."""
    source = tmp_path / "source.gguf"
    convert(ConvertOptions(CHECKPOINT, source, "q8_0", prove=False))
    with pytest.raises(VerifyFailed, match="end_ids of the written tokenizer are not the source's"):
        prove(faulty(eos_token_id=LETTER), source)


def test_few_compared_texts_are_told(tmp_path: Path) -> None:
    """An added blank that takes the blanks behind it leaves less than half of the texts."""
    folder = tmp_path / "checkpoint"
    shutil.copytree(CHECKPOINT, folder)
    path = folder / "tokenizer.json"
    value = json.loads(path.read_text(encoding="utf-8"))
    free = max(row["id"] for row in value["added_tokens"]) + 1
    row = {"content": " ", "single_word": False, "lstrip": False, "rstrip": True}
    value["added_tokens"].append(row | {"id": free, "normalized": False, "special": False})
    path.write_text(json.dumps(value), encoding="utf-8")
    found = convert(ConvertOptions(folder, tmp_path / "m.gguf", "q8_0")).proof
    assert f"only {found.strings} of " in " ".join(found.warnings)


def test_merges_that_overlap_are_compared_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two merges that want the same letter, told in the wrong order, give other ids."""
    read_vocabulary = plan_module.read_vocabulary

    def swapped(*args: Any) -> Any:
        found = read_vocabulary(*args)
        rows = list(found.merges)
        at = next(
            (i, j)
            for i, one in enumerate(rows)
            for j, two in enumerate(rows[i + 1 :], i + 1)
            if one.split()[1] == two.split()[0] and len(one + two) > 6
        )
        rows[at[0]], rows[at[1]] = rows[at[1]], rows[at[0]]
        return dataclasses.replace(found, merges=rows)

    monkeypatch.setattr(plan_module, "read_vocabulary", swapped)
    out = tmp_path / "m.gguf"
    convert(ConvertOptions(CHECKPOINT, out, "q8_0", prove=False))
    with pytest.raises(VerifyFailed, match="differs from the source's in"):
        prove(out, CHECKPOINT, n_strings=8)
