"""Injected faults over all phases, in real workers: an outcome in time, and no text lost or doubled.

Real allocation failures under a limit of the address space stand beside them: they need no rights.
"""

from __future__ import annotations

import random
import resource
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgellm.core import Done, Event, Failure, Message, Request, Sampling, Switch, Token
from edgellm.engines.base import EngineSettings
from edgellm.errors import EdgeLLMError, OutOfMemory, WorkerDied
from edgellm.policy import progress
from edgellm.runtime.opening import open_session
from edgellm.runtime.session import SessionOptions
from edgellm.runtime.supervising import starting, watching
from edgellm.runtime.worker.handle import Worker

OUTCOME_S = 2.0
N_TOKENS = 8
SYSTEM = "You are a careful guide who answers in plain words and never hurries. " * 8
ASKED = Request(
    (Message("system", SYSTEM), Message("user", "Where does the river go?")),
    max_tokens=N_TOKENS,
    sampling=Sampling(temperature=0.9, seed=7),
)
KINDS = ("abort", "segv", "kill", "oom", "memory", "exit", "garbage", "half")
TYPED = {"out_of_memory", "worker_died", "engine_failed"}


def faults(n: int) -> list[str]:
    """Draw faults, the same ones each time."""
    dice = random.Random(5)
    drawn = []
    for _ in range(n):
        phase = dice.choice(("load", "context", "prefill", "decode", "decode", "snapshot"))
        at = dice.randint(1, N_TOKENS - 1) if phase == "decode" else 1
        drawn.append(f"{phase}:{at}:{dice.choice(KINDS)}" + dice.choice(("@", "")))
    return drawn


