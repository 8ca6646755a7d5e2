"""native/bench/ladder: every row against scalar and numpy, under sanitizers and on other machines."""

from __future__ import annotations

import importlib.util
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


def _cross_built(folder: Path, processor: str, target: str) -> Path:
    """Build the ladder for another machine."""
    compiler = _tool(f"{target}-g++", f"g++-{target}")
    machine = ("-DCMAKE_SYSTEM_NAME=Linux", f"-DCMAKE_SYSTEM_PROCESSOR={processor}")
    how = (f"-DCMAKE_CXX_COMPILER={compiler}", f"-DCMAKE_CXX_FLAGS={_FLAGS}")
    return _ladder(folder, *machine, *how)


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """Write what numpy makes of many inputs, and count them."""
    spec = importlib.util.spec_from_file_location(
        "golden_cases", Path(__file__).with_name("golden_cases.py")
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    path = tmp_path_factory.mktemp("ladder") / "cases.bin"
    return path, module.write_cases(path)


def _run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _check(cases: tuple[Path, int], *command: str | Path) -> str:
    """Run `ladder --check` on numpy's cases and give what it says of the rows."""
    done = _run(*command, "--check", cases[0])
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"cases of numpy's: {cases[1]}\n" in done.stdout
    return done.stdout.splitlines()[-1].split(": ")[1]


def test_no_row_leaves_its_buffers(tmp_path: Path, cases: tuple[Path, int]) -> None:
    """AddressSanitizer and UBSan see every row over every remainder of its tiles; no warnings."""
    sanitize = "-fsanitize=address,undefined -fno-sanitize-recover=all -O1"
    ladder = _ladder(tmp_path, f"-DCMAKE_CXX_FLAGS={_FLAGS} {sanitize}")
    assert _check(cases, ladder).endswith("scalar equal")
    _ladder_has_teeth(ladder, cases[0], tmp_path / "other.bin")


def _ladder_has_teeth(ladder: Path, cases: Path, other: Path) -> None:
    """One bit of numpy's last result changed, a file cut short and an empty one are differences."""
    data = cases.read_bytes()
    for content, told in (
        (data[:-1] + bytes([data[-1] ^ 1]), "scalar differs from numpy: cast 9"),
        (data[:-1], "not a file of cases"),
        (b"", "not a file of cases"),
    ):
        other.write_bytes(content)
        done = _run(ladder, "--check", other)
        assert (done.returncode, told in done.stdout) == (1, True), done.stdout + done.stderr


@pytest.mark.full
def test_neon_gives_numpys_bits(tmp_path: Path, cases: tuple[Path, int]) -> None:
    """The ARM row, cross-compiled and run by an emulator, on a plain and on a newer core."""
    qemu = _tool("qemu-aarch64", "qemu-user")
    ladder = _cross_built(tmp_path, "aarch64", "aarch64-linux-gnu")
    for cpu in ("cortex-a53", "max"):
        said = _check(cases, qemu, "-cpu", cpu, "-L", "/usr/aarch64-linux-gnu", ladder)
        assert said == "neon scalar equal"


@pytest.mark.full
def test_a_32_bit_system_gets_the_library(tmp_path: Path, cases: tuple[Path, int]) -> None:
    """No type that only 64-bit targets have, and no count that is cut to a size of 32 bits."""
    qemu = _tool("qemu-arm", "qemu-user")
    ladder = _cross_built(tmp_path, "armv7l", "arm-linux-gnueabihf")
    assert _check(cases, qemu, "-L", "/usr/arm-linux-gnueabihf", ladder) == "scalar equal"


@pytest.mark.full
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the compiler here builds no x86 rows")
@pytest.mark.parametrize(
    ("cpu", "rows"), [("Nehalem", "scalar equal"), ("Haswell", "avx2 scalar equal")]
)
def test_an_older_cpu_gets_its_own_row(
    tmp_path: Path, cases: tuple[Path, int], cpu: str, rows: str
) -> None:
    """On a CPU without AVX-512, or AVX2, those rows are not offered and not run: no SIGILL."""
    qemu = _tool("qemu-x86_64", "qemu-user")
    ladder = _ladder(tmp_path, f"-DCMAKE_CXX_FLAGS={_FLAGS}")
    assert _check(cases, qemu, "-cpu", cpu, ladder) == rows
