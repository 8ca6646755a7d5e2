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


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory, smollm2_gguf: Path) -> Path:
    """SmolLM2 as a checkpoint, and converted to f32: the folder of both."""
    folder = tmp_path_factory.mktemp("smollm2")
    environment = os.environ | {"PYTHONPATH": str(Path(edgellm.__path__[0]).parent)}
    environment.pop("PYTHONSAFEPATH", None)  # the example has a module beside it
    script = ROOT / "examples" / "make_checkpoint.py"
    command = [sys.executable, str(script), str(smollm2_gguf), str(folder / "checkpoint")]
    subprocess.run(command, check=True, env=environment)
    convert(ConvertOptions(folder / "checkpoint", folder / "f32.gguf", "f32", prove=False))
    return folder


@pytest.mark.model
@pytest.mark.parametrize("n_tokens", [1024, pytest.param(4096, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    ("type_name", "kl_most", "top1_least"), [("q8_0", 0.006, 0.9), ("q4_k_m", 0.08, 0.82)]
)
def test_a_real_model_is_close_to_float32(
    tmp_path: Path, smollm2: Path, type_name: str, kl_most: float, top1_least: float, n_tokens: int
) -> None:
    """SmolLM2 on our own text: KL divergence and the share of equal best tokens."""
    out = tmp_path / "m.gguf"
    convert(ConvertOptions(smollm2 / "checkpoint", out, type_name))
    engines = [LlamaCppEngine(path, EXACT) for path in (smollm2 / "f32.gguf", out)]
    text = (ROOT / "tests" / "data" / "eval.txt").read_text(encoding="utf-8")
    tokens = engines[0].tokenize(text, special=False, add_bos=False)
    assert len(tokens) >= 4096
    found = compare(engines[0], engines[1], windows(tokens[:n_tokens], 512))
    for engine in engines:
        engine.close()
    assert found.n_scored == n_tokens // 2
    assert found.kl_mean <= kl_most, found
    assert found.top1 >= top1_least, found
