"""`edgellm info`: model files, checkpoints, the installation."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import gguf
import numpy as np
import pytest

from edgellm.units import format_bytes

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any


@pytest.fixture
def model(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Write a GGUF with two layers, four heads over two keys, and weights of two types.

    Its parameter is the generation of its weights.
    """
    path = tmp_path / "tiny.gguf"
    out = gguf.GGUFWriter(str(path), "orion")  # whose tensors are not counted
    out.add_name("Ti\x1bny")
    out.add_block_count(2)
    out.add_context_length(128)
    out.add_embedding_length(32)
    out.add_head_count(4)
    out.add_head_count_kv(2)
    out.add_tokenizer_model("gpt2")
    out.add_token_list(["a", "b", "c"])
    out.add_bos_token_id(0)
    out.add_eos_token_id(0)
    out.add_chat_template("{{ messages }}")
    if hasattr(request, "param"):
        out.add_uint32("edgellm.generation", request.param)
    out.add_tensor("token_embd.weight", np.zeros((3, 32), np.float32))
    blocks = np.zeros((3, 34), np.uint8)
    out.add_tensor("output.weight", blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return path


def test_facts_of_a_model(cli: Any, model: Path) -> None:
    """One `label: value` a line, from the header alone."""
    result = cli("info", model)
    assert (result.code, result.err) == (0, "")
    lines = dict(line.split(":", 1) for line in result.out.splitlines())
    found = {label: value.strip() for label, value in lines.items()}
    assert found["architecture"] == "orion"
    assert (found["parameters"], found["layers"], found["context"]) == ("192", "2", "128")
    assert (found["vocabulary"], found["memory"], found["chat template"]) == ("3", "dense", "yes")
    assert found["heads"] == "4 query, 2 key-value (GQA, 2 queries a key)"
    assert sorted(found["weights"].split(", ")) == [
        "f32 50.0 % at 32.00 bits",
        "q8_0 50.0 % at 8.50 bits",
    ]
    assert found["size"] == format_bytes(model.stat().st_size)
    assert found["bits per weight"] == "20.25"


def test_facts_as_json(cli: Any, model: Path) -> None:
    """The same facts as one object."""
    [facts] = cli("info", model, "--json").lines
    assert facts["type"] == "info"
    assert facts["weights"] == {"f32": 96, "q8_0": 96}
    assert facts["heads"] == {"query": 4, "key_value": 2}
    assert facts["file_bytes"] == model.stat().st_size
    assert "generation" not in facts


@pytest.mark.parametrize(("model", "times"), [(2, "twice"), (3, "3 times")], indirect=["model"])
def test_weights_quantised_again(cli: Any, model: Path, times: str) -> None:
    """A file made from quantised weights says so; one made from a checkpoint says nothing."""
    lines = dict(line.split(":", 1) for line in cli("info", model).out.splitlines())
    [facts] = cli("info", model, "--json").lines
    said = f"{facts['generation']}: weights went through quantisation {times}"
    assert lines["generation"].strip() == said


def test_cut_file_is_corrupt(cli: Any, model: Path) -> None:
    """A file with bytes missing: exit 2 and how many."""
    model.write_bytes(model.read_bytes()[:-100])
    result = cli("info", model)
    assert (result.code, result.out) == (2, "")
    assert "bytes are missing" in result.err


def test_an_empty_name_is_not_the_current_folder(cli: Any) -> None:
    """A script's empty variable is a slip, here and where a source is converted."""
    for words in (["info", ""], ["convert", "", "-o", "m.gguf", "--bits", "8"]):
        result = cli(*words)
        assert (result.code, result.out) == (2, "")
        assert "the name is empty" in result.err


def test_facts_of_the_installation(
    cli: Any, edgellm_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without FILE: versions, engines or how to get them, kernels and home; no engine is loaded."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    before = "llama_cpp" in sys.modules
    result = cli("info")
    assert result.code == 0
    assert "pip install 'llama-cpp-python>=0.3.36,<0.4'" in result.out
    assert "pip install onnx onnxruntime" in result.out
    assert str(edgellm_home) in result.out
    assert "kernels:" in result.out
    assert ("llama_cpp" in sys.modules) == before
