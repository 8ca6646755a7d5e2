"""A conversion decided before a byte is written."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

import pytest

from edgellm.converters.plan import make_plan
from edgellm.errors import (
    ConvertError,
    ModelCorrupt,
    ModelUnsupported,
    TensorMismatch,
    UnknownArchitecture,
)
from edgellm.formats.safetensors import read_header
from edgellm.kernels.ggml import GgmlType

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Make = Callable[..., Path]

UNTIED = "llama3-untied-sharded-bf16"
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def rewrite(path: Path, change: Callable[[dict[str, tuple[str, list[int], bytes]]], None]) -> None:
    """Read a safetensors file, let `change` edit its tensors, write it again."""
    data = path.read_bytes()
    tensors = {
        t.name: (t.dtype, list(t.shape), data[t.offset : t.offset + t.n_bytes])
        for t in read_header(path).tensors
    }
    change(tensors)
    table: dict[str, Any] = {}
    end = 0
    for name, (dtype, shape, raw) in tensors.items():
        table[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(raw)]}
        end += len(raw)
    text = json.dumps(table).encode()
    path.write_bytes(
        struct.pack("<Q", len(text)) + text + b"".join(raw for _, _, raw in tensors.values())
    )


def types(folder: Path, type_name: str) -> dict[str, GgmlType]:
    return {tensor.name: tensor.type for tensor in make_plan(folder, type_name).tensors}


def test_types_of_a_quantised_model(checkpoint: Make) -> None:
    """Matrices get the type asked for, vectors stay float32, a Q4_0 output matrix is Q8_0."""
    found = types(checkpoint(UNTIED), "q4_0")
    assert found["blk.0.attn_q.weight"] is GgmlType.Q4_0
    assert found["token_embd.weight"] is GgmlType.Q4_0
    assert found["output.weight"] is GgmlType.Q8_0
    assert found["blk.1.ffn_norm.weight"] is GgmlType.F32
    assert found["rope_freqs.weight"] is GgmlType.F32


def test_a_tied_embedding_is_as_fine_as_an_output_matrix(checkpoint: Make) -> None:
    """Where the embedding is the output too, Q4_0 takes Q8_0 for it."""
    found = types(checkpoint(), "q4_0")
    assert found["token_embd.weight"] is GgmlType.Q8_0
    assert "output.weight" not in found


def test_rows_that_fill_no_block_stay_f16_and_it_is_said(checkpoint: Make) -> None:
    """A row length that is no multiple of 32 falls back to f16 with a warning."""
    folder = checkpoint(config={"intermediate_size": 40})

    def narrow(tensors: dict[str, tuple[str, list[int], bytes]]) -> None:
        for name in [n for n in tensors if ".mlp." in n]:
            shape = [40 if n == 64 else n for n in tensors[name][1]]
            tensors[name] = ("BF16", shape, bytes(2 * shape[0] * shape[1]))

    rewrite(folder / "model.safetensors", narrow)
    plan = make_plan(folder, "q8_0")
    found = {tensor.name: tensor.type for tensor in plan.tensors}
    assert found["blk.0.ffn_down.weight"] is GgmlType.F16
    assert found["blk.0.ffn_up.weight"] is GgmlType.Q8_0
    assert any("f16, not q8_0: their rows" in warning for warning in plan.warnings)
    assert [(f.wanted, f.stored, f.n_tensors) for f in plan.fallbacks] == [("q8_0", "f16", 1)]


def test_shards_are_found_through_the_index_or_without(checkpoint: Make) -> None:
    """An index names the files; without one, every safetensors file of the folder counts."""
    folder = checkpoint(UNTIED)
    with_index = make_plan(folder, "f16")
    (folder / "model.safetensors.index.json").unlink()
    for path in list(folder.glob("*.safetensors")):
        path.rename(path.with_name("other-" + path.name))
    without = make_plan(folder, "f16")
    assert with_index.head == without.head
    assert with_index.n_bytes == without.n_bytes


def test_missing_shards_are_all_named(checkpoint: Make) -> None:
    """Every file the index wants and the folder lacks, in one message."""
    folder = checkpoint(UNTIED)
    for path in folder.glob("*.safetensors"):
        path.unlink()
    with pytest.raises(ModelCorrupt, match=r"2 of 2 .*00001-of.*00002-of"):
        make_plan(folder, "f16")


@pytest.mark.parametrize("name", ["../outside.safetensors", "a/b.safetensors", "..", "x.bin"])
def test_an_index_cannot_name_a_file_elsewhere(checkpoint: Make, name: str) -> None:
    """A shard is a file of the same folder."""
    folder = checkpoint(UNTIED)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {HEAD: name}}))
    with pytest.raises(ModelCorrupt, match="same folder"):
        make_plan(folder, "f16")


def test_pickles_are_not_opened(checkpoint: Make) -> None:
    """A folder with nothing but pickles is refused with the reason."""
    folder = checkpoint()
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelUnsupported, match="run code"):
        make_plan(folder, "f16")


def test_missing_and_unknown_tensors_are_named(checkpoint: Make) -> None:
    """Names must agree with the family's recipe exactly."""
    folder = checkpoint()

    def rename(tensors: dict[str, tuple[str, list[int], bytes]]) -> None:
        tensors["model.layers.0.self_attn.q_proj.lora"] = tensors.pop("model.norm.weight")

    rewrite(folder / "model.safetensors", rename)
    with pytest.raises(TensorMismatch, match=r"missing model\.norm\.weight; unknown .*lora"):
        make_plan(folder, "f16")


