"""The command line over a fake session, in this process or in another one."""

from __future__ import annotations

import importlib.util
import io
import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from edgellm.cli.app import main

if TYPE_CHECKING:
    from collections.abc import Callable

FAKE = Path(__file__).with_name("fake_session.py")


@dataclass
class Result:
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Return stdout as JSON values, one a line."""
        return [json.loads(line) for line in self.out.splitlines()]


@dataclass
class Cli:
    """Runs commands in this process; `sessions` holds what they opened."""

    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]
    sessions: list[Any] = field(default_factory=list)

    def __call__(self, *arguments: object, stdin: bytes = b"", terminal: bool = False) -> Result:
        """Run one command, with `stdin` before it or a terminal."""
        file = io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8")
        self.monkeypatch.setattr(file, "isatty", lambda: terminal, raising=False)
        self.monkeypatch.setattr(sys, "stdin", file)
        self.capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        return Result(code, *self.capsys.readouterr())


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run `edgellm` here, over fake sessions."""
    spec = importlib.util.spec_from_file_location("edgellm_test_fake_session", FAKE)
    fake = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fake)
    runner = Cli(monkeypatch, capsys)
    monkeypatch.setitem(sys.modules, "edgellm.runtime.opening", fake.fake_runtime(runner.sessions))
    return runner


@pytest.fixture
def fake_model(tmp_path: Path) -> Callable[..., Path]:
    """Write a file that says how a fake session answers."""

    def make(**script: object) -> Path:
        path = tmp_path / "fake.gguf"
        path.write_text(json.dumps(script), encoding="utf-8")
        return path

    return make


@pytest.fixture
def fake_process() -> Callable[..., subprocess.Popen[bytes]]:
    """Start `edgellm` over a fake session in a process of its own."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: object, **settings: Any) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(FAKE), *map(str, arguments)]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        started.append(subprocess.Popen(command, **{**pipes, **settings}))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
