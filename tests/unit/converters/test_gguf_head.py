"""The bytes before the weights, held against two readers that share no code with the writer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from edgellm.converters.gguf_head import ALIGNMENT, pack_head, padding
from edgellm.errors import ConvertError
from edgellm.formats.cursor import StringArray
from edgellm.formats.gguf import read_header

if TYPE_CHECKING:
    from pathlib import Path

    from edgellm.converters.recipe import KeyValues

VALUES: KeyValues = {
    "general.architecture": "llama",
    "a.flag": True,
    "a.count": 7,
    "a.large": 1 << 40,
    "a.real": 0.1,
    "a.text": "Žeľko 값 👋",
    "tokenizer.ggml.tokens": ["", "b", "ĠĠ"],
    "tokenizer.ggml.token_type": [1, -2, 3],
}


def write(path: Path) -> Path:
    head = pack_head(VALUES, [("x", (3, 32), 8, 102), ("y", (5,), 0, 20)])
    assert len(head) % ALIGNMENT == 0
    path.write_bytes(head + bytes(102 + padding(102) + 20 + padding(20)))
    return path


def test_our_own_reader_gives_it_back(tmp_path: Path) -> None:
    """Keys in order, values, shapes in ggml's order, offsets aligned."""
    header = read_header(write(tmp_path / "m.gguf"))
    assert list(header.metadata) == list(VALUES)
    assert header.metadata["a.large"] == 1 << 40
    assert header.metadata["a.text"] == VALUES["a.text"]
    assert list(header.metadata["tokenizer.ggml.tokens"]) == VALUES["tokenizer.ggml.tokens"]  # type: ignore[arg-type]
    rows = [(t.name, t.shape, t.type.name, t.offset) for t in header.tensors]
    assert rows == [("x", (32, 3), "q8_0", 0), ("y", (5,), "f32", 128)]


def test_the_reader_of_the_gguf_library_agrees(tmp_path: Path) -> None:
    """The format's own library reads every value."""
    from gguf import GGUFReader

    reader = GGUFReader(write(tmp_path / "m.gguf"))
    for key, value in VALUES.items():
        found = reader.fields[key].contents()
        assert found == pytest.approx(value) if isinstance(value, float) else found == value


def test_numbers_out_of_range_are_errors() -> None:
    """What does not fit a GGUF number is refused, not wrapped."""
    for value in (-1, 1 << 64, [1 << 31]):
        with pytest.raises(ConvertError, match="cannot be written"):
            pack_head({"tokenizer.ggml.token_type": value}, [])


def test_an_empty_list_keeps_its_element_type(tmp_path: Path) -> None:
    """A tokenizer without merges has an empty list of strings, not of numbers."""
    path = tmp_path / "m.gguf"
    path.write_bytes(pack_head({"tokenizer.ggml.merges": [], "tokenizer.ggml.token_type": []}, []))
    found = read_header(path).metadata
    assert isinstance(found["tokenizer.ggml.merges"], StringArray)
    assert found["tokenizer.ggml.token_type"].dtype == "int32"  # type: ignore[union-attr]


@pytest.mark.parametrize("value", [{"tokenizer.ggml.merges": [1]}, {"a.new": ["x"]}])
def test_a_list_of_another_kind_or_of_none_is_refused(value: KeyValues) -> None:
    """What a list holds is declared by its key, and held to it."""
    with pytest.raises(ConvertError, match="cannot be written"):
        pack_head(value, [])
