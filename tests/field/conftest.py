"""The field samples: bad and odd inputs, written anew for each run, and a way to give them to edgellm."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from edgellm.cli.app import main
from edgellm.core import Done, Message, Request, Sampling, Tier, Warn
from edgellm.engines.base import EngineSettings
from edgellm.runtime.local import LocalSession, open_session
from edgellm.runtime.session import SessionOptions

HERE = Path(__file__).resolve().parent
MARKER = "FIELD_MARKER_EXECUTED"
TIME_LIMIT_S = 20  # 5 s of work on a quiet machine, and a start on a busy one
MEMORY_LIMIT_BYTES = 4_000_000 * 1024
RULES = "Always answer in rhyme, and mention the sea at least once. " * 12
FLAGS = ("--temperature", 0, "--threads", 1, "-n", 6, "--ctx", 1024, "--snapshot", "exact")

Run = Callable[..., subprocess.CompletedProcess[str]]


@dataclass(frozen=True, slots=True)
class Called:
    """How a command ended in this process, and the CPU time it took here."""

    returncode: int
    stdout: str
    stderr: str
    cpu_s: float


Call = Callable[..., Called]


@dataclass(frozen=True, slots=True)
class Told:
    """What an answer came with: its text, and what became of snapshots."""

    text: str
    code: str
    n_reused: int
    n_prompt: int
    warnings: tuple[str, ...]


Answer = Callable[..., Told]
Open = Callable[..., LocalSession]


@pytest.fixture(scope="session")
def field_samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write all samples; the table beside the generator says which there must be, and how long."""
    folder = tmp_path_factory.mktemp("field")
    shutil.copy(HERE / "gen_inputs.py", folder)
    subprocess.run([sys.executable, "gen_inputs.py"], cwd=folder, check=True, capture_output=True)
    expected = json.loads((HERE / "MANIFEST.json").read_text("utf-8"))
    made = json.loads((folder / "MANIFEST.json").read_text("utf-8"))
    assert made == expected, (
        "gen_inputs.py and MANIFEST.json differ: run the first in a copy of the folder, look at what "
        "changed there, and bring the second back"
    )
    return folder


@pytest.fixture(scope="session")
def endpoint_samples(load_module: Callable[[Path], ModuleType]) -> ModuleType:
    """Samples of sse/ and http/ as endpoints, and what the client makes of them."""
    return load_module(HERE / "endpoint_samples.py")


@pytest.fixture(scope="session")
def make_control(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that writes the control model anew, with another template, context or end."""
    spec = importlib.util.spec_from_file_location("gen_inputs", HERE / "gen_inputs.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    folder = tmp_path_factory.mktemp("control")

    def make(template: str | None = None, *, n_ctx: int = 64, eos: int = 2) -> Path:
        path = folder / f"{len(list(folder.iterdir()))}.gguf"
        metadata = made.base(ctx=n_ctx) + made.vocab(eos=eos, tmpl=template)
        path.write_bytes(made.gguf(metadata, *made.tensors()))
        return path

    return make


@pytest.fixture
def run_edgellm(tmp_path: Path, warm_start: Any) -> Run:
    """Return a function that runs `edgellm ARGS` in its own process, under limits, and checks the rest.

    A signal, a hang, a traceback, or the marker of executed code is a failure whatever is printed.
    The imports are not paid each time: the process is forked behind them.
    """

    def run(
        *args: object, stdin: bytes = b"", memory_bytes: int = MEMORY_LIMIT_BYTES
    ) -> subprocess.CompletedProcess[str]:
        done = warm_start.run(
            args, cwd=tmp_path, timeout=TIME_LIMIT_S, stdin=stdin, memory_bytes=memory_bytes
        )
        out = done.stdout.decode("utf-8", "backslashreplace")
        err = done.stderr.decode("utf-8", "backslashreplace")
        told = f"{args}: exit {done.returncode}\n{out}\n{err}"
        assert done.returncode >= 0, f"killed by a signal: {told}"
        assert "Traceback" not in err, told
        assert not list(tmp_path.rglob(MARKER)), f"code of the sample ran: {told}"
        return subprocess.CompletedProcess(args, done.returncode, out, err)

    return run


@pytest.fixture
def call_edgellm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Call:
    """Return a function that runs `edgellm ARGS` here, for what starts no engine; no start is paid.

    Its time can be limited: it is the command's own work. The marker of executed code is a failure.
    """

    def call(*args: object) -> Called:
        monkeypatch.chdir(tmp_path)
        capsys.readouterr()
        started_s = time.process_time()
        code = main([str(arg) for arg in args])
        cpu_s = time.process_time() - started_s
        out, err = capsys.readouterr()
        assert "Traceback" not in err, err
        assert not list(tmp_path.rglob(MARKER)), f"code of the sample ran: {args}"
        return Called(code, out, err, cpu_s)

    return call


@pytest.fixture
def answer(call_edgellm: Call) -> Answer:
    """Return a function that asks a model something by the command, which opens it anew each time.

    It runs here, or where `run` has it run; without a system prompt where `system` is None.
    """

    def ask_once(
        model: Path,
        *flags: object,
        system: str | None = RULES,
        run: Callable[..., Any] = call_edgellm,
    ) -> Told:
        given = () if system is None else ("--system", system)
        done = run("run", model, "Hello", *given, "--json", *FLAGS, *flags)
        assert done.returncode == 0, done.stderr
        lines: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
        warnings = tuple(line["message"] for line in lines if line["type"] == "warning")
        last, usage = lines[-1], lines[-1]["usage"]
        code = last["snapshot"]["code"]
        return Told(last["text"], code, usage["reused_tokens"], usage["prompt_tokens"], warnings)

    return ask_once


@pytest.fixture
def open_keeping() -> Iterator[Open]:
    """Return a function that opens a session which keeps what it reads, unless options say otherwise."""
    opened: list[LocalSession] = []

    def open_one(path: Path, **options: Any) -> LocalSession:
        given = {"snapshot": Tier.EXACT, "n_ctx": 1024} | options
        opened.append(open_session(path, SessionOptions(EngineSettings(n_threads=1), **given)))
        return opened[-1]

    yield open_one
    for session in opened:
        session.close()


@pytest.fixture
def ask_in() -> Answer:
    """Return a function that asks a session for the next turn, and waits for what is written."""

    def ask(session: LocalSession, system: str, *turns: str, n: int = 6) -> Told:
        roles = ("user", "assistant")
        messages = [Message(roles[i % 2], text) for i, text in enumerate(turns)]
        first = Message("system", system)
        *events, done = session.stream(Request((first, *messages), n, sampling=Sampling(0)))
        assert isinstance(done, Done)
        assert session._writer is None or session._writer.settle(60)
        warnings = tuple(event.message for event in events if isinstance(event, Warn))
        usage, code = done.usage, done.snapshot.code
        return Told(done.text, code, usage.reused_tokens, usage.prompt_tokens, warnings)

    return ask
