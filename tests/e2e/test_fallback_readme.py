"""The four lines of the README, from a fresh install to an answer that a loopback endpoint finishes."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import pty
import re
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from edgellm.config import set_value
from edgellm.policy.consent import Wanted, draft
from edgellm.runtime.books.audit import AuditLog
from edgellm.runtime.books.consents import ConsentBook

README = Path(__file__).resolve().parents[2] / "README.md"
SECTION = re.compile(r"^## When memory runs out\n(.*?)^## ", re.DOTALL | re.MULTILINE)
FAR = "From far away."
LIMIT_KIB = 256 << 10
"""Enough address space for the program itself, and not for the weights of the model besides."""
DEADLINE_S = 120.0


@dataclass
class Far:
    """An endpoint on this machine."""

    port: int
    asked: list[dict[str, Any]] = field(default_factory=list)


@pytest.fixture
def far() -> Iterator[Far]:
    """A server of chat completions that always says the same, and keeps what it was asked."""
    found = Far(0)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.asked.append({"path": self.path, **json.loads(body)})
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            chunks: list[dict[str, Any]] = [
                *({"choices": [{"index": 0, "delta": {"content": c}}]} for c in FAR),
                {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
                {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}},
            ]
            for chunk in chunks:
                self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
            self.wfile.write(b"data: [DONE]\n\n")

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield found
        server.shutdown()
        thread.join()


@dataclass
class Ran:
    """How a line of a shell ended."""

    code: int
    out: str
    err: str

    @property
    def told(self) -> list[str]:
        """Return the lines that tell of a change of route."""
        return [line for line in self.err.splitlines() if line.startswith("switch: ")]


@pytest.fixture
def shell(tmp_path: Path, smollm2_gguf: Path) -> Callable[..., Ran]:
    """Run a line as a person types it, in a folder with the README's model, `edgellm` on the path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "edgellm"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m edgellm "$@"\n')
    program.chmod(0o755)
    (tmp_path / "smollm2.gguf").symlink_to(smollm2_gguf)
    environ = os.environ | {
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        # Else the address space that is taken before anything happens follows the number of CPUs.
        "OPENBLAS_NUM_THREADS": "1",
        "MALLOC_ARENA_MAX": "1",
    }

    def run(line: str, typed: str = "") -> Ran:
        person, terminal = pty.openpty()
        try:
            os.write(person, typed.encode())
            done = subprocess.run(
                ["sh", "-c", line],
                stdin=terminal,
                stdout=subprocess.PIPE,
                stderr=terminal if typed else subprocess.PIPE,
                text=True,
                check=False,
                timeout=DEADLINE_S,
                cwd=tmp_path,
                env=environ,
            )
            shown = os.read(person, 1 << 16).decode() if typed else done.stderr
        finally:
            os.close(person)
            os.close(terminal)
        return Ran(done.returncode, done.stdout, shown)

    return run


def readme_lines() -> list[str]:
    """Return the lines of the section's block of commands."""
    (section,) = SECTION.findall(README.read_text(encoding="utf-8"))
    (block,) = re.findall(r"```bash\n(.*?)```", section, re.DOTALL)
    return block.splitlines()


def readme_question() -> tuple[str, str]:
    """Return the command of the section's example, and the line that it prints."""
    (section,) = SECTION.findall(README.read_text(encoding="utf-8"))
    (found,) = re.findall(r"```\n\$ (edgellm run .*)\n(switch: .*)\n\.\.\.\n```", section)
    return found


def limited(line: str) -> str:
    return f"ulimit -v {LIMIT_KIB}; {line}"


def turn_on(far: Far, home: Path, without: str = "") -> None:
    """Do what the four lines do, or three of them, in this process."""
    url = f"http://127.0.0.1:{far.port}"
    settings = {"endpoint.url": f"{url}/v1", "endpoint.model": "smollm2", "mode": "prefer-local"}
    for name, value in settings.items():
        set_value(name, None if name == without else value)
    book = ConsentBook(home)
    book.revoke()
    if without != "consent":
        wanted = Wanted("edgellm", url, "smollm2")
        book.grant(draft(wanted, micro_usd_per_day=0, now_s=time.time()))


