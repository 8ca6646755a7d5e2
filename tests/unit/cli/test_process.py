"""Real processes: closed pipes, Ctrl-C, terminals."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DEADLINE_S = 20.0


def read_until(fd: int, pattern: bytes, seen: bytes = b"") -> bytes:
    """Read from a terminal until `pattern` shows or the program has left it."""
    end_s = time.monotonic() + DEADLINE_S
    while not re.search(pattern, seen):
        ready, _, _ = select.select([fd], [], [], max(0, end_s - time.monotonic()))
        if not ready:
            pytest.fail(f"no {pattern!r} in {seen!r}")
        try:
            data = os.read(fd, 4096)
        except OSError:  # how Linux says that the other side is gone
            return seen
        if not data:
            return seen
        seen += data
    return seen


@pytest.mark.parametrize("flags", [[], ["--json"], ["--stats"]])
def test_closed_pipe_ends_quietly(
    fake_process: Callable[..., subprocess.Popen[bytes]],
    fake_model: Callable[..., Path],
    flags: list[str],
):
    """A reader that has enough leaves no traceback behind, nor `Exception ignored`."""
    model = fake_model(endless=True)
    process = fake_process("run", model, "hi", *flags, stdin=subprocess.DEVNULL)
    assert len(process.stdout.read(1)) == 1
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(DEADLINE_S) == 141


def test_help_into_a_closed_pipe_ends_quietly(fake_process: Callable[..., subprocess.Popen[bytes]]):
    """So does --help."""
    reader, writer = os.pipe()
    os.close(reader)
    process = fake_process("run", "--help", stdin=subprocess.DEVNULL, stdout=writer)
    os.close(writer)
    assert process.stderr.read() == b""
    assert process.wait(DEADLINE_S) in (1, 141)


def test_interrupt_ends_the_answer_and_keeps_it(
    fake_process: Callable[..., subprocess.Popen[bytes]], fake_model: Callable[..., Path]
):
    """Ctrl-C: the text so far with its newline, the figures, exit 130, no traceback."""
    model = fake_model(endless=True, delay_s=0.01)
    process = fake_process("run", model, "hi", "--stats", stdin=subprocess.DEVNULL)
    start = process.stdout.read(11)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    assert (start + out).startswith(b"Hello there")
    assert out.endswith(b"\n")
    assert b"cancelled" in err
    assert b"Traceback" not in err


def test_interrupt_as_json_ends_with_done(
    fake_process: Callable[..., subprocess.Popen[bytes]], fake_model: Callable[..., Path]
):
    """With --json the last line says that the answer was cancelled."""
    model = fake_model(endless=True, delay_s=0.01)
    process = fake_process("run", model, "hi", "--json", stdin=subprocess.DEVNULL)
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    assert b'"finish_reason": "cancelled"' in out.splitlines()[-1]


def test_chat_on_a_terminal(
    fake_process: Callable[..., subprocess.Popen[bytes]],
    fake_model: Callable[..., Path],
    edgellm_home: Path,
):
    """Typing, Ctrl-C in an answer, Ctrl-C at the prompt, a second answer, Ctrl-D, history."""
    screen, keys = pty.openpty()
    model = fake_model(endless=True, delay_s=0.01)
    settings = dict.fromkeys(("stdin", "stdout", "stderr"), keys)
    process = fake_process(
        "chat", model, start_new_session=True, preexec_fn=_own_terminal, **settings
    )
    os.close(keys)
    read_until(screen, rb">>> ")
    os.write(screen, b"one\n")
    read_until(screen, rb"again again")
    os.write(screen, b"\x03")
    read_until(screen, rb">>> ")
    os.write(screen, b"half a line")
    read_until(screen, rb"half a line")
    time.sleep(0.1)  # readline shows a line before it waits for the next key
    os.write(screen, b"\x03")
    read_until(screen, rb"Ctrl-C again leaves\)\s+(\x1b\S+)?>>> ")
    os.write(screen, b"/stats\n")
    read_until(screen, rb"cancelled[\s\S]*>>> ")
    os.write(screen, b"\x04")
    rest = read_until(screen, rb"never printed")
    os.close(screen)
    assert process.wait(DEADLINE_S) == 0
    assert b"Traceback" not in rest
    history = edgellm_home / "history"
    assert history.read_text(encoding="utf-8") == "one\n/stats\n"
    assert history.stat().st_mode & 0o777 == 0o600


def _own_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that a typed Ctrl-C becomes a signal


def test_module_runs_as_the_command():
    """`python -m edgellm` is the command, and --help loads no heavy library."""
    code = (
        "import sys; from edgellm.cli.app import main; code = main(['run', '--help'])\n"
        "heavy = {'numpy', 'rich', 'jinja2', 'httpx', 'psutil', 'llama_cpp', 'gguf', 'torch'}\n"
        "print(sorted(heavy & set(sys.modules)), code, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stderr == b"[] 0\n"
    help_text = subprocess.run(
        [sys.executable, "-m", "edgellm", "--help"], capture_output=True, check=True
    )
    assert b"Usage: edgellm" in help_text.stdout
