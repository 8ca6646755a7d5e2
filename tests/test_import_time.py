"""What starting costs: no heavy library, and little CPU before the first word of help."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "llama_cpp", "onnxruntime", "onnx", "gguf", "tokenizers")
HEAVY_AT_IMPORT = (*HEAVY, "starlette", "cryptography")
HELP_CPU_S = 0.3
_TRIES = 3


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True)


def _loaded(program: str) -> set[str]:
    """Give the names in `sys.modules` when `program` has run, whatever way it ended."""
    trailer = (
        "import atexit, sys\n"
        "atexit.register(lambda: sys.stderr.write('\\n'.join(map(str, sys.modules))))\n"
    )
    return set(_run("-c", trailer + program).stderr.split("\n"))


@pytest.mark.parametrize(
    "program",
    [
        pytest.param("import edgellm", id="import"),
        pytest.param(
            "sys.argv = ['edgellm', '--help']\nfrom edgellm.cli.app import main\nmain()", id="help"
        ),
        pytest.param(
            "sys.argv = ['edgellm', 'run', '--help']\nfrom edgellm.cli.app import main\nmain()",
            id="run-help",
        ),
    ],
)
def test_nothing_heavy_is_loaded(program: str) -> None:
    """Engines, torch and their like are imported by the function that needs them."""
    assert _loaded(program) & set(HEAVY_AT_IMPORT) == set()


def test_help_takes_little_cpu() -> None:
    """`edgellm --help` takes under 0.3 s of CPU: the best of three, user and system together."""
    command = [sys.executable, "-m", "edgellm", "--help"]
    assert min(_cpu_s(command) for _ in range(_TRIES)) < HELP_CPU_S


def _cpu_s(command: list[str]) -> float:
    """Run a command to its end and give its CPU seconds alone, by way of wait4."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_utime + usage.ru_stime
