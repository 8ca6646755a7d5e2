"""Smaller files of the same model beside it: found by what their headers say, taken last, announced."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edgellm.core import Switch
from edgellm.policy.ladder import Artifact, Rung, next_lower
from edgellm.policy.plan import Plan
from edgellm.runtime.supervising import descent
from edgellm.runtime.supervising.siblings import smaller_siblings


@pytest.fixture(scope="module")
def family(tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, the same one in 8 bits, another model, and a file that is none."""
    folder = tmp_path_factory.mktemp("family")
    large = folder / "large.gguf"
    shutil.copy(tiny_models / "tiny-llama.gguf", large)
    shutil.copy(tiny_models / "tiny-mamba2.gguf", folder / "other.gguf")
    (folder / "broken.gguf").write_bytes(b"GGUF")
    words = ["convert", str(large), "-o", str(folder / "small.gguf"), "--bits", "8"]
    subprocess.run([sys.executable, "-m", "edgellm", *words], check=True, capture_output=True)
    return large


def test_the_same_model_in_fewer_bits_is_one(family: Path) -> None:
    """Neither another model, nor a broken file, nor the file itself, nor a larger one."""
    small = family.with_name("small.gguf")
    assert smaller_siblings(family) == (Artifact(str(small.resolve()), small.stat().st_size),)
    assert smaller_siblings(small) == ()


def test_a_file_that_is_not_there_has_none(tmp_path: Path) -> None:
    """No error: there is only nothing to go down to."""
    assert smaller_siblings(tmp_path / "none.gguf") == ()


def test_it_is_the_last_rung_and_said(stage, kit, family: Path, monkeypatch) -> None:
    """When nothing else is left, the smaller file is loaded, and the `Switch` names it."""

    def only_files(
        plan: Plan, rungs: list[Rung], artifacts: tuple[Artifact, ...] = (), **_: int
    ) -> Any:
        return next_lower(plan, rungs, artifacts) if artifacts else None

    monkeypatch.setattr(descent, "next_lower", only_files)
    wishes = {"n_batch": 64, "kv_type": "q8_0", "n_threads": 1}
    engine = kit.EngineSettings(**wishes)
    supervisor, workers = stage.open(
        kit.Life(5, kit.oom()), kit.Life(), path=family, engine=engine, n_ctx=512
    )
    seen = kit.see(supervisor)
    assert "small.gguf" in seen.of(Switch)[0].reason
    assert seen.done.degraded
    assert [path.name for path in workers.paths] == ["large.gguf", "small.gguf"]
