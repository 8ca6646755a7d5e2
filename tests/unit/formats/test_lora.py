"""The check of a LoRA adapter: what passes it, and what is known of the file then."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgellm.errors import ModelCorrupt, ModelNotFound, ModelUnsupported
from edgellm.formats.gguf import read_header
from edgellm.formats.lora import checked_lora


@pytest.fixture
def llama(tiny_models):
    """A small dense model."""
    return tiny_models / "tiny-llama.gguf"


@pytest.mark.parametrize("kind", ["f32", "f16"])
@pytest.mark.parametrize("rank", [1, 4, 100])
def test_what_a_file_says(llama, tmp_path, lora_files, kind, rank):
    """Its alpha, its size, and the tensors it changes; a rank may exceed every width."""
    made = lora_files.adapter(llama, kind=kind, rank=rank, alpha=16.0)
    path = made.write(tmp_path / "adapter.gguf")
    header, info = checked_lora(path, read_header(llama))
    assert info.path == header.path == str(path)
    assert info.alpha == 16.0
    assert info.file_bytes == path.stat().st_size
    assert info.targets == tuple(sorted({name[:-7] for name in (t.name for t in made.tensors)}))
    assert len(info.targets) == 12
    assert info.warnings == ()


def test_an_adapter_without_alpha_is_added_as_it_is(llama, tmp_path, lora_files):
    """The engine leaves alpha / rank out when alpha is 0 or missing."""
    made = lora_files.adapter(llama).without(lora_files.ALPHA)
    assert checked_lora(made.write(tmp_path / "a.gguf"), read_header(llama))[1].alpha == 0.0


def test_ones_at_the_end_of_a_shape_mean_nothing(llama, tmp_path, lora_files):
    """As in ggml: (64, 4, 1, 1) is (64, 4)."""
    made = lora_files.adapter(llama)
    longer = tuple(replace(tensor, shape=(*tensor.shape, 1, 1)) for tensor in made.tensors)
    path = replace(made, tensors=longer).write(tmp_path / "a.gguf")
    assert len(checked_lora(path, read_header(llama))[1].targets) == 12


def test_an_embedding_of_its_own_may_be_changed(llama, tmp_path, lora_files):
    """Its A is looked up by token: (rank, tokens), and B is (rank, width)."""
    edits = lora_files.parse(llama)
    embedding = next(t for t in edits.tensors if t.name == "token_embd.weight")
    own = replace(embedding, name="output.weight")
    model = replace(edits, tensors=(*edits.tensors, own)).write(tmp_path / "untied.gguf")
    base = lora_files.adapter(llama)
    pair = (
        replace(base.tensors[0], name="token_embd.weight.lora_a", shape=(4, 512), data=bytes(8192)),
        replace(base.tensors[0], name="token_embd.weight.lora_b", shape=(4, 64), data=bytes(1024)),
    )
    path = replace(base, tensors=pair).write(tmp_path / "a.gguf")
    assert checked_lora(path, read_header(model))[1].targets == ("token_embd.weight",)
    flipped = (replace(pair[0], shape=(64, 4), data=bytes(1024)), pair[1])
    path = replace(base, tensors=flipped).write(tmp_path / "b.gguf")
    with pytest.raises(ModelCorrupt, match=r"it has to be \[4, 512\]"):
        checked_lora(path, read_header(model))


def test_a_missing_file_and_a_file_of_another_kind(llama, tmp_path):
    """Both errors name the file."""
    model = read_header(llama)
    with pytest.raises(ModelNotFound, match=r"gone\.gguf"):
        checked_lora(tmp_path / "gone.gguf", model)
    with pytest.raises(ModelUnsupported, match=r"'general\.type' is missing, not 'adapter'"):
        checked_lora(llama, model)
    other = tmp_path / "adapter_model.safetensors"
    other.write_bytes((2).to_bytes(8, "little") + b"{}" + bytes(64))
    with pytest.raises(ModelCorrupt, match="not a GGUF file"):
        checked_lora(other, model)


def test_every_truncation_is_an_error(llama, tmp_path, lora_files):
    """Of the header and of the weights."""
    path = lora_files.adapter(llama, endings=("attn_q.weight",)).write(tmp_path / "a.gguf")
    whole, model = path.read_bytes(), read_header(llama)
    for n in (*range(0, 900, 7), len(whole) // 2, len(whole) - 64):
        path.write_bytes(whole[:n])
        with pytest.raises((ModelCorrupt, ModelUnsupported)):
            checked_lora(path, model)
