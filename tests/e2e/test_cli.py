"""The command line over a real model: cold and warm, Ctrl-C, a closed pipe, chat."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    Edgellm = Callable[..., subprocess.Popen[bytes]]

pytestmark = pytest.mark.model

ROOT = Path(__file__).parents[2]
DEADLINE_S = 120.0
RULES = "\n".join(
    f"Rule {n}: answer in short sentences, name no more than {n} things, and stay polite."
    for n in range(1, 9)
)
GREEDY = ("--temperature", "0", "--threads", "2")


@pytest.fixture
def edgellm() -> Edgellm:
    """Start `python -m edgellm` in a process of its own."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: object, **settings: Any) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "edgellm", *map(str, arguments)],
            **{
                "stdin": subprocess.DEVNULL,
                "stdout": subprocess.PIPE,
                "stderr": subprocess.PIPE,
                **settings,
            },
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def events(process: subprocess.Popen[bytes], stdin: bytes | None = None) -> list[dict[str, Any]]:
    """Wait for a process that ends well and return its JSON lines."""
    out, err = process.communicate(stdin, timeout=DEADLINE_S)
    assert process.returncode == 0, err.decode()
    return [json.loads(line) for line in out.splitlines()]


def test_second_process_starts_warm_with_the_same_answer(
    edgellm: Edgellm, smollm2_gguf: Path, tmp_path: Path
) -> None:
    """Cold, warm and without snapshots say the same; the warm one reads the prefix from disk."""
    rules = tmp_path / "rules.txt"
    rules.write_text(RULES, encoding="utf-8")
    asked = ("run", smollm2_gguf, "Name a river.", "--system-file", rules, "-n", "8", "--json")
    cold, warm = (events(edgellm(*asked, *GREEDY))[-1] for _ in range(2))
    off = events(edgellm(*asked, *GREEDY, "--snapshot", "off"))[-1]
    assert cold["text"] == warm["text"] == off["text"] != ""
    assert cold["usage"]["reused_tokens"] == off["usage"]["reused_tokens"] == 0
    assert warm["usage"]["reused_tokens"] > 128
    assert warm["snapshot"]["key"] == cold["snapshot"]["key"] != ""
    listed = events(edgellm("snapshots", "ls", "--json"))
    assert [entry["key"] for entry in listed] == [cold["snapshot"]["key"]]
    assert events(edgellm("snapshots", "check", "--json")) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupt_keeps_the_answer_so_far(
    edgellm: Edgellm, smollm2_gguf: Path, number: int, code: int
) -> None:
    """Ctrl-C or SIGTERM during decoding: the text so far, one newline, no traceback."""
    process = edgellm("run", smollm2_gguf, "Count to a thousand.", *GREEDY, "--stats")
    start = process.stdout.read(1)
    process.send_signal(number)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == code, err.decode()
    assert (start + out).endswith(b"\n")
    assert (b"cancelled" in err) is (code == 130)  # who is terminated shows no figures
    assert b"Traceback" not in err
    assert b"ignored" not in err


def test_interrupt_while_the_prompt_is_read(edgellm: Edgellm, smollm2_gguf: Path) -> None:
    """Ctrl-C reaches an engine that is inside one long call: exit 130, no answer, no traceback."""
    screen, far_end = pty.openpty()
    process = edgellm(
        "run", smollm2_gguf, "word " * 4000, "--batch", "8192", *GREEDY, stderr=far_end
    )
    os.close(far_end)
    shown = b""
    while b"reading the prompt" not in shown:
        shown += os.read(screen, 1024)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=DEADLINE_S)
    with contextlib.suppress(OSError):  # how Linux says that nothing is left to read
        while more := os.read(screen, 1024):
            shown += more
    os.close(screen)
    assert (process.returncode, out) == (130, b"\n")
    assert b"Traceback" not in shown


def test_closed_pipe_is_quiet(edgellm: Edgellm, smollm2_gguf: Path) -> None:
    """`| head -c 1` ends the command at once and without a word."""
    process = edgellm("run", smollm2_gguf, "Count to a thousand.", *GREEDY)
    process.stdout.read(1)
    process.stdout.close()
    assert process.wait(DEADLINE_S) == 141
    assert process.stderr.read() == b""


def test_chat_decodes_only_what_is_new(edgellm: Edgellm, smollm2_gguf: Path) -> None:
    """The second turn finds the first one, answer included, in the memory."""
    process = edgellm("chat", smollm2_gguf, "-n", "12", "--json", *GREEDY, stdin=subprocess.PIPE)
    lines = events(process, b"Name a river.\nAnd a mountain?\n")
    first, second = (line for line in lines if line["type"] == "done")
    before = first["usage"]["prompt_tokens"] + first["usage"]["completion_tokens"]
    assert second["usage"]["reused_tokens"] >= before - 1


def test_without_an_engine_run_names_the_install_command(
    edgellm: Edgellm, smollm2_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installation without llama-cpp-python: exit 1, and the command that adds it."""
    hidden = tmp_path / "llama_cpp.py"
    hidden.write_text("raise ModuleNotFoundError(name='llama_cpp')\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    process = subprocess.run(
        [sys.executable, "-c", BARE, "run", str(smollm2_gguf), "hi"],
        cwd=ROOT,
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert process.returncode == 1, process.stderr.decode()
    assert b"llama-cpp-python" in process.stderr
    assert b"Traceback" not in process.stderr


BARE = """
import sys
sys.modules["llama_cpp"] = None  # as if it were not installed
from edgellm.cli.app import main
sys.exit(main())
"""
