"""Real out-of-memory: the kernel kills the worker under a memory limit, and the program answers."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HOST = Path(__file__).with_name("oom_host.py")
V1 = Path("/sys/fs/cgroup/memory")
V2 = Path("/sys/fs/cgroup")
MIB = 1 << 20
FULL = pytest.mark.full
PHASES = [
    pytest.param("load", marks=FULL),
    pytest.param("prefill", marks=FULL),
    "token 5",
    pytest.param("snapshot", marks=FULL),
]
OUTCOME_S = 2.0
LATE_S = 0.05
"""By so much whoever looks for the death may see it later than the program does."""


@dataclass
class Told:
    """What a host printed."""

    lines: list[dict[str, Any]]
    code: int

    @property
    def events(self) -> list[dict[str, Any]]:
        return [line["event"] for line in self.lines if line["kind"] == "event"]

    @property
    def text(self) -> str:
        pieces: list[str] = []
        for event in self.events:
            if event["type"] == "switch" and event["discard_from_seq"] is not None:
                del pieces[event["discard_from_seq"] :]
            elif event["type"] == "token":
                assert event["seq"] == len(pieces), "a piece is missing, or came twice"
                pieces.append(event["text"])
        return "".join(pieces)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == kind]

    @property
    def error(self) -> dict[str, Any]:
        """The error that it ended with, raised or as the last event."""
        raised = [line for line in self.lines if line["kind"] == "error"]
        return raised[0] if raised else self.of("error")[0]

    @property
    def died_s(self) -> float:
        return float(self.lines[-1]["died_s"])

    @property
    def outcome_s(self) -> float:
        """Time from the worker's death to the next word of the program about it."""
        seen_s = self.died_s - LATE_S
        words = [line["s"] for line in self.lines if line["s"] >= seen_s and not _is_token(line)]
        return float(min(words)) - self.died_s


Host = Callable[..., Told]


def _is_token(line: dict[str, Any]) -> bool:
    return line["kind"] == "event" and line["event"]["type"] == "token"


def _new_group(limit_bytes: int) -> tuple[Path, str] | None:
    """Make a memory group with a limit, of the version there is; None where nobody may."""
    name = f"edgellm-test-{os.getpid()}-{time.monotonic_ns()}"
    for root, limit in ((V1, "memory.limit_in_bytes"), (V2, "memory.max")):
        if not (root / "cgroup.procs").exists():
            continue
        folder = root / name
        with contextlib.suppress(OSError):
            folder.mkdir()
            (folder / limit).write_text(str(limit_bytes))
            return folder, "cgroup"
        with contextlib.suppress(OSError):
            folder.rmdir()
    return None


@pytest.fixture
def host(edgellm_home: Path, tiny_models: Path) -> Iterator[Host]:
    """Run the host in a memory group of its own; without one, there is nothing to run it in."""
    groups: list[Path] = []

    # A worker counts as half the limit more than it takes, so the kernel picks it before the rest.
    def run(*words: str, limit_bytes: int = 200 * MIB, model: Path | None = None) -> Told:
        made = _new_group(limit_bytes)
        if made is None:
            pytest.skip("no memory control group can be made here; test_faults.py needs none")
        folder, _ = made
        groups.append(folder)
        path = tiny_models / "tiny-llama.gguf" if model is None else model
        process = subprocess.Popen(
            [sys.executable, str(HOST), str(path), *words],
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: (folder / "cgroup.procs").write_text(str(os.getpid())),  # noqa: PLW1509  # tests run in one thread
        )
        out, _ = process.communicate(timeout=90)
        return Told([json.loads(line) for line in out.splitlines()], process.returncode)

    yield run
    for folder in groups:
        _remove(folder)


def _remove(folder: Path) -> None:
    deadline_s = time.monotonic() + 5
    while time.monotonic() < deadline_s:
        with contextlib.suppress(OSError):
            folder.rmdir()
            return
        time.sleep(0.02)  # the last process of it is on its way out


@pytest.fixture
def slowly(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Make one phase last long enough to be hit."""

    def at(phase: str) -> None:
        steps = {"token 5": "decode:6"}.get(phase, phase)
        monkeypatch.setenv("EDGELLM_WORKER_FAULT", f"{steps}:slow")

    return at


@pytest.mark.parametrize("phase", PHASES)
def test_private_finishes_one_step_lower(host: Host, slowly, phase: str) -> None:
    """The kernel kills the worker, the host lives, and the answer is made here, in private mode."""
    slowly(phase)
    told = host("--at", phase)
    assert told.code == 0
    assert told.of("done"), told.lines
    assert told.text == told.of("done")[0]["text"]
    if phase != "load":  # who opens a model waits until it is open, or an error says that it is not
        assert told.outcome_s < OUTCOME_S
    said = [event["message"] for event in told.of("warning")] + [
        event["reason"] for event in told.of("switch")
    ]
    assert any("memory ran out" in words for words in said), said


def test_what_keeps_running_out_is_one_typed_error(host: Host, slowly) -> None:
    """Memory that does not come back: `OutOfMemory` with evidence and remedy, in time, exit 4."""
    slowly("token 5")
    told = host("--at", "token 5", "--keep")
    assert told.code == 0
    assert (told.error["code"], told.error["exit"]) == ("out_of_memory", 4)
    assert told.outcome_s < OUTCOME_S


@pytest.mark.parametrize("phase", [pytest.param("prefill", marks=FULL), "token 5"])
def test_prefer_local_finishes_at_the_endpoint(
    host: Host, slowly, endpoint_server: ModuleType, phase: str
) -> None:
    """When this machine cannot, the endpoint finishes the answer: one `Switch` of the route."""
    slowly(phase)

    def handle(line: Any) -> None:
        line.stream(
            {"choices": [{"index": 0, "delta": {"content": " to the sea"}, "finish_reason": None}]},
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        )

    with endpoint_server.serving(handle) as server:
        told = host("--at", phase, "--keep", "--endpoint", server.url)
        assert len(server.asked) == 1
    assert told.code == 0
    done = told.of("done")[0]
    assert (done["route"], done["text"]) == ("cloud", told.text)
    assert told.text.endswith(" to the sea")
    routes = [(switch["from"], switch["to"]) for switch in told.of("switch")]
    assert routes.count(("local", "cloud")) == 1
    assert told.outcome_s < OUTCOME_S


@pytest.mark.model
@pytest.mark.full
def test_a_real_model_under_a_limit_that_it_cannot_fit(host: Host, smollm2_gguf: Path) -> None:
    """Said before anything is loaded: refused with ways to fit, and exit code 4."""
    told = host("--ctx", "8192", limit_bytes=200 * MIB, model=smollm2_gguf)
    assert told.code == 0
    assert told.error["exit"] == 4
