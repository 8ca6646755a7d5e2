"""read_header against files written by gguf-py: values, tables, speed, lazy strings."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import gguf
import numpy as np
import pytest

from edgellm import ggml_types
from edgellm.errors import ModelNotFound, ModelUnsupported
from edgellm.formats.gguf import read_header

if TYPE_CHECKING:
    from pathlib import Path


def writer(path: Path, arch: str = "llama") -> gguf.GGUFWriter:
    """Start a file."""
    return gguf.GGUFWriter(str(path), arch)


def finish(out: gguf.GGUFWriter) -> None:
    """Write everything and close."""
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Write a file with every kind of value and two tensors."""
    path = tmp_path / "m.gguf"
    out = writer(path)
    out.add_uint8("a.u8", 200)
    out.add_int8("a.i8", -5)
    out.add_uint64("a.u64", (1 << 64) - 1)
    out.add_int64("a.i64", -(1 << 63))
    out.add_float32("a.f32", 0.5)
    out.add_float64("a.f64", 0.1)
    out.add_bool("a.yes", True)
    out.add_string("a.text", "값 👋")
    out.add_array("a.ints", [1, -2, 3])
    out.add_array("a.flags", [True, False])
    out.add_array("a.words", ["", "two", "세"])
    out.add_tensor("w", np.arange(6, dtype=np.float32).reshape(2, 3))
    blocks = np.arange(68, dtype=np.uint8).reshape(2, 34)
    out.add_tensor("q", blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    finish(out)
    return path


def test_every_kind_of_value_is_read_as_it_was_written(model: Path):
    """Scalars become Python values, arrays of numbers numpy, arrays of strings a sequence."""
    meta = read_header(model).metadata
    scalars = {"u8": 200, "i8": -5, "u64": (1 << 64) - 1, "i64": -(1 << 63), "f32": 0.5}
    for name, value in {**scalars, "f64": 0.1, "yes": True, "text": "값 👋"}.items():
        assert meta[f"a.{name}"] == value
        assert type(meta[f"a.{name}"]) is type(value)
    assert meta["a.ints"].tolist() == [1, -2, 3]
    assert meta["a.flags"].tolist() == [True, False]
    words = meta["a.words"]
    assert list(words) == ["", "two", "세"]
    assert words[-1] == "세"
    assert words[:2] == ["", "two"]
    assert words.raw(2) == "세".encode()
    assert len(words) == 3
    with pytest.raises(IndexError):
        words.raw(3)


def test_the_tensor_table_leads_to_the_bytes(model: Path):
    """Shape is in GGUF order, and offset and size cut out exactly what was written."""
    header = read_header(model)
    by_name = {t.name: t for t in header.tensors}
    content = model.read_bytes()
    assert by_name["w"].shape == (3, 2)
    assert by_name["q"].shape == (32, 2)
    assert by_name["q"].type.name == "q8_0"
    start = header.data_start + by_name["q"].offset
    assert content[start : start + by_name["q"].n_bytes] == bytes(range(68))
    assert header.file_bytes == len(content)
    assert header.header_bytes <= header.data_start


def test_text_that_is_no_utf8_is_shown_and_kept(tmp_path: Path):
    """A token may be a lone byte: the text shows a replacement, the bytes stay."""
    path = tmp_path / "m.gguf"
    out = writer(path)
    out.add_array("t", [b"\xff", b"ok"])
    finish(out)
    words = read_header(path).metadata["t"]
    assert words[0] == "\ufffd"
    assert words.raw(0) == b"\xff"


def test_a_link_is_followed_and_a_folder_is_not_a_model(model: Path, tmp_path: Path):
    """Download caches are made of links; a folder gives an error, not a traceback."""
    link = tmp_path / "link.gguf"
    link.symlink_to(model)
    assert read_header(link).tensors == read_header(model).tensors
    with pytest.raises(ModelUnsupported):
        read_header(tmp_path)
    with pytest.raises(ModelNotFound):
        read_header(tmp_path / "absent.gguf")


def test_a_large_vocabulary_is_read_without_decoding_it(tmp_path: Path):
    """262,144 tokens take little processor time, because strings are only stepped over."""
    path = tmp_path / "big.gguf"
    out = writer(path)
    out.add_array("tokenizer.ggml.tokens", [f"token{i}" for i in range(262_144)])
    finish(out)
    start = time.process_time()
    header = read_header(path)
    spent_s = time.process_time() - start
    assert header.metadata["tokenizer.ggml.tokens"][262_143] == "token262143"
    assert spent_s < 0.5  # a quarter of it on an idle machine


def test_the_type_table_agrees_with_gguf_py():
    """Block sizes and bytes are gguf-py's, but for q8_1, which ggml itself made smaller."""
    for entry, (block, n_bytes) in gguf.GGML_QUANT_SIZES.items():
        ours = ggml_types.TYPES_BY_ID[entry.value]
        assert ours.name.lower() == entry.name.lower()
        assert ours.block_size == block
        if ours.name != "q8_1":
            assert ours.block_bytes == n_bytes
    assert len(ggml_types.TYPES_BY_ID) == len(ggml_types.TYPES_BY_NAME)


@pytest.mark.model
def test_the_header_of_a_real_model_agrees_with_gguf_py(smollm2_gguf: Path):
    """Every tensor of SmolLM2 has the place and size that gguf-py finds."""
    header = read_header(smollm2_gguf)
    theirs = gguf.GGUFReader(smollm2_gguf)
    assert header.data_start == theirs.data_offset
    assert [(t.name, t.n_bytes, header.data_start + t.offset) for t in header.tensors] == [
        (t.name, int(t.n_bytes), int(t.data_offset)) for t in theirs.tensors
    ]
    tokens = theirs.fields["tokenizer.ggml.tokens"].contents()
    assert list(header.metadata["tokenizer.ggml.tokens"]) == tokens
