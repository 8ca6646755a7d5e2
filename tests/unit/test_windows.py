r"""What Windows cannot keep or open, told without a Windows: reserved names, `\\?\`, no POSIX."""

from __future__ import annotations

import ntpath
import os
import subprocess
import sys
from pathlib import Path, PureWindowsPath

import pytest

from edgellm import windows
from edgellm.errors import UsageError
from edgellm.fileio import check_name, rename_over, temp_name

LONG = "x" * 300


@pytest.mark.parametrize(
    "name",
    [
        *(
            "CON",
            "con",
            "NUL",
            "nul.gguf",
            "aux.gguf",
            "PRN.tar.gz",
            "COM1",
            "com9.txt",
            "LPT0.bin",
        ),
        *("COM¹", "lpt³.x", "CONIN$", "conout$.txt", "NUL .gguf", "nul.", "aux.gguf.partial"),
        *("a.", "a ", "a. ", ".. ", "...", "a:b.gguf", "a?b", "a*", "a|b", 'a"b', "a<b", "a>b"),
        *("a\\b", "a/b", "a\nb", "a\x00b", "a\x1fb"),
    ],
)
def test_names_that_windows_cannot_keep(name: str) -> None:
    """Devices, hidden streams, wildcards, and ends that it drops."""
    assert "" != windows.name_problem(name)


@pytest.mark.parametrize(
    "name",
    [
        *("model.gguf", "CONSOLE.gguf", "nul-1.gguf", "null.gguf", "COM10.txt", "COM.txt", "auxx"),
        *(".hidden", "a b", "a..b", " a", "값 é.gguf", "PRN_", "my.con", "x" * 255, "a\u00a0"),
    ],
)
def test_names_that_it_can(name: str) -> None:
    """Only whole device names are devices."""
    assert "" == windows.name_problem(name)


def test_names_we_make_can_be_kept_everywhere(tmp_path: Path) -> None:
    """Snapshots, temporaries, partial files and content ids; one by case is one by name."""
    from edgellm.converters.claim import partial_path
    from edgellm.formats import identity
    from edgellm.store.disk.names import key_of, path_of

    keys = [key_of(digit * 64, b"\x01\x00\x00\x00") for digit in "0123456789abcdef"]
    made = [
        temp_name(tmp_path / "m.gguf").name,
        partial_path(tmp_path / "m.gguf").name,
        identity._cache_file(tmp_path.stat()).name,
        *path_of(tmp_path, "ab" * 32, b"\x01\x00\x00\x00").relative_to(tmp_path).parts,
        *keys,
    ]
    assert [] == [name for name in made if windows.name_problem(name)]
    assert len(set(keys)) == len({key.casefold() for key in keys})


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("C:\\m.gguf", "C:\\m.gguf"),
        (f"C:\\{LONG}\\m", f"\\\\?\\C:\\{LONG}\\m"),
        (f"c:/{LONG}/../{LONG}/m", f"\\\\?\\c:\\{LONG}\\m"),
        (f"\\\\host\\share\\{LONG}", f"\\\\?\\UNC\\host\\share\\{LONG}"),
        (f"//host/share/{LONG}", f"\\\\?\\UNC\\host\\share\\{LONG}"),
        (f"\\\\?\\C:\\{LONG}", f"\\\\?\\C:\\{LONG}"),
        (f"\\\\.\\pipe\\{LONG}", f"\\\\.\\pipe\\{LONG}"),
        (LONG, LONG),
        (f"C:{LONG}", f"C:{LONG}"),
        (f"C:\\Users\\Željko 한글\\{LONG}", f"\\\\?\\C:\\Users\\Željko 한글\\{LONG}"),
    ],
)
def test_long_paths(path: str, expected: str) -> None:
    """Drives, shares, paths that have the form, and those that cannot have it."""
    assert expected == windows.long_path(path)
    assert path == expected or ntpath.isabs(expected)


def test_the_systems_own_paths() -> None:
    """Elsewhere a path stays what it is, long or not; on Windows it is made absolute first."""
    assert f"/{LONG}" == windows.system_path(Path(f"/{LONG}"), "posix")
    assert "a//b" == windows.system_path("a//b", "posix")
    assert "C:\\m" == windows.system_path(PureWindowsPath("C:/m"), "nt")
    assert windows.system_path(PureWindowsPath(f"C:/{LONG}"), "nt").startswith("\\\\?\\C:\\x")


def test_a_device_is_no_output() -> None:
    """`-o aux.gguf` is refused on Windows, and a file like any other elsewhere."""
    with pytest.raises(UsageError, match="device") as caught:
        check_name(Path("aux.gguf"), "nt")
    assert "choose another name" in str(caught.value)
    check_name(Path("aux.gguf"), "posix")
    check_name(Path("model.gguf"), "nt")


class Busy:
    """A rename that Windows refuses a number of times."""

    def __init__(self, n_refusals: int) -> None:
        self.left = n_refusals
        self.waits_s: list[float] = []

    def __call__(self, old: str, new: str) -> None:
        if self.left:
            self.left -= 1
            raise PermissionError(13, "in use", new)


def test_a_file_that_is_read_is_replaced_when_it_is_free() -> None:
    """A reader holds it for a moment: the rename waits up to a second, on Windows alone."""
    busy = Busy(3)
    rename_over(Path("a"), Path("b"), os_name="nt", rename=busy, wait=busy.waits_s.append)
    assert (0, [0.01, 0.02, 0.05]) == (busy.left, busy.waits_s)
    for os_name in ("nt", "posix"):
        busy = Busy(100)
        with pytest.raises(PermissionError):
            rename_over(Path("a"), Path("b"), os_name=os_name, rename=busy, wait=lambda _: None)
        assert (93 if os_name == "nt" else 99) == busy.left


BLOCKED = """
import importlib, pkgutil, sys
import httpx, jinja2, numpy, platformdirs, psutil, tokenizers, typer, xxhash  # may have their own ways

posix = ("fcntl", "resource", "termios", "pwd", "grp", "tty", "pty", "readline", "syslog")
for name in posix:
    sys.modules[name] = None
import edgellm, edgellm.converters
for package in (edgellm, edgellm.converters):
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not found.name.endswith(("__main__", ".libedgellm_native")):
            importlib.import_module(found.name)
from edgellm.cli.app import main
codes = [main(words) for words in (["--help"], ["run", "--help"], ["info"], ["snapshots", "ls"])]
assert codes == [0] * 4, codes
assert main(["run", "no.gguf", "hi"]) == 3
"""


def test_nothing_of_posix_alone_is_needed(tmp_path: Path) -> None:
    """Every module loads, and the commands run, without fcntl, resource, termios, pwd, readline."""
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert 0 == done.returncode, done.stderr
    assert "Usage: edgellm" in done.stdout


@pytest.mark.parametrize("name", ["geteuid", "getuid", "sched_getaffinity", "sysconf", "fork"])
def test_missing_functions_of_os_are_not_missed(name: str, tmp_path: Path) -> None:
    """`os` on Windows lacks them: info and the store's commands work all the same."""
    code = (
        f"import os; del os.{name}\n"
        "from edgellm.cli.app import main\n"
        "assert main(['info']) == 0 and main(['snapshots', 'check']) == 0"
    )
    assert hasattr(os, name)
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, check=True)
