"""Reading safetensors headers that nobody vouches for."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from edgellm.errors import ModelCorrupt, ModelNotFound
from edgellm.formats.safetensors import read_header

CHECKPOINTS = Path(__file__).resolve().parents[2] / "data" / "checkpoints"


def entry(dtype: str, shape: list[Any], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def write(path: Path, table: Any, data: bytes = b"", *, text: bytes | None = None) -> Path:
    raw = text if text is not None else json.dumps(table).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + data)
    return path


def test_tensors_come_in_byte_order_with_absolute_offsets(tmp_path: Path) -> None:
    """Entries are sorted by their bytes, and offsets count from the start of the file."""
    table = {
        "__metadata__": {"format": "pt"},
        "b": entry("F16", [2], 8, 12),
        "a": entry("F32", [1, 2], 0, 8),
    }
    path = write(tmp_path / "m.safetensors", table, bytes(12))
    header = read_header(path)
    assert [t.name for t in header.tensors] == ["a", "b"]
    assert header.tensors[0].shape == (1, 2)
    assert header.tensors[1].offset == header.file_bytes - 4


def test_files_of_the_library_that_defined_the_format() -> None:
    """Shards written by the safetensors library hold the tensors their index says."""
    folder = CHECKPOINTS / "llama3-untied-sharded-bf16"
    index = json.loads((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))
    found = {
        tensor.name: path.name
        for path in folder.glob("*.safetensors")
        for tensor in read_header(path).tensors
    }
    assert found == index["weight_map"]
    first = read_header(folder / found["model.norm.weight"])
    assert {t.dtype for t in first.tensors} == {"BF16"}
    assert sum(t.n_bytes for t in first.tensors) < first.file_bytes


@pytest.mark.parametrize(
    ("table", "data", "message"),
    [
        ({"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 4, 12)}, 12, "overlaps"),
        ({"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 8, 12)}, 12, "hole"),
        ({"a": entry("F32", [1], 0, 4)}, 8, "4 bytes belong to no tensor"),
        ({"a": entry("F32", [4], 0, 16)}, 10, "6 bytes are missing"),
        ({"a": entry("F32", [3], 0, 8)}, 8, "needs 12 bytes, 8 are given"),
        ({"a": entry("F32", [2], 8, 0)}, 8, "bad data_offsets"),
        ({"a": entry("F32", [1 << 32, 1 << 32], 0, 8)}, 8, "needs"),
        ({"a": entry("F32", [-2], 0, 8)}, 8, "bad shape"),
        ({"a": entry("F32", [2.0], 0, 8)}, 8, "bad shape"),
        ({"a": entry("F32", [True], 0, 4)}, 4, "bad shape"),
        ({"a": entry("Q17", [2], 0, 8)}, 8, "unknown dtype 'Q17'"),
        ({"a": [1]}, 0, "expected dtype"),
        ([], 0, "an object is expected"),
    ],
)
def test_a_table_that_contradicts_the_file_is_refused(
    tmp_path: Path, table: Any, data: int, message: str
) -> None:
    """Every byte belongs to exactly one tensor of the right size, or the file is refused."""
    path = write(tmp_path / "m.safetensors", table, bytes(data))
    with pytest.raises(ModelCorrupt, match=message) as caught:
        read_header(path)
    assert caught.value.path == str(path)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "too few"),
        (b"1234567", "too few"),
        (struct.pack("<Q", 0), "not valid JSON"),
        (struct.pack("<Q", 1 << 63) + b"{}", "header of"),
        (struct.pack("<Q", 200 << 20) + b"{}", "header of"),
        (struct.pack("<Q", 64) + b"{}", "header needs 72 bytes"),
        (struct.pack("<Q", 4) + b"\xff\xfe{}", "UTF"),
        (struct.pack("<Q", 5) + b"[[[[[", "not valid JSON"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (b"<!DOCTYPE html><html></html>", "web page"),
    ],
)
def test_something_else_is_named(tmp_path: Path, raw: bytes, message: str) -> None:
    """What is not a safetensors file is refused from its first bytes, saying what it is."""
    path = tmp_path / "m.safetensors"
    path.write_bytes(raw)
    with pytest.raises(ModelCorrupt, match=message):
        read_header(path)


def test_a_name_twice_is_refused(tmp_path: Path) -> None:
    """JSON readers keep the last of two equal keys; here it is an error."""
    one = json.dumps(entry("U8", [1], 0, 1))
    path = write(tmp_path / "m.safetensors", None, b"x", text=f'{{"a":{one},"a":{one}}}'.encode())
    with pytest.raises(ModelCorrupt, match="twice"):
        read_header(path)


def test_a_missing_file_a_folder_and_a_pipe_are_not_found(tmp_path: Path) -> None:
    """Only regular files are read, and a pipe does not block."""
    pipe = tmp_path / "pipe.safetensors"
    os.mkfifo(pipe)
    for path in (tmp_path / "none", tmp_path, pipe):
        with pytest.raises(ModelNotFound):
            read_header(path)


def test_a_link_is_followed(tmp_path: Path) -> None:
    """Download caches keep weights behind links."""
    blob = write(tmp_path / "blob", {"a": entry("U8", [1], 0, 1)}, b"x")
    link = tmp_path / "m.safetensors"
    link.symlink_to(blob)
    assert read_header(link).tensors[0].name == "a"
