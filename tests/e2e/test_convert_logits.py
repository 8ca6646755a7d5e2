"""Converted checkpoints compute what torch computed; seeded faults do not.

The reference logits are committed beside the checkpoints (`make_checkpoints.py` there).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import edgellm
from edgellm.converters import write
from edgellm.engines.base import EngineSettings
from edgellm.engines.llamacpp import LlamaCppEngine
from edgellm.evaluate.divergence import compare, kl_divergence, windows
from edgellm.formats.safetensors import read_header
from edgellm.runtime.conversion import ConvertOptions, convert

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[2]
CHECKPOINTS = ROOT / "tests" / "data" / "checkpoints"
NAMES = sorted(path.name for path in CHECKPOINTS.iterdir() if path.is_dir())
LLAMA3 = "llama3-untied-sharded-bf16"
MAX_KLD_F32 = 1e-6
MAX_KLD_BF16 = 1e-3
EXACT = EngineSettings(kv_type="f32", flash_attention="off", n_threads=2, n_gpu_layers=0)


def run(folder: Path, out: Path, type_name: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Convert, decode the committed tokens, return torch's logits and ours."""
    convert(ConvertOptions(folder, out, type_name, overwrite=True))
    with np.load(folder / "logits.npz") as stored:
        tokens, rows, expected = (stored[key] for key in ("tokens", "rows", "logits"))
    engine = LlamaCppEngine(out, EXACT)
    try:
        engine.reserve(len(tokens))
        found = engine.decode(tokens.tolist(), "all")[rows].copy()
    finally:
        engine.close()
    return expected, found


@pytest.mark.parametrize("name", NAMES)
def test_float32_is_torchs_answer(tmp_path: Path, name: str) -> None:
    """KL divergence at most 1e-6, largest difference at most 1e-3 of the spread of the logits."""
    expected, found = run(CHECKPOINTS / name, tmp_path / "m.gguf", "f32")
    assert expected.std() > 1
    assert kl_divergence(expected, found).mean() <= MAX_KLD_F32
    assert np.abs(found - expected).max() <= 1e-3 * expected.std()


@pytest.mark.parametrize("name", NAMES)
def test_bfloat16_is_close(tmp_path: Path, name: str) -> None:
    """KL divergence at most 1e-3."""
    expected, found = run(CHECKPOINTS / name, tmp_path / "m.gguf", "bf16")
    assert kl_divergence(expected, found).mean() <= MAX_KLD_BF16


def skip_permutation(_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "interleave", lambda rows, _: rows)


def change_config(folder: Path, change: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))


def theta_over_ten(folder: Path, _: pytest.MonkeyPatch) -> None:
    def change(config: dict[str, Any]) -> None:
        config["rope_parameters"]["rope_theta"] /= 10

    change_config(folder, change)


def epsilon_times_ten(folder: Path, _: pytest.MonkeyPatch) -> None:
    def change(config: dict[str, Any]) -> None:
        config["rms_norm_eps"] *= 10

    change_config(folder, change)


def heads_swapped(folder: Path, _: pytest.MonkeyPatch) -> None:
    for path in folder.glob("*.safetensors"):
        data = bytearray(path.read_bytes())
        for tensor in read_header(path).tensors:
            if tensor.name == "model.layers.0.self_attn.q_proj.weight":
                head = tensor.n_bytes // 4
                one, two = tensor.offset, tensor.offset + head
                first, second = bytes(data[one:two]), bytes(data[two : two + head])
                data[one:two], data[two : two + head] = second, first
        path.write_bytes(data)


@pytest.mark.parametrize(
    "fault", [skip_permutation, theta_over_ten, epsilon_times_ten, heads_swapped]
)
def test_a_seeded_fault_exceeds_the_limit_tenfold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Any
) -> None:
    """The limit means something: each fault is at least ten times over it."""
    folder = tmp_path / "checkpoint"
    shutil.copytree(CHECKPOINTS / LLAMA3, folder)
    fault(folder, monkeypatch)
    expected, found = run(folder, tmp_path / "m.gguf", "f32")
    assert kl_divergence(expected, found).mean() >= 10 * MAX_KLD_F32


def test_committed_checkpoints_are_small() -> None:
    """Each is at most 400 kB, logits included."""
    for name in NAMES:
        assert sum(path.stat().st_size for path in (CHECKPOINTS / name).iterdir()) <= 400_000


@pytest.mark.model
@pytest.mark.parametrize("n_tokens", [1024, pytest.param(4096, marks=pytest.mark.full)])
def test_q8_0_of_a_real_model_is_close_to_float32(
    tmp_path: Path, smollm2_gguf: Path, n_tokens: int
) -> None:
    """SmolLM2 on our own text: KL divergence at most 0.006."""
    folder = tmp_path / "checkpoint"
    environment = os.environ | {"PYTHONPATH": str(Path(edgellm.__path__[0]).parent)}
    environment.pop("PYTHONSAFEPATH", None)  # the example has a module beside it
    script = ROOT / "examples" / "make_checkpoint.py"
    subprocess.run(
        [sys.executable, str(script), str(smollm2_gguf), str(folder)], check=True, env=environment
    )
    for type_name in ("f32", "q8_0"):
        convert(ConvertOptions(folder, tmp_path / f"{type_name}.gguf", type_name))
    engines = [LlamaCppEngine(tmp_path / f"{name}.gguf", EXACT) for name in ("f32", "q8_0")]
    text = (ROOT / "tests" / "data" / "eval.txt").read_text(encoding="utf-8")
    tokens = engines[0].tokenize(text, special=False, add_bos=False)
    assert len(tokens) >= 4096
    found = compare(engines[0], engines[1], windows(tokens[:n_tokens], 512))
    for engine in engines:
        engine.close()
    assert found.n_scored == n_tokens // 2
    assert found.kl_mean <= 0.006
    assert found.top1 >= 0.9
