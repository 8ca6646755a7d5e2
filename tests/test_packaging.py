"""What is in the wheel and the sdist, with links, without them, with a compiler and without one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LINKS = {"edgellm/converters": "converters", "edgellm/devices": "devices"}
LIBRARY = re.compile(r"edgellm/kernels/libedgellm_native\.(so|dylib|dll)")
_DRIVER = "import sys; from scikit_build_core import build; build.{hook}(sys.argv[1])"
_CHANGES_BUILDS = ("CMAKE_ARGS", "CMAKE_GENERATOR", "CXX", "CXXFLAGS", "SKBUILD_CMAKE_ARGS")


@dataclass(frozen=True, slots=True)
class Built:
    """One archive: its file name, and the names of the files in it without the sdist's folder."""

    path: Path
    files: frozenset[str]


def _tracked() -> list[str]:
    """List the files of the checkout that git knows and that are there."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    names = listed.stdout.decode().split("\0")
    return [name for name in names if name and os.path.lexists(ROOT / name)]


def _environment(**changes: str) -> dict[str, str]:
    """Give an environment in which only `changes` can change what is built."""
    dropped = (*_CHANGES_BUILDS, "EDGELLM_PURE", "EDGELLM_REQUIRE_NATIVE")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return {**kept, **changes}


def _build(hook: str, source: Path, out: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    """Call the build backend as an installer does, in `source`."""
    out.mkdir()
    return subprocess.run(
        [sys.executable, "-c", _DRIVER.format(hook=hook), str(out)],
        cwd=source,
        env=_environment(**changes),
        capture_output=True,
        text=True,
        check=False,
    )


def _archive(done: subprocess.CompletedProcess[str], out: Path) -> Built:
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = out.iterdir()
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            names = wheel.namelist()
        assert len(names) == len(set(names))
        return Built(path, frozenset(names))
    with tarfile.open(path) as sdist:
        return Built(path, frozenset(name.split("/", 1)[1] for name in sdist.getnames()))


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the tracked files, links as links: what a clone would hold."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in _tracked():
        target = copy / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target, follow_symlinks=False)
    return copy


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Build the wheel of the checkout, native library and all."""
    out = tmp_path_factory.mktemp("wheel") / "out"
    return _archive(_build("build_wheel", checkout, out, EDGELLM_REQUIRE_NATIVE="1"), out)


@pytest.fixture(scope="module")
def sdist(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Build the sdist of the checkout."""
    out = tmp_path_factory.mktemp("sdist") / "out"
    return _archive(_build("build_sdist", checkout, out), out)


@pytest.fixture
def linkless(checkout: Path, tmp_path: Path) -> Path:
    """Copy the checkout as git makes it with `core.symlinks=false`: links are small text files."""
    copy = tmp_path / "linkless"
    shutil.copytree(checkout, copy, symlinks=True, ignore=shutil.ignore_patterns("build"))
    for link in LINKS:
        text = str((copy / link).readlink())
        (copy / link).unlink()
        (copy / link).write_text(text)
    return copy


def _expected_in_wheel() -> set[str]:
    """Map the tracked files of the package and of the linked folders to their place in a wheel."""
    expected: set[str] = set()
    for name in _tracked():
        top = name.split("/", 1)[0]
        if top == "edgellm" and name not in LINKS:
            expected.add(name)
        elif top in LINKS.values():
            expected.add(f"edgellm/{name}")
    return expected


def _content(built: Built) -> set[str]:
    """Give a wheel's files without its metadata and its library."""
    return {
        name for name in built.files if ".dist-info/" not in name and not LIBRARY.fullmatch(name)
    }


def test_the_wheel_is_the_package_and_nothing_else(wheel: Built) -> None:
    """Every tracked file of edgellm, converters and devices is in it; natives, tests are not."""
    assert _expected_in_wheel() == _content(wheel)


def test_the_wheel_holds_one_library_for_every_python(wheel: Built) -> None:
    """The library lies beside its ctypes door, and the tag names the platform but no Python."""
    assert len([name for name in wheel.files if LIBRARY.fullmatch(name)]) == 1
    assert re.fullmatch(r"edgellm-[\d.]+-py3-none-(?!any)\w+\.whl", wheel.path.name)


def test_the_library_needs_libc_alone(wheel: Built, tmp_path: Path) -> None:
    """No libstdc++ and no libgcc: the wheel runs wherever its libc does."""
    (name,) = (name for name in wheel.files if LIBRARY.fullmatch(name))
    with zipfile.ZipFile(wheel.path) as archive:
        library = archive.extract(name, tmp_path)
    dump = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True)
    assert re.findall(r"\(NEEDED\).*\[(.*)\]", dump.stdout) == ["libc.so.6"]


def test_the_sdist_holds_every_tracked_file(sdist: Built) -> None:
    """Somebody who has the sdist has all there is: tests, sources of the library, CI."""
    tracked = set(_tracked()) - set(LINKS)
    assert not tracked - sdist.files


def test_the_wheel_of_the_sdist_is_the_same(wheel: Built, sdist: Built, tmp_path: Path) -> None:
    """Building by way of the sdist loses and adds nothing."""
    # By `tar`: extractall wants its `filter` on new Pythons and does not know it on old ones.
    subprocess.run(["tar", "-xf", sdist.path, "-C", tmp_path], check=True)
    (source,) = tmp_path.iterdir()
    out = tmp_path / "out"
    rebuilt = _archive(_build("build_wheel", source, out, EDGELLM_PURE="1"), out)
    assert _content(wheel) == _content(rebuilt)


def test_links_that_became_text_change_nothing(
    wheel: Built, linkless: Path, tmp_path: Path
) -> None:
    """A checkout made without symbolic links builds the same wheel."""
    out = tmp_path / "out"
    built = _archive(_build("build_wheel", linkless, out, EDGELLM_PURE="1"), out)
    assert _content(wheel) == _content(built)
    assert built.path.name.endswith("-py3-none-any.whl")


def test_without_a_compiler_the_wheel_is_pure(wheel: Built, linkless: Path, tmp_path: Path) -> None:
    """A dead compiler costs the library, and not the install."""
    out = tmp_path / "out"
    built = _archive(_build("build_wheel", linkless, out, CXX="/bin/false"), out)
    assert _content(wheel) == _content(built)
    assert not any(LIBRARY.fullmatch(name) for name in built.files)
    assert built.path.name.endswith("-py3-none-any.whl")


def test_a_required_library_needs_a_compiler(linkless: Path, tmp_path: Path) -> None:
    """EDGELLM_REQUIRE_NATIVE=1 turns a dead compiler into a failed install."""
    out = tmp_path / "out"
    done = _build("build_wheel", linkless, out, CXX="/bin/false", EDGELLM_REQUIRE_NATIVE="1")
    assert done.returncode != 0
    assert not any(out.iterdir())


def test_the_links_are_links() -> None:
    """The two committed links point out of the package, and at folders that are there."""
    for link, folder in LINKS.items():
        assert (ROOT / link).readlink() == Path("..") / folder
        assert (ROOT / folder).is_dir()
