"""examples/make_checkpoint.py undoes a conversion."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import edgellm
from edgellm.runtime.conversion import ConvertOptions, convert

ROOT = Path(__file__).resolve().parents[2]
CHECKPOINTS = ROOT / "tests" / "data" / "checkpoints"


def rebuild(src: Path, out: Path, *extra: str) -> subprocess.CompletedProcess[str]:
    """Run the example as a user does."""
    environment = os.environ | {"PYTHONPATH": str(Path(edgellm.__path__[0]).parent)}
    environment.pop("PYTHONSAFEPATH", None)  # the example has a module beside it
    script = str(ROOT / "examples" / "make_checkpoint.py")
    return subprocess.run(
        [sys.executable, script, str(src), str(out), *extra],
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )


def plain_rotation(folder: Path) -> Path:
    """Copy a bf16 checkpoint with its rotary scaling taken out, and a tokenizer that adds bos."""
    shutil.copytree(CHECKPOINTS / "llama3-untied-sharded-bf16", folder)
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0}
    path.write_text(json.dumps(config), encoding="utf-8")
    path = folder / "generation_config.json"
    path.write_text('{"bos_token_id": 0, "eos_token_id": 1}', encoding="utf-8")
    return folder


def test_there_and_back_is_the_same_file(tmp_path: Path) -> None:
    """Convert, rebuild in several shards, convert again: the same sha256."""
    src = plain_rotation(tmp_path / "source")
    first = convert(ConvertOptions(src, tmp_path / "1.gguf", "bf16"))
    done = rebuild(first.path, tmp_path / "rebuilt", "--shard-mb", "0")
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "rebuilt").glob("*.safetensors"))) > 2
    second = convert(ConvertOptions(tmp_path / "rebuilt", tmp_path / "2.gguf", "bf16"))
    assert first.sha256 == second.sha256


def test_what_cannot_be_rebuilt_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    """Rotary scaling, a missing file, a folder that is there: one line each, no folder."""
    scaled = tmp_path / "scaled.gguf"
    convert(ConvertOptions(CHECKPOINTS / "linear-bf16", scaled, "bf16"))
    out = tmp_path / "rebuilt"
    for src, message in ((scaled, "rotary scaling 'linear'"), (tmp_path / "no.gguf", "no such")):
        done = rebuild(src, out)
        assert done.returncode != 0
        assert message in done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert not out.exists()
    out.mkdir()
    assert "is there already" in rebuild(scaled, out).stderr
