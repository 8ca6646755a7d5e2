"""The same types and bytes as llama.cpp's own quantiser, for every type and many architectures."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edgellm.converters import requantize
from edgellm.converters.choice import ModelFacts, choose_types
from edgellm.converters.gguf_head import pack_head, padding
from edgellm.converters.presets import PRESETS
from edgellm.formats.gguf import read_header
from edgellm.formats.gguf_model import model_info
from edgellm.kernels.ggml import GgmlType
from edgellm.runtime.conversion import ConvertOptions, convert

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from edgellm.converters.gguf_head import Packable

    Reference = Callable[[Path, list[str]], dict[str, Path]]

# In a process of its own: what llama.cpp cannot read, it may abort on.
QUANTIZE = """
import json, sys, llama_cpp
quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
llama_cpp.llama_log_set(quiet, None)
source, jobs = sys.argv[1], json.loads(sys.argv[2])
for out, file_type in jobs:
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.nthread, params.allow_requantize = file_type, 1, True
    if llama_cpp.llama_model_quantize(source.encode(), out.encode(), params):
        sys.exit(f"llama_model_quantize failed for {out}")
"""
TINY = (
    *("llama", "qwen3moe", "deepseek2", "gemma3", "mamba", "mamba2", "rwkv7", "lfm2"),
    *("granitehybrid", "falcon-h1", "jamba", "qwen35", "qwen3next", "deepseek32"),
    *("minimax-m3", "dots3note", "qwen4exp", "deepseek4"),
)
# name -> (architecture, layers, width, experts, query heads for one key head, has an output)
WIDE = {
    "tied": ("llama", 17, 256, 0, 4, False),
    "untied": ("llama", 16, 512, 0, 2, True),
    "70b": ("llama", 80, 256, 0, 8, True),
    "eight-experts": ("llama", 16, 256, 8, 4, True),
    "falcon": ("falcon", 33, 256, 0, 1, True),
    "rows-of-32s": ("llama", 9, 288, 0, 4, True),
    "odd-rows": ("llama", 9, 40, 0, 4, False),
}


@pytest.fixture
def quantised_by_llama_cpp(tmp_path: Path) -> Reference:
    """Quantise a GGUF with llama.cpp into each of some types; gives the files by type."""

    def make(source: Path, names: list[str]) -> dict[str, Path]:
        made = {name: tmp_path / f"theirs-{name}.gguf" for name in names}
        jobs = [[str(path), PRESETS[name].file_type] for name, path in made.items()]
        command = [sys.executable, "-c", QUANTIZE, str(source), json.dumps(jobs)]
        subprocess.run(command, check=True, capture_output=True, timeout=300)
        return made

    return make


@pytest.fixture(autouse=True)
def any_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let models pass that only a quantiser takes: few rows, no vocabulary."""

    def lenient(path: Path) -> tuple[Any, Any]:
        header = read_header(path)
        return header, model_info(header, path)

    monkeypatch.setattr(requantize, "checked_model", lenient)


def tensors(path: Path) -> dict[str, tuple[tuple[int, ...], str, bytes]]:
    """Read every tensor; llama.cpp leaves out trailing dimensions of one element."""
    header, data = read_header(path), path.read_bytes()
    found = {}
    for t in header.tensors:
        shape = t.shape
        while len(shape) > 1 and shape[-1] == 1:
            shape = shape[:-1]
        start = header.data_start + t.offset
        found[t.name] = (shape, t.type.name, data[start : start + t.n_bytes])
    return found


def assert_equal_in_every_type(source: Path, folder: Path, reference: Reference) -> None:
    theirs = reference(source, list(PRESETS))
    for name, path in theirs.items():
        out = folder / "ours.gguf"
        convert(ConvertOptions(source, out, name, n_threads=2, overwrite=True, prove=False))
        ours, expected = tensors(out), tensors(path)
        assert ours.keys() == expected.keys()
        wrong = [
            (key, ours[key][1], expected[key][1]) for key in ours if ours[key] != expected[key]
        ]
        assert wrong == [], name
        metadata = (read_header(p).metadata for p in (out, path))
        assert len({m["general.file_type"] for m in metadata}) == 1