def test_more_layers_than_the_file_has(checkpoint: Make) -> None:
    """The first missing tensor is named."""
    with pytest.raises(TensorMismatch, match=r"missing model\.layers\.1\.input_layernorm"):
        make_plan(checkpoint(config={"num_hidden_layers": 12}), "f16")


def test_shapes_follow_the_configuration(checkpoint: Make) -> None:
    """A vocabulary size that is not the embedding's is a mismatch that shows both."""
    with pytest.raises(TensorMismatch, match=r"\[384, 32\], config.json means \[400, 32\]"):
        make_plan(checkpoint(config={"vocab_size": 400}), "f16")


def test_quantised_tensors_are_refused(checkpoint: Make) -> None:
    """An integer tensor means that the checkpoint is quantised already."""
    folder = checkpoint()

    def quantise(tensors: dict[str, tuple[str, list[int], bytes]]) -> None:
        _, shape, raw = tensors[EMBEDDING]
        tensors[EMBEDDING] = ("I8", shape, raw[::2])

    rewrite(folder / "model.safetensors", quantise)
    with pytest.raises(ModelUnsupported, match="dtype I8"):
        make_plan(folder, "f16")


def head_like_embedding(tensors: dict[str, tuple[str, list[int], bytes]]) -> None:
    tensors[HEAD] = tensors[EMBEDDING]


def another_head(tensors: dict[str, tuple[str, list[int], bytes]]) -> None:
    dtype, shape, raw = tensors[EMBEDDING]
    tensors[HEAD] = (dtype, shape, raw[:-2] + b"\0\0")


@pytest.mark.parametrize(
    ("flag", "change", "has_output", "warns"),
    [
        (True, None, False, False),
        (..., None, False, True),
        (True, head_like_embedding, False, False),
        (True, another_head, True, True),
        (False, another_head, True, False),
        (False, head_like_embedding, True, False),
    ],
)
def test_output_matrix_is_shared_only_when_that_is_right(
    checkpoint: Make, flag: Any, change: Any, has_output: bool, warns: bool
) -> None:
    """The flag, the tensors and their bytes decide together; a doubtful case is said aloud."""
    folder = checkpoint(config={"tie_word_embeddings": flag})
    if change is not None:
        rewrite(folder / "model.safetensors", change)
    plan = make_plan(folder, "f16")
    assert ("output.weight" in {tensor.name for tensor in plan.tensors}) == has_output
    assert any("lm_head" in warning for warning in plan.warnings) == warns


def test_untied_without_a_head_is_refused(checkpoint: Make) -> None:
    """Using the embedding all the same would give wrong answers."""
    with pytest.raises(TensorMismatch, match=r"lm_head\.weight is missing"):
        make_plan(checkpoint(config={"tie_word_embeddings": False}), "f16")


def test_order_of_checks_puts_the_cheap_ones_first(checkpoint: Make) -> None:
    """An unknown architecture is reported before a broken tokenizer."""
    folder = checkpoint(config={"architectures": ["OtherForCausalLM"]}, tokenizer=b"{")
    with pytest.raises(UnknownArchitecture):
        make_plan(folder, "f16")


def test_licence_of_the_card_goes_into_the_file(checkpoint: Make) -> None:
    """The model card's licence is carried; the folder's name is not."""
    folder = checkpoint()
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n# A model\n")
    plan = make_plan(folder, "f16")
    assert plan.key_values["general.license"] == "apache-2.0"
    assert "general.name" not in plan.key_values


def test_text_that_is_no_unicode_is_refused(checkpoint: Make) -> None:
    """A lone surrogate in the vocabulary cannot be written."""
    folder = checkpoint(tokenizer_config={"chat_template": "\ud800"})
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(ConvertError, match="chat_template cannot be written"):
        make_plan(folder, "f16")