@pytest.fixture
def deaths(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When workers ended, as this process saw it."""
    seen: list[float] = []
    start = Worker.start

    def noted(path: Path, options: SessionOptions, **given: Any) -> Worker:
        try:
            worker = start(path, options, **given)
        except BaseException:
            seen.append(time.monotonic())
            raise

        def wait() -> None:
            worker._channel.ended.wait()
            seen.append(time.monotonic())

        threading.Thread(target=wait, daemon=True).start()
        return worker

    monkeypatch.setattr(Worker, "start", noted)
    monkeypatch.setattr(starting, "_LOOK_S", 0.005)
    return seen


@pytest.fixture
def ask(edgellm_home, tiny_models, deaths) -> Callable[[], tuple[list[tuple[float, Event]], str]]:
    """Open a session, ask, and return the events with their times; and the error it ended with."""

    def run() -> tuple[list[tuple[float, Event]], str]:
        events: list[tuple[float, Event]] = []
        try:
            with open_session(
                tiny_models / "tiny-llama.gguf", SessionOptions(isolation="worker", n_ctx=512)
            ) as session:
                events.extend((time.monotonic(), event) for event in session.stream(ASKED))
        except EdgeLLMError as err:
            return events, err.code
        last = events[-1][1]
        return events, last.code if isinstance(last, Failure) else ""

    return run


def text_of(events: list[tuple[float, Event]]) -> str:
    """Return what a reader holds in the end; a piece that is missing or came twice is noticed."""
    pieces: list[str] = []
    for _, event in events:
        if isinstance(event, Switch) and event.discard_from_seq is not None:
            del pieces[event.discard_from_seq :]
        elif isinstance(event, Token):
            assert event.seq == len(pieces)
            pieces.append(event.text)
    return "".join(pieces)


@pytest.fixture(scope="module")
def whole(tiny_models) -> dict[str, str]:
    """The undisturbed answer, once it is known."""
    return {}


def undisturbed(ask: Any, whole: dict[str, str]) -> str:
    if "text" not in whole:
        events, code = ask()
        assert code == ""
        whole["text"] = text_of(events)
    return whole["text"]


def check(events: list[tuple[float, Event]], code: str, deaths: list[float], text: str) -> None:
    """Hold one run against what is promised."""
    assert text.startswith(text_of(events)), "text was lost or doubled"
    if code:
        assert code in TYPED
    else:
        done = events[-1][1]
        assert isinstance(done, Done)
        assert done.text == text_of(events) == text
        assert done.audit_id
    for died_s in deaths:
        # The thread that notes a death may be later than the one that tells of it.
        later = [at for at, event in events if at >= died_s - 0.05 and not isinstance(event, Token)]
        is_last = not later  # its end was the end of all: the error came with it
        assert is_last or later[0] - died_s < OUTCOME_S


def run_fault(
    fault: str,
    ask: Any,
    deaths: list[float],
    whole: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = undisturbed(ask, whole)
    deaths.clear()
    monkeypatch.setenv("EDGELLM_WORKER_FAULT", fault + (f"{tmp_path}/once" if "@" in fault else ""))
    began_s = time.monotonic()
    events, code = ask()
    assert time.monotonic() - began_s < 60, "a hang"
    check(events, code, deaths, text)
    if "@" in fault and not fault.startswith("load"):
        assert code == "", f"{fault} happens once, and the answer goes on"


@pytest.mark.parametrize("fault", faults(12))
def test_a_fault_in_any_phase(
    fault: str, ask, deaths, whole, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A typed outcome within two seconds of the death, no hang, no doubled text."""
    run_fault(fault, ask, deaths, whole, tmp_path, monkeypatch)


@pytest.mark.full
@pytest.mark.parametrize("fault", faults(100)[12:])
def test_the_other_faults(
    fault: str, ask, deaths, whole, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same for all hundred."""
    run_fault(fault, ask, deaths, whole, tmp_path, monkeypatch)


def test_a_worker_that_hangs_is_ended(
    ask, deaths, whole, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither dead nor alive: after a silence beyond all measure it is killed, and another goes on."""
    text = undisturbed(ask, whole)
    monkeypatch.setattr(watching, "LOOK_S", 0.05)
    monkeypatch.setattr(progress, "FIRST_SIGN_S", 3.0)
    monkeypatch.setattr(progress, "MIN_STALL_S", 1.0)
    monkeypatch.setattr(progress, "STALL_FACTOR", 1.0)
    monkeypatch.setenv("EDGELLM_WORKER_FAULT", f"decode:4:hang@{tmp_path}/once")
    events, code = ask()
    assert (code, text_of(events)) == ("", text)


@pytest.mark.parametrize("room_mib", [0, 1, 8])
def test_g7_a_real_allocation_failure_is_typed(
    ask, monkeypatch: pytest.MonkeyPatch, room_mib: int
) -> None:
    """A real allocation failure yields the same typed `OutOfMemory`, or the answer goes on."""
    start = Worker.start
    limited: list[int] = []

    def tight(path: Path, options: SessionOptions, **given: Any) -> Worker:
        worker = start(path, options, **given)
        if not limited:  # only the first: the system gives the second all it wants
            pages = int(Path(f"/proc/{worker.pid}/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + (room_mib << 20)
            resource.prlimit(worker.pid, resource.RLIMIT_AS, (limit, limit))
            limited.append(worker.pid)
        return worker

    monkeypatch.setattr(Worker, "start", tight)
    events, code = ask()
    assert code in ("", OutOfMemory.code)
    assert code == "" or not isinstance(events[-1][1], Done)


def test_the_host_outlives_a_worker_that_never_works(ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash in every worker is one error after two of them, not a loop."""
    monkeypatch.setenv("EDGELLM_WORKER_FAULT", "prefill:1:segv")
    _, code = ask()
    assert code == WorkerDied.code


def test_memory_takes_a_context_that_just_holds_the_answer(
    edgellm_home, tiny_models, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is the undisturbed one, and a later one that needs more gets the whole context."""
    options = SessionOptions(
        isolation="worker", engine=EngineSettings(n_batch=64, kv_type="q8_0", flash_attention="on")
    )
    model = tiny_models / "tiny-llama.gguf"
    with open_session(model, options) as session:
        undisturbed = session.generate(ASKED)
        assert session.facts().n_ctx == 2048
    monkeypatch.setenv("EDGELLM_WORKER_FAULT", f"decode:4:oom@{tmp_path}/once")
    with open_session(model, options) as session:
        events = list(session.stream(ASKED))
        (switch,) = [event for event in events if isinstance(event, Switch)]
        needed = undisturbed.usage.prompt_tokens + N_TOKENS
        assert f"a context of {-(-needed // 256) * 256} tokens in place of 2048" in switch.reason
        assert (session.facts().n_ctx - 1) // 256 == (needed - 1) // 256
        assert isinstance(events[-1], Done)
        assert events[-1].text == undisturbed.text
        longer = session.generate(replace(ASKED, max_tokens=None))
        assert longer.text.startswith(undisturbed.text)
        assert longer.finish_reason == "stop" or longer.usage.completion_tokens + needed > 2000
        assert session.facts().n_ctx == 2048
