"""Which implementation runs, by the variables, and what a bad value says."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgellm import kernels
from edgellm.errors import UsageError
from edgellm.kernels import _choice
from edgellm.kernels._native import NativeKernels, NativeUnavailable


@pytest.fixture
def library() -> Iterator[NativeKernels]:
    """Load the library that is installed, and give the default row back afterwards."""
    native = _choice.native()
    assert native is not None, "these tests need the native library: install with a C++ compiler"
    yield native
    native.force_isa("")


def test_a_required_library_is_here() -> None:
    """Where the library must have been built, no test passes for want of rows to run."""
    named = os.environ.get("EDGELLM_KERNELS", "")
    is_required = os.environ.get("EDGELLM_REQUIRE_NATIVE") == "1" and named != "numpy"
    if is_required or named == "native":
        assert set(kernels.available_isas()) - {"numpy"}


def test_numpy_can_be_forced() -> None:
    """EDGELLM_KERNELS=numpy leaves the library out."""
    assert _choice.choose({"EDGELLM_KERNELS": "numpy"}) is None


@pytest.mark.parametrize("environ", [{}, {"EDGELLM_KERNELS": ""}, {"EDGELLM_KERNELS": "auto"}])
def test_the_library_is_the_default(library: NativeKernels, environ: dict[str, str]) -> None:
    """An unset or empty variable means `auto`: the best row of the library."""
    chosen = _choice.choose(environ)
    assert chosen is not None
    assert library.isas()[0] == chosen.isa()


def test_one_row_can_be_forced(library: NativeKernels) -> None:
    """EDGELLM_ISA chooses among the rows that can run."""
    for name in library.isas():
        chosen = _choice.choose({"EDGELLM_ISA": name})
        assert chosen is not None
        assert name == chosen.isa()


def test_an_unknown_row_is_named_with_its_variable() -> None:
    """A typing error in EDGELLM_ISA is an error, not another row."""
    with pytest.raises(UsageError, match=r"EDGELLM_ISA=avx1024 .*scalar, avx2, avx512, neon"):
        _choice.choose({"EDGELLM_ISA": "avx1024"})


def test_a_row_of_another_machine_is_refused(library: NativeKernels) -> None:
    """A known row that cannot run here is refused, with those that can."""
    foreign = next(name for name in _choice.KNOWN_ISAS if name not in library.isas())
    with pytest.raises(UsageError, match=f"EDGELLM_ISA={foreign} cannot run here.*scalar"):
        _choice.choose({"EDGELLM_ISA": foreign})


def test_an_unknown_kernels_value_is_refused() -> None:
    """EDGELLM_KERNELS knows three values."""
    with pytest.raises(UsageError, match=r"EDGELLM_KERNELS=cuda .*auto, native, numpy"):
        _choice.choose({"EDGELLM_KERNELS": "cuda"})


def test_a_named_library_must_be_there(tmp_path: Path) -> None:
    """A path somebody gave is never passed over in silence."""
    missing = tmp_path / "gone.so"
    with pytest.raises(UsageError, match=r"EDGELLM_NATIVE_LIB=.*gone.so: no such file"):
        _choice.choose({"EDGELLM_NATIVE_LIB": str(missing)})


def test_native_makes_a_missing_library_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EDGELLM_KERNELS=native says what to do when the library was not built; auto takes numpy."""
    monkeypatch.setattr(_choice, "__file__", str(tmp_path / "_choice.py"))
    assert _choice.choose({}) is None
    with pytest.raises(UsageError, match=r"EDGELLM_KERNELS=native.*EDGELLM_REQUIRE_NATIVE=1"):
        _choice.choose({"EDGELLM_KERNELS": "native"})


def test_a_file_that_is_no_library_is_unavailable(tmp_path: Path) -> None:
    """Text under the library's name is reported, not loaded."""
    path = tmp_path / "lib.so"
    path.write_text("not a library")
    with pytest.raises(NativeUnavailable, match=r"lib\.so"):
        NativeKernels(path)


@pytest.mark.parametrize("version", [3, 5])
def test_another_abi_version_is_unavailable(tmp_path: Path, version: int) -> None:
    """A library of another edgellm is not called, it means numpy."""
    source, path = tmp_path / "abi.c", tmp_path / "abi.so"
    source.write_text(f"int ekv_abi_version(void) {{ return {version}; }}\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", path, source], check=True)
    with pytest.raises(NativeUnavailable, match=f"ABI version {version}, needed 4"):
        NativeKernels(path)


def test_a_library_that_lacks_a_kernel_is_unavailable(tmp_path: Path) -> None:
    """The right version with a symbol missing is a broken build."""
    source, path = tmp_path / "half.c", tmp_path / "half.so"
    source.write_text("int ekv_abi_version(void) { return 4; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", path, source], check=True)
    with pytest.raises(NativeUnavailable, match="ekv_isa"):
        NativeKernels(path)


def test_the_library_reads_an_unknown_row_as_scalar(library: NativeKernels) -> None:
    """A C program with a bad EDGELLM_ISA runs on the scalar row; the library never aborts."""
    program = (
        "import ctypes, sys; lib = ctypes.CDLL(sys.argv[1]);"
        "lib.ekv_isa.restype = ctypes.c_char_p; sys.stdout.write(lib.ekv_isa().decode())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(library.path)],
        env={"EDGELLM_ISA": "avx1024"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "scalar"


def test_isa_names_what_runs(native_isa: str) -> None:
    """`isa()` follows the choice."""
    assert native_isa == kernels.isa()
