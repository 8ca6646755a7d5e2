"""Conversion as a process: killed anywhere, deep models, few threads or many, a read-only source."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import edgellm
from edgellm.runtime.conversion import ConvertOptions, convert

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]
CHECKPOINTS = ROOT / "tests" / "data" / "checkpoints"
TINY = CHECKPOINTS / "llama3-untied-sharded-bf16"
RUN = """
import os, signal, sys
from pathlib import Path
from edgellm.runtime.conversion import ConvertOptions, convert
src, out, kill_at = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
def progress(done, total):
    if done >= kill_at * total:
        os.kill(os.getpid(), signal.SIGKILL)
result = convert(ConvertOptions(src, out, "q8_0", n_threads=2), progress=progress)
print(result.sha256)
for name, key in (("status", "VmHWM"), ("io", "wchar")):
    with open(f"/proc/self/{name}") as file:
        print(next(line.split()[1] for line in file if line.startswith(key)))
"""
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def run(src: Path, out: Path, *, kill_at: float = 2.0) -> subprocess.CompletedProcess[str]:
    """Convert in a process of its own; it kills itself when that share of the bytes is written."""
    environment = os.environ | {"PYTHONPATH": str(Path(edgellm.__path__[0]).parent)}
    return subprocess.run(
        [sys.executable, "-c", RUN, str(src), str(out), str(kill_at)],
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )


def grow(folder: Path, n_layers: int, n_embd: int = 256, n_ff: int = 1024) -> Path:
    """Make a bf16 checkpoint of any depth; zeros on a sparse file, so that it costs no disk."""
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(TINY / name, folder)
    config = json.loads((TINY / "config.json").read_text())
    config |= {
        "hidden_size": n_embd,
        "intermediate_size": n_ff,
        "num_hidden_layers": n_layers,
        "head_dim": n_embd // 4,
        "num_key_value_heads": 4,
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(config))
    shapes: dict[str, list[int]] = {"model.embed_tokens.weight": [384, n_embd]}
    for i in range(n_layers):
        at = f"model.layers.{i}."
        for name in "qkvo":
            shapes[f"{at}self_attn.{name}_proj.weight"] = [n_embd, n_embd]
        for name, shape in (
            ("gate", [n_ff, n_embd]),
            ("up", [n_ff, n_embd]),
            ("down", [n_embd, n_ff]),
        ):
            shapes[f"{at}mlp.{name}_proj.weight"] = shape
        shapes[f"{at}input_layernorm.weight"] = [n_embd]
        shapes[f"{at}post_attention_layernorm.weight"] = [n_embd]
    shapes["model.norm.weight"] = [n_embd]
    table: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        n_bytes = 2 * int(np.prod(shape))
        table[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + n_bytes]}
        end += n_bytes
    text = json.dumps(table).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    return folder


def test_killed_at_ten_random_points_no_file_has_the_name(tmp_path: Path) -> None:
    """Kill -9 while writing: no final file, and the next run succeeds as if nothing had been."""
    rng = random.Random(20)
    out = tmp_path / "m.gguf"
    for kill_at in [*(rng.random() for _ in range(9)), 1.0]:
        assert run(TINY, out, kill_at=kill_at).returncode == -signal.SIGKILL
        assert not out.exists()
        assert out.with_name(".m.gguf.edgellm-partial").exists()
    result = run(TINY, out)
    assert result.returncode == 0, result.stderr
    assert [path.name for path in tmp_path.iterdir() if "m.gguf" in path.name] == ["m.gguf"]
    clean = convert(ConvertOptions(TINY, tmp_path / "clean.gguf", "q8_0"))
    assert result.stdout.split()[0] == clean.sha256


@linux_only
def test_memory_does_not_grow_with_depth_and_nothing_is_written_twice(tmp_path: Path) -> None:
    """Eight times the layers: at most 10 % more memory; bytes written are the file's."""
    peaks = []
    for n_layers in (4, 32):
        out = tmp_path / f"{n_layers}.gguf"
        result = run(grow(tmp_path / f"checkpoint-{n_layers}", n_layers), out)
        assert result.returncode == 0, result.stderr
        _, peak_kib, written = result.stdout.split()
        peaks.append(int(peak_kib))
        assert int(written) <= 1.02 * out.stat().st_size
    assert peaks[1] <= 1.10 * peaks[0]


def test_a_link_to_weights_elsewhere_is_followed(tmp_path: Path) -> None:
    """Download caches keep the bytes in another folder and link to them."""
    snapshot, blobs = tmp_path / "snapshots" / "abc", tmp_path / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for i, path in enumerate(sorted(TINY.iterdir())):
        shutil.copy(path, blobs / str(i))
        (snapshot / path.name).symlink_to(Path("..") / ".." / "blobs" / str(i))
    linked = convert(ConvertOptions(snapshot, tmp_path / "a.gguf", "f16"))
    plain = convert(ConvertOptions(TINY, tmp_path / "b.gguf", "f16"))
    assert linked.sha256 == plain.sha256


@pytest.fixture
def read_only(tmp_path: Path) -> Callable[[], Path]:
    """Copy the checkpoint to a folder that nothing may be written to."""

    def make() -> Path:
        folder = tmp_path / "폴더 with spaces & marks"
        shutil.copytree(TINY, folder)
        for path in folder.iterdir():
            path.chmod(0o400)
        folder.chmod(0o500)
        return folder

    return make


def test_the_source_may_be_read_only(tmp_path: Path, read_only: Callable[[], Path]) -> None:
    """Nothing is written beside the checkpoint; odd characters in its path do not matter."""
    folder = read_only()
    convert(ConvertOptions(folder, tmp_path / "m.gguf", "f16"))
    folder.chmod(0o700)


@linux_only
def test_a_limit_on_a_files_size_is_one_error_and_leaves_nothing(tmp_path: Path) -> None:
    """It does not fit, as on a full disk, but there is another way out of it."""
    script = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from edgellm.errors import EdgeLLMError\n"
        "from edgellm.runtime.conversion import ConvertOptions, convert\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (30000, 30000))\n"
        "try:\n"
        "    convert(ConvertOptions(Path(sys.argv[1]), Path(sys.argv[2]), 'f32'))\n"
        "except EdgeLLMError as err:\n"
        "    print(err.exit_code, err)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(edgellm.__path__[0]).parent)}
    out = tmp_path / "m.gguf"
    result = subprocess.run(
        [sys.executable, "-c", script, str(TINY), str(out)],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    code, message = result.stdout.split(" ", 1)
    assert code == "4"
    assert "m.gguf: the system allows no file of more than 30000 bytes" in message
    assert "ulimit -f" in message
    assert list(tmp_path.glob("*m.gguf*")) == []
