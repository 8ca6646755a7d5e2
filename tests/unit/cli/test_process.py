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
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

DEADLINE_S = 20.0
FAKE = Path(__file__).with_name("fake_session.py")


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
    assert process.wait(DEADLINE_S) == 141


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_what_the_parser_prints_into_a_closed_pipe_ends_quietly(arguments: list[str]):
    """`edgellm --help | true` exits as every command does that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "edgellm", *arguments]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def in_shell(words: str, *arguments: object) -> subprocess.CompletedProcess[bytes]:
    """Run `$@`, the fake `edgellm` with arguments, in a shell that redirects as `words` say."""
    command = ["sh", "-c", f'"$@" {words}', "sh", sys.executable, str(FAKE), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, check=False)


@pytest.mark.parametrize("arguments", [("run", "hi"), ("run", "hi", "--json"), ("info",)])
def test_closed_stdout_is_a_reader_that_left(
    fake_model: Callable[..., Path], arguments: tuple[str, ...]
):
    """`>&-` ends as a closed pipe does: 141, without a word."""
    command, *rest = arguments
    model = [fake_model()] if command == "run" else []
    done = in_shell(">&-", command, *model, *rest)
    assert (done.returncode, done.stderr) == (141, b"")


def test_error_keeps_its_exit_code_when_nobody_reads(tmp_path: Path):
    """The error was told on stderr: a stdout that is closed or full does not hide what went wrong."""
    for words in (">&-", "> /dev/full"):
        done = in_shell(words, "run", tmp_path / "no.gguf", "hi", "--json")
        assert done.returncode == 3
        assert done.stderr.startswith(b"error: ")
        assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_full_stdout_is_one_error_line(fake_model: Callable[..., Path], flags: list[str]):
    """A disk that is full under stdout: exit 4, one line, nothing at the interpreter's exit."""
    done = in_shell("> /dev/full", "run", fake_model(), "hi", *flags)
    assert done.stderr == b"error: stdout: No space left on device\n"
    assert done.returncode == 4


def test_closed_stderr_changes_nothing(fake_model: Callable[..., Path]):
    """`2>&-` loses the warnings, no more."""
    done = in_shell("2>&-", "run", fake_model(warn="careful"), "hi", "--stats")
    assert (done.returncode, done.stdout) == (0, b"Hello there\n")


@pytest.mark.parametrize("command", ["run", "chat"])
def test_closed_stdin_without_a_prompt_is_a_usage_error(
    fake_model: Callable[..., Path], command: str
):
    """`<&-` leaves nothing to answer: exit 2, and a hint."""
    done = in_shell("<&-", command, fake_model())
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"error: stdin is closed\n\nhint: ")


def test_closed_streams_are_not_taken_by_files():
    """The first file that is opened must not become stdout or stderr for a library in C."""
    code = "import os; from edgellm.cli.app import main; main(['-x']); print(os.open('.', 0))"
    command = ["sh", "-c", '"$@" <&- 2>&-', "sh", sys.executable, "-c", code]
    assert int(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout) > 2


def test_interrupt_during_imports_is_quiet(tmp_path: Path):
    """Ctrl-C before the first library is loaded: exit 130, no traceback."""
    stub = "import signal\nsignal.raise_signal(signal.SIGINT)\n"
    (tmp_path / "typer.py").write_text(stub, encoding="utf-8")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "edgellm", "--help"]
    done = subprocess.run(command, capture_output=True, env=environ, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


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
