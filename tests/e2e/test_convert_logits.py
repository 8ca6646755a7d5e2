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
from edgellm.evaluate.divergence import kl_divergence, top1_agreement, windows
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
N_WINDOW = 512
EXACT = EngineSettings(kv_type="f32", flash_attention="off", n_threads=2, n_gpu_layers=0)


def run(
    folder: Path, out: Path, type_name: str, *, prove: bool = False
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Convert, decode the committed tokens, return torch's logits and ours."""
    convert(ConvertOptions(folder, out, type_name, overwrite=True, prove=prove))
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
    expected, found = run(CHECKPOINTS / name, tmp_path / "m.gguf", "f32", prove=True)
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


def second_halves(path: Path, n_tokens: int) -> list[NDArray[np.float32]]:
    """Return the logits of the second half of every window of our own text: the first is context."""
    engine = LlamaCppEngine(path, EXACT)
    try:
        engine.reserve(N_WINDOW)
        text = (ROOT / "tests" / "data" / "eval.txt").read_text(encoding="utf-8")
        tokens = engine.tokenize(text, special=False, add_bos=False)
        assert len(tokens) >= 4096
        found = []
        for part in windows(tokens[:n_tokens], N_WINDOW):
            engine.truncate(0)
            engine.decode(part[: N_WINDOW // 2])
            found.append(engine.decode(part[N_WINDOW // 2 :], "all").copy())
        return found
    finally:
        engine.close()


@pytest.mark.model
@pytest.mark.parametrize("n_tokens", [N_WINDOW, pytest.param(4096, marks=pytest.mark.full)])
def test_a_real_model_is_close_to_float32(tmp_path: Path, smollm2: Path, n_tokens: int) -> None:
    """SmolLM2 on our own text: KL divergence and the share of equal best tokens."""
    expected = second_halves(smollm2 / "f32.gguf", n_tokens)
    for type_name, kl_most, top1_least in (("q8_0", 0.006, 0.9), ("q4_k_m", 0.08, 0.82)):
        out = tmp_path / "m.gguf"
        convert(ConvertOptions(smollm2 / "checkpoint", out, type_name, overwrite=True))
        found = second_halves(out, n_tokens)
        pairs = list(zip(expected, found, strict=True))
        kl = np.concatenate([kl_divergence(*pair) for pair in pairs])
        top1 = np.concatenate([top1_agreement(*pair) for pair in pairs])
        assert len(kl) == n_tokens // 2
        assert kl.mean() <= kl_most, type_name
        assert top1.mean() >= top1_least, type_name
