"""One run at a time writes a file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgellm.converters.claim import claim, clear_partial, partial_path
from edgellm.errors import UsageError

HOLD = """
import sys
from pathlib import Path
from edgellm.converters.claim import claim
path, out = map(Path, sys.argv[1:])
with claim(path, out):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_what_a_dead_run_left_is_removed(tmp_path: Path) -> None:
    """A partial file that nobody holds is in nobody's way."""
    out = tmp_path / "m.gguf"
    clear_partial(out)
    for left in (b"GGUF half", b"GG", b""):
        partial_path(out).write_bytes(left)
        clear_partial(out)
        assert not partial_path(out).exists()


def test_a_live_run_is_refused_and_its_death_frees_the_file(tmp_path: Path) -> None:
    """The claim is the process's: killed, it is gone."""
    out = tmp_path / "m.gguf"
    path = partial_path(out)
    path.write_bytes(b"GGUF half")
    command = [sys.executable, "-c", HOLD, str(path), str(out)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(UsageError, match="another conversion"):
            clear_partial(out)
        assert path.exists()
        holder.kill()
    clear_partial(out)
    assert not path.exists()


def test_a_file_that_was_replaced_is_not_ours(tmp_path: Path) -> None:
    """Between making and claiming, another run may have taken the name."""
    out = tmp_path / "m.gguf"
    path = partial_path(out)
    path.write_bytes(b"ours")
    with claim(path, out), pytest.raises(UsageError), claim(path, out):
        pass


def test_a_file_of_the_users_own_stays(tmp_path: Path) -> None:
    """Only the beginning of a GGUF is ours to remove."""
    out = tmp_path / "m.gguf"
    partial_path(out).write_bytes(b"my notes")
    with pytest.raises(UsageError, match=r"\.m\.gguf\.edgellm-partial.*in the way"):
        clear_partial(out)
    assert partial_path(out).read_bytes() == b"my notes"


@pytest.mark.parametrize("name", ["m.gguf.partial", ".m.gguf.partial", "m.gguf.edgellm-partial"])
def test_only_our_own_name_is_cleared(tmp_path: Path, name: str) -> None:
    """A GGUF, whole or begun, or an empty file beside it has a name that people give files."""
    for content in (b"GGUF precious", b""):
        (tmp_path / name).write_bytes(content)
        clear_partial(tmp_path / "m.gguf")
        assert (tmp_path / name).read_bytes() == content


@pytest.mark.parametrize("name", ["m.gguf", "x" * 255, "값" * 85, "x" * 238, "x" * 239])
def test_any_name_that_a_file_can_have_has_a_partial_one(tmp_path: Path, name: str) -> None:
    """Hidden, ours by its ending, and no longer than file systems take."""
    path = partial_path(tmp_path / name)
    assert path.parent == tmp_path
    assert path.name.startswith(".")
    assert path.name.endswith(".edgellm-partial")
    assert path != partial_path(tmp_path / f"{name[:-1]}y")
    path.touch()


@pytest.mark.parametrize("kind", ["fifo", "folder", "link"])
def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path, kind: str) -> None:
    """Opening a pipe that nobody writes to must not hang; a link's target is not touched."""
    out = tmp_path / "m.gguf"
    path, target = partial_path(out), tmp_path / "target"
    target.write_bytes(b"GGUF")
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(target)
    with pytest.raises(UsageError, match="in the way"):
        clear_partial(out)
    assert target.read_bytes() == b"GGUF"
    assert os.path.lexists(path)
