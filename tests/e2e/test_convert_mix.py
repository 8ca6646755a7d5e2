"""A checkpoint wide enough for blocks of 256, as Q4_K_M: the types, the bytes, and that it runs."""

from __future__ import annotations

import json
import math
import shutil
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edgellm.engines.base import EngineSettings
from edgellm.engines.llamacpp import LlamaCppEngine
from edgellm.evaluate.divergence import kl_divergence
from edgellm.formats.gguf import read_header
from edgellm.kernels.ggml import GgmlType, quantize
from edgellm.runtime.conversion import ConvertOptions, convert

if TYPE_CHECKING:
    from numpy.typing import NDArray

CHECKPOINTS = Path(__file__).resolve().parents[1] / "data" / "checkpoints"
TINY = CHECKPOINTS / "llama3-untied-sharded-bf16"
N_LAYERS, WIDTH = 4, 256
# Layers whose values and downs llama.cpp keeps finer, of four: the last eighth, and every third.
FINE = {2, 3}
EXACT = EngineSettings(kv_type="f32", flash_attention="off", n_threads=2, n_gpu_layers=0)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a tied llama checkpoint, 256 wide, of small random bf16 weights."""
    folder = tmp_path_factory.mktemp("wide") / "checkpoint"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(TINY / name, folder)
    config = json.loads((TINY / "config.json").read_text(encoding="utf-8"))
    config |= {"hidden_size": WIDTH, "intermediate_size": WIDTH, "num_hidden_layers": N_LAYERS}
    config |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
    config |= {"tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    rows = {
        f"self_attn.{name}_proj": n for name, n in zip("qkvo", (256, 128, 128, 256), strict=True)
    }
    rows |= {f"mlp.{name}_proj": WIDTH for name in ("gate", "up", "down")}
    shapes = {"model.embed_tokens": (384, WIDTH), "model.norm": (WIDTH,)}
    for i in range(N_LAYERS):
        at = f"model.layers.{i}."
        shapes |= {f"{at}{name}": (n, WIDTH) for name, n in rows.items()}
        shapes |= {f"{at}{n}_layernorm": (WIDTH,) for n in ("input", "post_attention")}
    rng = np.random.default_rng(5)
    table: dict[str, Any] = {}
    data = bytearray()
    for name, shape in shapes.items():
        x = rng.normal(scale=0.06, size=shape) if len(shape) > 1 else np.ones(shape)
        raw = (x.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
        span = [len(data), len(data) + len(raw)]
        table[f"{name}.weight"] = {"dtype": "BF16", "shape": shape, "data_offsets": span}
        data += raw
    text = json.dumps(table).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    return folder


def tensors(path: Path) -> dict[str, tuple[GgmlType, tuple[int, ...], bytes]]:
    header, data = read_header(path), path.read_bytes()
    found = {}
    for t in header.tensors:
        start = header.data_start + t.offset
        found[t.name] = (GgmlType(t.type.id), t.shape, data[start : start + t.n_bytes])
    return found


def logits(path: Path) -> NDArray[np.float32]:
    engine = LlamaCppEngine(path, EXACT)
    try:
        engine.reserve(8)
        return engine.decode([5, 80, 200, 17, 300, 9, 41, 120], "all").copy()
    finally:
        engine.close()


def expected_type(name: str) -> GgmlType:
    if name == "token_embd.weight":  # it is the output matrix, too
        return GgmlType.Q6_K
    if not name.startswith("blk.") or "norm" in name:
        return GgmlType.F32
    is_fine = int(name.split(".")[1]) in FINE and ("attn_v" in name or "ffn_down" in name)
    return GgmlType.Q6_K if is_fine else GgmlType.Q4_K


def test_q4_k_m_of_a_checkpoint(tmp_path: Path, wide: Path) -> None:
    """Each tensor has its type and is ggml's quantisation of the weights; the engine runs it."""
    plain = convert(ConvertOptions(wide, tmp_path / "f32.gguf", "f32"))
    mixed = convert(ConvertOptions(wide, tmp_path / "q4_k_m.gguf", "q4_k_m"))
    source, found = tensors(plain.path), tensors(mixed.path)
    assert list(found) == list(source)
    for name, (ggml_type, shape, raw) in found.items():
        assert ggml_type is expected_type(name), name
        weights = np.frombuffer(source[name][2], "<f4")
        rows = weights.reshape(math.prod(shape[1:]), shape[0])
        assert raw == quantize(rows, ggml_type).tobytes(), name
    assert mixed.fallbacks == ()
    assert 4.5 < mixed.bits_per_weight < 5.3
    expected, answer = logits(plain.path), logits(mixed.path)
    assert 0 < kl_divergence(expected, answer).mean() < 0.05


@pytest.mark.parametrize(
    ("type_name", "bits"),
    [("q8_0", 8.5), ("q6_k", 6.5625), ("q5_k", 5.5), ("q5_1", 6), ("q5_0", 5.5), ("q4_1", 5)],
)
def test_effective_bits_are_those_of_the_type(
    tmp_path: Path, wide: Path, type_name: str, bits: float
) -> None:
    """All matrices but the embedding have the type; what is measured is what is said."""
    result = convert(ConvertOptions(wide, tmp_path / "m.gguf", type_name, prove=False))
    found = tensors(result.path)
    body = [t for name, t in found.items() if name.startswith("blk.") and "norm" not in name]
    n = sum(math.prod(shape) for _, shape, _ in body)
    assert 8 * sum(len(raw) for _, _, raw in body) / n == bits
    whole = sum(math.prod(shape) for _, shape, _ in found.values())
    whole -= math.prod(found["rope_freqs.weight"][1]) if "rope_freqs.weight" in found else 0
    data = sum(len(raw) for _, _, raw in found.values())
    assert result.bits_per_weight == pytest.approx(8 * data / whole)