def make_wide(path: Path, case: str) -> Path:
    """Write a GGUF with the names and widths of a real model, and very few rows."""
    architecture, n_layers, width, n_experts, heads_per_key, has_output = WIDE[case]
    values: dict[str, Packable] = {
        "general.architecture": architecture,
        f"{architecture}.block_count": n_layers,
        f"{architecture}.context_length": 128,
        f"{architecture}.embedding_length": width,
        f"{architecture}.feed_forward_length": width,
        f"{architecture}.attention.head_count": 8,
        f"{architecture}.attention.head_count_kv": 8 // heads_per_key,
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{architecture}.attention.layer_norm_epsilon": 1e-5,
        f"{architecture}.vocab_size": 6,
        f"{architecture}.rope.dimension_count": width // 8,
        "tokenizer.ggml.model": "none",
    }
    if n_experts:
        values |= {f"{architecture}.expert_count": n_experts}
        values |= {f"{architecture}.expert_used_count": 2}
    attention = ("qkv", "output") if architecture == "falcon" else ("q", "k", "v", "output")
    names = [f"attn_{name}" for name in attention]
    names += [f"ffn_{n}{'_exps' if n_experts else ''}" for n in ("gate", "up", "down")]
    shapes = {"token_embd": (6, width), "output_norm": (width,)}
    shapes |= {"output": (6, width)} if has_output else {}
    for i in range(n_layers):
        shapes[f"blk.{i}.attn_norm"] = (width,)
        if n_experts:
            shapes[f"blk.{i}.ffn_gate_inp"] = (n_experts, width)
        for name in names:
            experts = (n_experts,) if name.endswith("_exps") else ()
            shapes[f"blk.{i}.{name}"] = (*experts, 2, width)
    rng = np.random.default_rng(7)
    table, data = [], bytearray()
    for name, shape in shapes.items():
        raw = rng.normal(scale=0.05, size=shape).astype("<f4").tobytes()
        table.append((f"{name}.weight", shape, int(GgmlType.F32), len(raw)))
        data += raw + bytes(padding(len(raw)))
    path.write_bytes(pack_head(values, table) + data)
    return path


@pytest.mark.parametrize("case", WIDE)
def test_mixes_are_llama_cpps(tmp_path: Path, quantised_by_llama_cpp: Reference, case: str) -> None:
    """Deep, wide and narrow models, experts, falcon: each tensor has llama.cpp's type and bytes."""
    source = make_wide(tmp_path / "source.gguf", case)
    assert_equal_in_every_type(source, tmp_path, quantised_by_llama_cpp)


@pytest.mark.parametrize("name", TINY)
def test_every_architecture_is_quantised_as_llama_cpp_does(
    tmp_path: Path, tiny_models: Path, quantised_by_llama_cpp: Reference, name: str
) -> None:
    """What stays as it is, what falls back, and all bytes: for 18 architectures of every kind."""
    source = tiny_models / f"tiny-{name}.gguf"
    assert_equal_in_every_type(source, tmp_path, quantised_by_llama_cpp)


@pytest.mark.parametrize("name", ["q4_0", "q4_k", "q6_k", "bf16"])
def test_a_quantised_source_gives_what_llama_cpp_makes_of_it(
    tmp_path: Path, quantised_by_llama_cpp: Reference, name: str
) -> None:
    """Blocks are expanded by the same code, and those of the wanted type copied."""
    plain = make_wide(tmp_path / "plain.gguf", "untied")
    source = quantised_by_llama_cpp(plain, [name])[name].rename(tmp_path / "source.gguf")
    assert_equal_in_every_type(source, tmp_path, quantised_by_llama_cpp)


def test_the_mix_of_a_known_model_is_the_known_one() -> None:
    """Q4_K_M of 30 layers 576 wide, as SmolLM2-135M: llama.cpp's log of it, written down."""
    shapes = {"token_embd.weight": (49152, 576), "output_norm.weight": (576,)}
    for i in range(30):
        shapes |= {f"blk.{i}.attn_{name}.weight": (576, 576) for name in ("q", "output")}
        shapes |= {f"blk.{i}.attn_{name}.weight": (192, 576) for name in "kv"}
        shapes |= {f"blk.{i}.ffn_{name}.weight": (1536, 576) for name in ("gate", "up")}
        shapes |= {f"blk.{i}.ffn_down.weight": (576, 1536), f"blk.{i}.ffn_norm.weight": (576,)}
    facts = ModelFacts("llama", n_layers=30, n_heads=9, n_kv_heads=3)
    found = choose_types(shapes.items(), facts, PRESETS["q4_k_m"])
    fine = {0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 26, 27, 28, 29}
    for i in range(30):
        down, value = (found[f"blk.{i}.{name}.weight"] for name in ("ffn_down", "attn_v"))
        assert down.type is (GgmlType.Q6_K if i in fine else GgmlType.Q4_K)
        assert value.type is (GgmlType.Q8_0 if i in fine else GgmlType.Q5_0)
        assert found[f"blk.{i}.attn_q.weight"].type is GgmlType.Q5_0
    assert found["token_embd.weight"].type is GgmlType.Q8_0
    assert len(found) == 211
    assert sum(choice.type is not choice.wanted for choice in found.values()) == 180
