"""What every test gets: its own EDGELLM_HOME, a clean environment, and the two real models."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

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
_CHANGES_BEHAVIOUR = (
    "EDGELLM_API_KEY",
    "EDGELLM_ISA",
    "EDGELLM_OFFLINE",
    "EDGELLM_SHARE_SECRET_FILE",
    "EDGELLM_SNAPSHOTS_MAX",
    "EDGELLM_SNAPSHOT_ENCRYPT",
    "EDGELLM_SNAPSHOT_KEY_FILE",
    "NO_COLOR",
    "FORCE_COLOR",
)
_ROOT = Path(__file__).resolve().parent.parent
# Threads of the engine that wait for each other by spinning take the cores from those waited for,
# where several test processes run at once: twice the time. Read when the library is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# `nohup` and `&` have these ignored, and so would all processes that tests start to send them one.
for _number, _usual in (
    (signal.SIGINT, signal.default_int_handler),
    (getattr(signal, "SIGHUP", signal.SIGTERM), signal.SIG_DFL),
):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _usual)


def _share_the_source_tree() -> None:
    """Let child processes import what this one does, from whatever folder they start in."""
    spec = importlib.util.find_spec("edgellm")
    if spec is None:
        pytest.exit("edgellm is not installed; use `bash tests/run.sh`", returncode=2)
    if str(_ROOT / "edgellm") in (spec.submodule_search_locations or ()):
        os.environ["PYTHONPATH"] = str(_ROOT)


_share_the_source_tree()


def pytest_unconfigure() -> None:
    """Close the two files that llama_cpp leaves open, or warnings of them follow the summary."""
    module = sys.modules.get("llama_cpp._utils")
    for name in ("outnull_file", "errnull_file"):
        file = getattr(module, name, None)
        if file is not None:
            file.close()


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
    return _real_model("smollm2")


@pytest.fixture(scope="session")
def gemma3_gguf() -> Path:
    """gemma-3-270m, Q4_K_M (253 MB), put together once from its four part packages: read only."""
    return _real_model("gemma3")


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
    return _load(_ROOT / "tests" / "attacks" / "snapshot_files.py")


@pytest.fixture(scope="session")
def lora_files() -> ModuleType:
    """Builders of LoRA adapters, and of models with them merged in."""
    folder = _ROOT / "tests" / "attacks"
    if "gguf_edits" not in sys.modules:  # they are made of it
        _load(folder / "gguf_edits.py")
    return _load(folder / "lora_files.py")


@pytest.fixture(scope="session")
def warm_start() -> Iterator[Any]:
    """Run commands in processes of their own that begin behind the imports; see warm_start.py."""
    server = _load(_ROOT / "tests" / "warm_start.py").WarmStart()
    yield server
    server.close()


@pytest.fixture(scope="session")
def loopback() -> ModuleType:
    """A hub on the loopback interface, for tests in this process and with processes of their own."""
    return _load(_ROOT / "tests" / "unit" / "catalog" / "loopback.py")


@pytest.fixture(scope="session")
def load_module() -> Callable[[Path], ModuleType]:
    """A function that loads a file of the tests as a module: importlib mode has no packages."""
    return _load


@pytest.fixture(scope="session")
def endpoint_server() -> ModuleType:
    """A server on the loopback interface that answers as a script says, byte by byte if need be."""
    return _load(_ROOT / "tests" / "unit" / "cloud" / "scripted.py")


@pytest.fixture
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Run a Redis server on a socket of its own, in memory only."""
    process = _load(_ROOT / "tests" / "unit" / "cloud" / "redis_process.py")
    with process.serving(tmp_path_factory.mktemp("redis")) as server:
        yield server


def _real_model(name: str) -> Path:
    """Find a model as the benches do; where it is missing a test fails, and does not skip."""
    models = _load(_ROOT / "tests" / "bench" / "_models.py")
    try:
        found: Path = models.real_model(name)
    except models.ModelMissing as err:
        pytest.fail(str(err))
    return found


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
