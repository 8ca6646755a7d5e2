"""A signal to end while a model is loaded in its process: nobody waits for the load."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

OUTCOME_S = 2.0


def worker_of(process: subprocess.Popen[bytes]) -> psutil.Process:
    """Wait for the worker of a program."""
    deadline_s = time.monotonic() + 30
    while time.monotonic() < deadline_s:
        for child in psutil.Process(process.pid).children():
            if "edgellm.runtime.worker" in child.cmdline():
                return child
        time.sleep(0.02)
    raise AssertionError("no worker was started")


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["ctrl-c", "sigterm"]
)
def test_a_load_that_hangs_is_left_at_once(
    edgellm_home: Path, tiny_models: Path, number: int, code: int
) -> None:
    """One Ctrl-C ends the program with its code and no traceback, and the worker with it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "edgellm", "run", str(tiny_models / "tiny-llama.gguf"), "Why?"],
        env={**os.environ, "EDGELLM_HOME": str(edgellm_home), "EDGELLM_WORKER_FAULT": "load:hang"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        worker = worker_of(process)
        process.send_signal(number)
        out, _ = process.communicate(timeout=OUTCOME_S + 3)
    finally:
        process.kill()
    assert process.returncode == code
    assert b"Traceback" not in out
    assert psutil.wait_procs([worker], timeout=OUTCOME_S)[1] == []


def test_who_catches_the_interrupt_holds_no_worker(
    edgellm_home: Path, tiny_models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a notebook the program lives on; what was being loaded for it does not."""
    import threading

    import edgellm

    monkeypatch.setenv("EDGELLM_WORKER_FAULT", "load:hang")
    before = set(psutil.Process().children())
    seen: list[psutil.Process] = []

    def interrupt() -> None:
        while not seen:
            seen.extend(set(psutil.Process().children()) - before)
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        edgellm.load(tiny_models / "tiny-llama.gguf")
    thread.join()
    assert psutil.wait_procs(seen, timeout=OUTCOME_S)[1] == []


def test_an_interrupt_that_reading_the_command_line_swallowed_opens_nothing(
    cli, fake_model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The libraries that read it show what a handler raises, and go on; the user wants an end."""
    from edgellm.cli import run

    real = run.one_prompt

    def swallow(*given: object) -> str | None:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        return real(*given)

    monkeypatch.setattr(run, "one_prompt", swallow)
    assert cli("run", fake_model(), "Why?").code == 130
    assert cli.sessions == []