@pytest.mark.model
def test_four_lines_turn_the_endpoint_on(shell, far: Far, edgellm_home: Path) -> None:
    """As they stand in the README, but for the port: a model that does not fit is answered elsewhere."""
    lines = readme_lines()
    assert len(lines) == 4
    command, told = readme_question()
    assert not edgellm_home.exists()
    for line in lines:
        typed = "y\n" if "consent" in line else ""
        done = shell(line.replace("127.0.0.1:8080", f"127.0.0.1:{far.port}"), typed)
        assert done.code == 0, done.err
    assert f"edgellm may send to http://127.0.0.1:{far.port}, model smollm2:" in done.err
    done = shell(limited(command))
    assert (done.code, done.out) == (0, f"{FAR}\n"), done.err
    assert done.told == [told]
    (asked,) = far.asked
    assert (asked["path"], asked["model"]) == ("/v1/chat/completions", "smollm2")
    assert asked["messages"] == [{"role": "user", "content": "Why do people love libraries?"}]
    sent_and_answered = "records: 2, all as they were written\n"
    assert shell("edgellm audit verify").out == sent_and_answered
    shown = shell("edgellm why").out
    assert f"http://127.0.0.1:{far.port}, smollm2: 9 tokens read (0 cached), 4 made, $0.00" in shown


@pytest.mark.model
@pytest.mark.parametrize("without", ["endpoint.url", "endpoint.model", "mode", "consent"])
def test_each_of_the_four_is_needed(shell, far: Far, edgellm_home: Path, without: str) -> None:
    """Without any one of them nothing is sent, and the error says what would help; exit 4."""
    turn_on(far, edgellm_home, without)
    done = shell(limited(readme_question()[0]))
    assert (done.code, done.out, done.told, far.asked) == (4, "", [], [])
    assert "ways to fit" in done.err
    word = "endpoint.url" if without.startswith("endpoint") else "`edgellm consent grant`"
    assert (word in done.err) == (without != "mode")


@pytest.mark.model
@pytest.mark.parametrize("flags", ["--mode private", "--private", "--budget-tokens 10"])
def test_a_flag_keeps_one_answer_here(shell, far: Far, edgellm_home: Path, flags: str) -> None:
    """Though all four are set: nothing is sent."""
    turn_on(far, edgellm_home)
    done = shell(limited(f"{readme_question()[0]} {flags}"))
    assert (done.code, done.out, done.told, far.asked) == (4, "", [], [])


@pytest.mark.model
def test_memory_that_runs_out_in_earnest(shell, far: Far, edgellm_home: Path) -> None:
    """With --force the model is loaded, its process dies of it, and the endpoint answers; told once."""
    turn_on(far, edgellm_home)
    done = shell(limited(f"{readme_question()[0]} --force --stats"))
    assert (done.code, done.out) == (0, f"{FAR}\n"), done.err
    assert len(done.told) == 1
    assert "memory ran out" in done.told[0]
    assert "9 tokens read (0 cached), 4 made" in done.err
    assert len(far.asked) == 1
    ((_, record),) = AuditLog(edgellm_home).show()
    assert (record.route, record.trigger, record.n_switches) == ("cloud", "load_oom", 1)


@pytest.mark.model
@pytest.mark.full
def test_a_machine_that_has_room_asks_nobody(shell, far: Far, edgellm_home: Path) -> None:
    """The endpoint is set up, the model fits: the answer is made here, and no switch is told."""
    turn_on(far, edgellm_home)
    done = shell(f"{readme_question()[0]} -n 4 --temperature 0")
    assert (done.code, done.told, far.asked) == (0, [], [])
    assert done.out.strip()


def test_an_endpoint_that_is_not_there(shell, tmp_path: Path) -> None:
    """No model and no server: an error that names both, and nothing on stdout."""
    with contextlib.closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        where = f"--endpoint {url} --endpoint-model m"
        assert shell(f"edgellm consent grant {where} --yes").code == 0
        done = shell(f"edgellm run none.gguf hi --mode prefer-local {where}")
    assert (done.code, done.out) == (1, ""), done.err
    assert f"error: {url}" in done.err
    assert "this machine: the model is not here" in done.err
