"""What a build takes for granted is read from its code: real libraries, made here and installed."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from edgellm.hw.builds import build_features, cpu_libraries, engine_folder, has_gpu_code
from edgellm.hw.flags import BUILD_FEATURES

SOURCE = "int ggml_cpu_has_avx2(void) { return 1; }\nint ggml_cpu_has_avx512(void) { return 0; }\n"
RUN_TIME = "extern int how;\nint how;\nint ggml_cpu_has_avx2(void) { return how; }\n"


@pytest.fixture
def library(tmp_path: Path):
    """Return a function that compiles a library, and returns its folder."""
    compiler = shutil.which("cc") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no compiler")

    def make(source: str, *flags: str, name: str = "libggml-cpu.so") -> Path:
        (tmp_path / "x.c").write_text(source)
        command = [compiler, "-x", "c", "-shared", "-fPIC", *flags, "x.c", "-o", name]
        subprocess.run(command, cwd=tmp_path, check=True)
        return tmp_path

    return make


def test_the_installed_library_says_the_same_when_it_is_asked() -> None:
    """What is read from the file is what its functions return."""
    folder = engine_folder()
    assert folder is not None
    (path,) = cpu_libraries(folder)
    ctypes.CDLL(str(folder / "libggml-base.so"), mode=ctypes.RTLD_GLOBAL)
    asked = ctypes.CDLL(str(path))
    expected = tuple(
        name for name in BUILD_FEATURES if getattr(asked, f"ggml_cpu_has_{name}", lambda: 0)()
    )
    assert expected == build_features(folder)


@pytest.mark.parametrize("flags", [("-O2",), ("-O3", "-fcf-protection=full"), ("-Os",)])
def test_constants_as_compilers_write_them(library, flags: tuple[str, ...]) -> None:
    """With and without the mark of an indirect jump's target."""
    assert ("avx2",) == build_features(library(SOURCE, *flags))


def test_code_that_finds_out_by_itself(library) -> None:
    """A function that asks at run time takes nothing for granted."""
    assert () == build_features(library(RUN_TIME, "-O2"))


def test_a_library_for_each_cpu(library) -> None:
    """The engine then chooses, and nothing is taken for granted."""
    library(SOURCE, "-O2", name="libggml-cpu-haswell.so")
    assert () == build_features(library(SOURCE, "-O2", name="libggml-cpu-x64.so"))


@pytest.mark.parametrize("content", [b"", b"no library", b"\x7fELF\x02\x01" + b"\xff" * 200])
def test_what_is_no_library(tmp_path: Path, content: bytes) -> None:
    """It says nothing, and raises nothing."""
    (tmp_path / "libggml-cpu.so").write_bytes(content)
    assert () == build_features(tmp_path)
    assert () == build_features(None)


def test_a_library_that_was_cut(library) -> None:
    """At any length: offsets beyond the end are no symbols."""
    folder = library(SOURCE, "-O2")
    path = folder / "libggml-cpu.so"
    whole = path.read_bytes()
    for length in range(0, len(whole), max(1, len(whole) // 97)):
        path.write_bytes(whole[:length])
        assert set(build_features(folder)) <= {"avx2"}


def test_a_library_of_damaged_bytes(library) -> None:
    """A byte of its tables set to 255, one after the other: never an error, never a long loop."""
    folder = library(SOURCE, "-O2")
    path = folder / "libggml-cpu.so"
    whole = path.read_bytes()
    (sections,) = (int.from_bytes(whole[40:48], "little"),)
    for at in (*range(32, 64), *range(sections, len(whole), 3)):
        damaged = bytearray(whole)
        damaged[at] = 255
        path.write_bytes(damaged)
        assert set(build_features(folder)) <= {"avx2", "avx512"}


@pytest.mark.parametrize(
    ("name", "there"),
    [("libggml-hip.so", True), ("libggml-vulkan.so.0", True), ("libggml-base.so", False)],
)
def test_code_for_gpus_of_all_makers(tmp_path: Path, name: str, there: object) -> None:
    """Known by its library, also where nothing here can ask such a GPU for its memory."""
    (tmp_path / "libggml-cpu.so").touch()
    (tmp_path / name).touch()
    assert has_gpu_code(tmp_path) is there
    assert not has_gpu_code(None)
