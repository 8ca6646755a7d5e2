"""An engine's libraries are tried in a child, which may die of them; flags are compared before."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest

from edgellm.hw.builds import engine_folder
from edgellm.hw.flags import BUILD_FEATURES, cpu_flags
from edgellm.runtime import engine_probe
from edgellm.runtime.engine_probe import illegal_instruction, main, probe_llama, probe_onnx

NEHALEM = frozenset(["fpu", "sse", "sse2", "pni", "ssse3", "sse4_1", "sse4_2", "popcnt"])
MUSL = "libc.musl-x86_64.so.1: cannot open shared object file: No such file or directory"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that puts a package before all others, for children too."""

    def make(name: str, code: str) -> None:
        folder = tmp_path / "packages" / name
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(code)
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'packages'}:{Path.cwd()}")
        monkeypatch.setattr(sys, "path", [str(tmp_path / "packages"), *sys.path])

    return make


def test_the_installed_engine_can_be_used() -> None:
    """It says its version and what it was built for, all of which this CPU has."""
    found = probe_llama()
    assert (found.failure, found.missing) == ("", ())
    assert found.version.startswith("0.3")
    assert set(found.features) <= set(BUILD_FEATURES)


def test_an_older_cpu_misses_what_the_build_needs() -> None:
    """F-PK-01: the flags are compared before the engine is imported, and the missing ones named."""
    built = probe_llama().features
    if "avx2" not in built:
        pytest.skip("the engine installed here was built for any x86-64, or for another CPU")
    found = probe_llama(NEHALEM)
    assert "avx2" in found.missing
    assert "avx2" in found.failure
    assert found.version == ""


def test_an_engine_that_dies_of_an_instruction(package) -> None:
    """F-PK-01: the child ends by SIGILL, this process does not, and says what it was."""
    package("llama_cpp", "import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n")
    assert "illegal instruction" in probe_llama().failure


def test_an_engine_for_another_libc(package) -> None:
    """F-PK-02: the loader's own words."""
    package("llama_cpp", f"raise OSError({MUSL!r})\n")
    assert MUSL == probe_llama().failure


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import sys\nsys.exit(3)\n", "code 3"),
        ("raise ValueError('odd')\n", "ValueError: odd"),
        ("import os\nos.abort()\n", "signal 6"),
    ],
)
def test_an_engine_that_ends_otherwise(package, code: str, words: str) -> None:
    """The code or signal, and its last words."""
    package("llama_cpp", code)
    assert words in probe_llama().failure


def test_an_engine_that_hangs(package, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is given up on."""
    package("llama_cpp", "import time\ntime.sleep(60)\n")
    monkeypatch.setattr(engine_probe, "LIMIT_S", 0.5)
    assert "did not end within 0.5 s" in probe_llama().failure


def test_onnx_says_its_providers(package) -> None:
    """In the order in which it would take them."""
    code = (
        "__version__ = '1.99'\n"
        "def get_available_providers():\n"
        "    return ['CUDAExecutionProvider', 'CPUExecutionProvider']\n"
    )
    package("onnxruntime", code)
    found = probe_onnx()
    assert ("1.99", "") == (found.version, found.failure)
    assert ("CUDAExecutionProvider", "CPUExecutionProvider") == found.providers


def test_the_child_says_what_it_found(capsys: pytest.CaptureFixture[str]) -> None:
    """One JSON object, also for a module that is not there."""
    assert main("onnxruntime_that_is_not_there") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.mark.parametrize("returncode", [0, 1, -signal.SIGKILL, -signal.SIGABRT])
def test_other_deaths_are_not_explained(returncode: int) -> None:
    """Only an illegal instruction is one."""
    assert illegal_instruction(returncode) == ""


def test_the_death_of_an_illegal_instruction(monkeypatch: pytest.MonkeyPatch) -> None:
    """The missing flags are named where they are known."""
    assert "instruction" in illegal_instruction(-signal.SIGILL)
    if "avx2" in probe_llama().features:
        monkeypatch.setattr(engine_probe, "cpu_flags", lambda: NEHALEM)
        assert "avx2" in illegal_instruction(-signal.SIGILL)


def test_this_process_loads_nothing() -> None:
    """The comparison is made in a child: a fresh process that asks has no engine in it."""
    import subprocess

    code = (
        "import sys; from edgellm.runtime.engine_probe import probe_llama; probe_llama();"
        "sys.exit('llama_cpp' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert engine_folder() is not None
    assert cpu_flags() is not None
