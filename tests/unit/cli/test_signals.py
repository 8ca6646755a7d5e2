"""Ctrl-C, pressed twice as well, SIGTERM, SIGHUP: real processes, exit codes and what they leave."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Process = Callable[..., subprocess.Popen[bytes]]
    Model = Callable[..., Path]

DEADLINE_S = 20.0


ENDS = [(signal.SIGTERM, 143), (signal.SIGHUP, 129)]
ALL = [(signal.SIGINT, 130), *ENDS]


@pytest.mark.parametrize(("number", "code"), ENDS)
@pytest.mark.parametrize("command", ["run", "chat"])
def test_an_end_keeps_the_answer(
    fake_process: Process, fake_model: Model, command: str, number: int, code: int
) -> None:
    """A service manager's stop, a closed window: the text so far, its newline, no traceback."""
    model = fake_model(endless=True, delay_s=0.01)
    process = fake_process(command, model, *(["hi"] if command == "run" else []))
    if command == "chat":
        process.stdin.write(b"hi\n")
        process.stdin.flush()
    start = process.stdout.read(11)
    process.send_signal(number)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert (code, b"") == (process.returncode, err)
    assert (start + out).startswith(b"Hello there")
    assert out.endswith(b"\n")


@pytest.mark.parametrize(("number", "code"), ENDS)
def test_an_end_while_a_chat_waits(
    fake_process: Process, fake_model: Model, number: int, code: int
) -> None:
    """Nobody types: it ends at once."""
    process = fake_process("chat", fake_model())
    process.stdin.write(b"hi\n")
    process.stdin.flush()
    process.stdout.readline()
    process.send_signal(number)
    assert code == process.wait(DEADLINE_S)
    assert b"" == process.stderr.read()


def test_sigterm_as_json_ends_with_done(fake_process: Process, fake_model: Model) -> None:
    """The last line is whole and says `cancelled`."""
    process = fake_process("run", fake_model(endless=True, delay_s=0.01), "hi", "--json")
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=DEADLINE_S)
    assert 143 == process.returncode
    assert "cancelled" == json.loads(out.splitlines()[-1])["finish_reason"]


@pytest.mark.parametrize(("number", "code"), ALL, ids=["ctrl-c", "sigterm", "sighup"])
def test_the_second_one_breaks_off(
    fake_process: Process, fake_model: Model, number: int, code: int
) -> None:
    """An engine that does not listen is left: at once, with the same exit code, without a word."""
    process = fake_process("run", fake_model(endless=True, delay_s=0.01, deaf=True), "hi")
    process.stdout.read(5)
    process.send_signal(number)
    process.stdout.read(30)  # the answer goes on
    process.send_signal(number)
    _, err = process.communicate(timeout=DEADLINE_S)
    assert (code, b"") == (process.returncode, err.strip())  # some versions of click end the line


WRITING = """
import signal, sys
from pathlib import Path
from edgellm.cli import commands
from edgellm.cli.app import main
from edgellm.fileio import AtomicWriter

def run_command(words):
    with AtomicWriter(Path(words[0])) as out:
        out.write(b"half")
        print("writing", flush=True)
        signal.pause()

commands.run_command = run_command
sys.exit(main())
"""


@pytest.mark.parametrize(("number", "code"), ALL)
def test_half_written_files_are_removed(tmp_path: Path, number: int, code: int) -> None:
    """Whoever writes a file when the signal comes, cleans up."""
    folder = tmp_path / "folder"
    folder.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", WRITING, str(folder / "out")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        process.stdout.readline()
        process.send_signal(number)
        _, err = process.communicate(timeout=DEADLINE_S)
    assert (code, b"", []) == (process.returncode, err, list(folder.iterdir()))


def test_nohup_is_obeyed(fake_process: Process, fake_model: Model) -> None:
    """Who started it to outlive the terminal is not asked again: the answer comes whole."""
    process = fake_process(
        "run",
        fake_model(delay_s=0.02),
        "hi",
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    start = process.stdout.read(1)
    process.send_signal(signal.SIGHUP)
    out, _ = process.communicate(timeout=DEADLINE_S)
    assert 0 == process.returncode
    assert (start + out).endswith(b"\n")


def test_handlers_are_those_of_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that calls `main` keeps its own way to be terminated."""
    from edgellm.cli.app import main

    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    assert 2 == main(["no-such-command"])
    assert before == [signal.getsignal(number) for number in numbers]


def test_a_reader_that_leaves_while_a_signal_comes(
    fake_process: Process, fake_model: Model
) -> None:
    """Both at once is still quiet."""
    process = fake_process("run", fake_model(endless=True, delay_s=0.01), "hi")
    process.stdout.read(5)
    os.kill(process.pid, signal.SIGINT)
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(DEADLINE_S) in (130, 141)
