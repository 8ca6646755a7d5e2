"""The thread that decodes: its calls, their errors, and what there is without it."""

from __future__ import annotations

import _thread
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from edgellm.engines.llamacpp.compute import Compute


def test_all_calls_are_made_by_one_thread() -> None:
    """OpenMP keeps a team of workers for each thread that ever computed."""
    compute = Compute()
    calls = [compute.begin(threading.get_ident) for _ in range(3)]
    for call in calls:
        call.wait()
    (ident,) = {call.result() for call in calls}
    assert ident != threading.get_ident()


def test_what_a_call_raises_is_raised_where_it_is_waited_for() -> None:
    """And the next call is made all the same."""
    compute = Compute()

    def fail() -> int:
        raise MemoryError("none left")

    failed, fine = compute.begin(fail), compute.begin(lambda: 7)
    failed.wait()
    with pytest.raises(MemoryError, match="none left"):
        failed.result()
    fine.wait()
    assert fine.result() == 7


def test_without_a_thread_there_is_an_error_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the system refuses one, or it dies before it begins; later there may be one."""
    real, refused = _thread.start_new_thread, RuntimeError("can't start new thread")

    def refuse(*_: Any) -> int:
        raise refused

    compute = Compute()
    for start in (refuse, lambda _run, _given: 1):
        monkeypatch.setattr(_thread, "start_new_thread", start)
        with pytest.raises(RuntimeError, match="thread"):
            compute.begin(lambda: 7)
        assert not compute.is_closed
    monkeypatch.setattr(_thread, "start_new_thread", real)
    call = compute.begin(lambda: 7)
    call.wait()
    assert call.result() == 7


ENDING = """
import atexit, time
from edgellm.engines.llamacpp.compute import Compute
compute = Compute()
def slow():
    time.sleep(0.2)
    print("done", flush=True)
    return 1
def late():
    try:
        compute.begin(slow)
    except RuntimeError as err:
        print(err, compute.is_closed, flush=True)
compute.begin(slow)
atexit._run_exitfuncs()
late()
"""


def test_the_call_in_hand_is_waited_for_at_the_end_and_no_other_begun() -> None:
    """What it computes with goes next."""
    done = subprocess.run(
        [sys.executable, "-c", ENDING], capture_output=True, check=True, timeout=60
    )
    assert done.stdout == b"done\nthe interpreter ends True\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_waits_for_no_call_of_its_parent() -> None:
    """Its end is its own; the parent's thread is not there."""
    compute, gate = Compute(), threading.Event()
    call = compute.begin(lambda: int(gate.wait(20)))
    child = os.fork()
    if not child:
        compute._close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    gate.set()
    call.wait()
    assert call.result() == 1


LATE = """
import atexit, sys, threading
import edgellm
def late():
    with edgellm.load(sys.argv[1], isolation=sys.argv[2], snapshot="off") as model:
        print(model.generate("Why?", max_tokens=2).usage.completion_tokens)
atexit.register(late)
"""


@pytest.mark.parametrize("isolation", ["none", "worker"])
def test_a_model_can_be_opened_when_the_program_ends(
    edgellm_home: Path, tiny_models: Path, isolation: str
) -> None:
    """A program may have something to say then; pools of threads can be imported no more."""
    command = [sys.executable, "-c", LATE, str(tiny_models / "tiny-llama.gguf"), isolation]
    environ = {**os.environ, "EDGELLM_HOME": str(edgellm_home)}
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "2\n", done.stderr
