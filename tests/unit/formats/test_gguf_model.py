"""model_info: what a header says of the model, and which contradictions stop it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest

from edgellm.errors import ModelCorrupt, ModelUnsupported
from edgellm.formats.gguf import read_header
from edgellm.formats.gguf_model import model_info

if TYPE_CHECKING:
    from pathlib import Path

    from edgellm.core import ModelInfo

GOOD: dict[str, Any] = {
    "llama.block_count": 2,
    "llama.context_length": 2048,
    "llama.embedding_length": 8,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "tokenizer.ggml.tokens": ["a", "b", "c"],
    "tokenizer.chat_template": "{{ messages }}",
    "general.name": "Tiny",
}


def describe(folder: Path, arch: str = "llama", **changes: Any) -> ModelInfo:
    """Write a model whose metadata is GOOD with changes (None removes a key), and read it."""
    path = folder / "tiny.gguf"
    out = gguf.GGUFWriter(str(path), arch)
    entries = {key.replace("llama.", f"{arch}."): value for key, value in GOOD.items()}
    entries |= {key.replace("__", "."): value for key, value in changes.items()}
    for key, value in entries.items():
        if isinstance(value, str):
            out.add_string(key, value)
        elif isinstance(value, list):
            out.add_array(key, value)
        elif isinstance(value, float):
            out.add_float32(key, value)
        elif value is not None:
            out.add_uint32(key, value)
    out.add_tensor("token_embd.weight", np.zeros((3, 8), np.float32))
    out.add_tensor("blk.0.attn_q.weight", np.zeros((8, 8), np.float16))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return model_info(read_header(path), path)


def test_a_model_is_described_by_its_own_metadata(tmp_path: Path):
    """Sizes come from the metadata, weights from the tensor table."""
    info = describe(tmp_path)
    assert info.architecture == "llama"
    assert info.name == "Tiny"
    assert (info.n_layers, info.n_ctx_train, info.n_embd) == (2, 2048, 8)
    assert (info.n_heads, info.n_kv_heads, info.n_vocab) == (4, 2, 3)
    assert info.n_params == 24 + 64
    assert info.weight_types == {"f32": 24, "f16": 64}
    assert info.chat_template == "{{ messages }}"
    assert info.memory == "dense"


def test_what_is_left_out_has_a_sensible_value(tmp_path: Path):
    """The file's name stands in for the model's, the embedding for the vocabulary."""
    info = describe(
        tmp_path,
        general__name=None,
        tokenizer__ggml__tokens=None,
        llama__attention__head_count_kv=None,
    )
    assert info.name == "tiny"
    assert info.n_vocab == 3
    assert info.n_kv_heads == 4


@pytest.mark.parametrize(
    ("arch", "key", "value", "memory"),
    [
        ("gemma3", "gemma3__attention__sliding_window", 512, "window"),
        ("llama", "llama__attention__sliding_window", 0, "dense"),
        ("mamba", "mamba__ssm__state_size", 16, "recurrent"),
        ("rwkv7", "rwkv7__wkv__head_size", 64, "recurrent"),
        ("jamba", "jamba__ssm__state_size", 16, "hybrid"),
        ("lfm2", "lfm2__shortconv__l_cache", 3, "hybrid"),
        ("deepseek2", "deepseek2__attention__kv_lora_rank", 64, "mla"),
        ("minimax-m3", "minimax-m3__attention__indexer__top_k", 4, "indexer"),
    ],
)
def test_the_kind_of_memory_is_told_from_the_keys(
    tmp_path: Path, arch: str, key: str, value: int, memory: str
):
    """Each memory kind shows in the metadata of its architecture."""
    heads = 0 if memory == "recurrent" else 4
    info = describe(tmp_path, arch, **{key: value, f"{arch}__attention__head_count": heads})
    assert info.memory == memory


def test_a_count_for_every_layer_gives_the_largest(tmp_path: Path):
    """Hybrid models have no key heads in some layers."""
    info = describe(tmp_path, llama__attention__head_count_kv=[0, 2, 0])
    assert info.n_kv_heads == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"llama__block_count": 10**9}, "'llama.block_count': 1000000000 layers"),
        ({"llama__block_count": 0}, "0 is not between 1"),
        ({"llama__block_count": None}, "'llama.block_count': is missing"),
        ({"llama__context_length": "long"}, "must be a whole number"),
        ({"llama__embedding_length": 8.0}, "must be a whole number"),
        ({"llama__attention__head_count": 0}, "no attention heads"),
        ({"llama__context_length": (1 << 32) - 1}, "is not between"),
    ],
)
def test_a_contradiction_is_refused_by_key(tmp_path: Path, changes: dict[str, Any], message: str):
    """The error names the key, so that nobody loops over it or divides by it."""
    with pytest.raises(ModelCorrupt, match=message):
        describe(tmp_path, **changes)


def test_a_part_of_a_model_and_an_adapter_are_no_model(tmp_path: Path):
    """One part of several would load or be named as if it were the whole."""
    with pytest.raises(ModelUnsupported, match="one of 3 parts"):
        describe(tmp_path, split__count=3)
    with pytest.raises(ModelUnsupported, match="'adapter'"):
        describe(tmp_path, general__type="adapter")
