"""Children that end with their parent, and with their time: real processes, really killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from edgellm.runtime.tether import tether

if TYPE_CHECKING:
    from collections.abc import Callable

DEADLINE_S = 20.0
ROOT = Path(__file__).resolve().parents[3]
CHECKPOINT = ROOT / "tests" / "data" / "checkpoints" / "linear-bf16"
TIED = "from edgellm.runtime.tether import tie; tie({limit_s}); print('tied', flush=True); "
WAITS = TIED.format(limit_s=600) + "import threading; threading.Event().wait()"
SPINS = TIED.format(limit_s=0.3) + "import re; re.match('(a+)+$', 'a' * 60 + 'b')"
READS = TIED.format(limit_s=600) + "import sys; print(repr(sys.stdin.read()))"
PARENT = f"""
import subprocess, sys
from edgellm.runtime.tether import tether
with tether() as end:
    subprocess.run([sys.executable, "-c", {WAITS!r}], stdin=end)
"""
CONVERT = """
import sys
from edgellm.cli.app import main
from edgellm.runtime import proof
proof._START = proof._TIE + "import os, threading; open(%r, 'w').write(f'{os.getpid()}\\\\n'); " + (
    "threading.Event().wait()"
)
sys.exit(main(["convert", *sys.argv[1:], "--type", "q8_0"]))
"""


def is_running(pid: int) -> bool:
    """Nobody may have collected what a dead orphan left."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def wait_for(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_a_killed_parent_takes_its_child_along() -> None:
    """Both hold the pipe that is read here: its end is the end of both."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, cwd=ROOT
    ) as parent:
        assert parent.stdout.readline() == b"tied\n"
        parent.kill()
        assert parent.communicate(timeout=DEADLINE_S)[0] == b""


def test_time_is_up_even_within_a_pattern_without_end() -> None:
    """One that lets no other thread of the interpreter run."""
    with tether() as end:
        done = subprocess.run(
            [sys.executable, "-c", SPINS],
            stdin=end,
            capture_output=True,
            timeout=DEADLINE_S,
            check=False,
            cwd=ROOT,
        )
    assert (done.returncode, done.stdout) == (1, b"tied\n")
    assert b"Timeout" in done.stderr


def test_a_tied_childs_stdin_is_empty_and_it_may_end_as_it_likes() -> None:
    """Whatever reads stdin in it does not wait for the parent."""
    with tether() as end:
        done = subprocess.run(
            [sys.executable, "-c", READS],
            stdin=end,
            capture_output=True,
            timeout=DEADLINE_S,
            check=False,
            cwd=ROOT,
        )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"tied\n''\n", b"")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGHUP, 129), (signal.SIGTERM, 143)])
def test_a_signal_during_the_proof_leaves_neither_file_nor_process(
    tmp_path: Path, number: int, code: int
) -> None:
    """A closed terminal ends a conversion as SIGTERM does."""
    out, said = tmp_path / "m.gguf", tmp_path / "pid"
    command = [sys.executable, "-c", CONVERT % str(said), str(CHECKPOINT), "-o", str(out)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, cwd=ROOT) as parent:
        wait_for(lambda: said.exists() and said.read_text().endswith("\n"))
        parent.send_signal(number)
        parent.communicate(timeout=DEADLINE_S)
    assert parent.returncode == code
    wait_for(lambda: not is_running(int(said.read_text())))
    assert names(tmp_path) == ["pid"]


def test_a_conversion_killed_during_the_proof_leaves_no_process(tmp_path: Path) -> None:
    """One file stays, as after any kill, and nobody works on for nothing."""
    out, said = tmp_path / "m.gguf", tmp_path / "pid"
    command = [sys.executable, "-c", CONVERT % str(said), str(CHECKPOINT), "-o", str(out)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, cwd=ROOT) as parent:
        wait_for(lambda: said.exists() and said.read_text().endswith("\n"))
        parent.kill()
        parent.communicate(timeout=DEADLINE_S)
    wait_for(lambda: not is_running(int(said.read_text())))
    assert names(tmp_path) == [".m.gguf.edgellm-partial", "pid"]
