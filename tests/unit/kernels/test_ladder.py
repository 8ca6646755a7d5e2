"""native/bench/ladder: every row against scalar, under sanitizers and on machines we do not have."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

NATIVE = Path(__file__).resolve().parents[3] / "native"
_PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
_FLAGS = "-g -Werror"


def _tool(name: str, package: str) -> str:
    """Find a program; a machine without it fails, and learns which package has it."""
    found = shutil.which(name, path=_PATH)
    if found is None:
        pytest.fail(f"{name} is not installed: apt-get install {package}")
    return found


def _ladder(folder: Path, *defines: str) -> Path:
    """Build the ladder with its library in `folder`."""
    cmake = _tool("cmake", "cmake")
    configure = [cmake, "-S", NATIVE, "-B", folder, "-DEDGELLM_BENCH=ON", *defines]
    for command in (configure, [cmake, "--build", folder, "--parallel", "2"]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder / "ladder"


def _check(*command: str | Path, **environment: str) -> str:
    """Run `ladder --check` and give what it says of the rows."""
    done = subprocess.run(
        [*command, "--check"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()[-1].split(": ")[1]


def test_no_row_leaves_its_buffers(tmp_path: Path) -> None:
    """AddressSanitizer and UBSan see every row over every remainder of its tiles; no warnings."""
    sanitize = "-fsanitize=address,undefined -fno-sanitize-recover=all -O1"
    ladder = _ladder(tmp_path, f"-DCMAKE_CXX_FLAGS={_FLAGS} {sanitize}")
    assert _check(ladder).endswith("scalar equal")


@pytest.mark.full
def test_neon_gives_scalars_bits(tmp_path: Path) -> None:
    """The ARM row, cross-compiled and run by an emulator, on a plain and on a newer core."""
    compiler = _tool("aarch64-linux-gnu-g++", "g++-aarch64-linux-gnu")
    qemu = _tool("qemu-aarch64", "qemu-user")
    ladder = _ladder(
        tmp_path,
        "-DCMAKE_SYSTEM_NAME=Linux",
        "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
        f"-DCMAKE_CXX_COMPILER={compiler}",
        f"-DCMAKE_CXX_FLAGS={_FLAGS}",
    )
    for cpu in ("cortex-a53", "max"):
        said = _check(qemu, "-cpu", cpu, "-L", "/usr/aarch64-linux-gnu", ladder)
        assert said == "neon scalar equal"


@pytest.mark.full
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the compiler here builds no x86 rows")
@pytest.mark.parametrize(
    ("cpu", "rows"), [("Nehalem", "scalar equal"), ("Haswell", "avx2 scalar equal")]
)
def test_an_older_cpu_gets_its_own_row(tmp_path: Path, cpu: str, rows: str) -> None:
    """On a CPU without AVX-512, or AVX2, those rows are not offered and not run: no SIGILL."""
    qemu = _tool("qemu-x86_64", "qemu-user")
    ladder = _ladder(tmp_path, f"-DCMAKE_CXX_FLAGS={_FLAGS}")
    assert _check(qemu, "-cpu", cpu, ladder) == rows
