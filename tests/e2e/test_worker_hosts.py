"""Programs of all kinds that hold a worker: how they start one, and how it goes when they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from edgellm.core import Message, Mode, Tier
from edgellm.routing import ShareOptions
from edgellm.runtime.session import SessionOptions
from edgellm.runtime.worker.handle import Worker
from edgellm.runtime.worker.interpreter import package_root

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(os.name == "nt", reason="processes of POSIX"),
]
FULL = pytest.mark.full
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal")
ROOT = package_root()
HEAD = """
import os, sys, threading, time
from pathlib import Path
from edgellm.core import Message, Mode, Request, Sampling, Tier
from edgellm.runtime.session import SessionOptions
from edgellm.runtime.worker.handle import Worker
from edgellm.runtime.worker.interpreter import package_root
OPTIONS = SessionOptions(snapshot=Tier.OFF)
ASKED = Request((Message("user", "Name three rivers."),), max_tokens=4, sampling=Sampling(temperature=0))
def start(options=OPTIONS):
    return Worker.start(Path(os.environ["MODEL"]), options)
"""
RUN = """
worker = start()
steps = list(worker.stream(ASKED))
print(len(steps[-1].event.text) > 0, flush=True)
"""


@pytest.fixture
def program(smollm2_gguf, tmp_path):
    """Start a program of some Python text."""
    started = []

    def begin(text: str, *, head: str = HEAD, command=(sys.executable,), **how: Any) -> Any:
        file = tmp_path / f"program{len(started)}.py"
        file.write_text(head + textwrap.dedent(text))
        environ = {**os.environ, "MODEL": str(smollm2_gguf), "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(
            [*command, str(file)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environ,
            **how,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def _is_gone(pid: int, within_s: float = 5.0) -> bool:
    deadline_s = time.monotonic() + within_s
    while time.monotonic() < deadline_s:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        stat = Path(f"/proc/{pid}/stat")
        if stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize(
    "end",
    [
        pytest.param("", marks=FULL),
        pytest.param("worker.close()", marks=FULL),
        pytest.param("worker.close(); worker.close()", marks=FULL),
        pytest.param("sys.exit(0)", marks=FULL),
        pytest.param("import atexit; atexit.register(worker.close)", marks=FULL),
        pytest.param("del worker", marks=FULL),
        pytest.param("threading.Thread(target=sys.exit).start()", marks=FULL),
        pytest.param("answer = worker.stream(ASKED); next(answer)", marks=FULL),
        "import atexit; atexit.register(lambda: list(worker.stream(ASKED)))",
    ],
)
def test_f_pk_04_a_program_ends_without_a_word(program, end):
    """However a program with a worker ends, stderr is empty, and the exit code is its own."""
    out, err = program(RUN + end).communicate(timeout=60)
    assert ("True\n", "") == (out, err)


@LINUX
@pytest.mark.parametrize("busy", [pytest.param(False, marks=FULL), True])
def test_the_worker_goes_with_its_program(program, busy):
    """A program that is killed with -9 leaves no worker behind, idle or in the middle of an answer."""
    process = program(
        RUN
        + "print(worker.pid, flush=True)\n"
        + ("for _ in range(99): list(worker.stream(ASKED))" if busy else "time.sleep(60)")
    )
    assert process.stdout.readline() == "True\n"
    pid = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert _is_gone(pid)


@FULL
def test_the_worker_goes_with_its_pipe(program):
    """Where nothing signals the death of a parent, the end of the pipe does the same."""
    process = program(
        RUN + "print(worker.pid, flush=True)\nos.close(worker._channel._process.stdin.fileno())\n"
        "worker._channel.ended.wait(20)\nprint(worker.ending.returncode, flush=True)\nos._exit(0)"
    )
    out, _ = process.communicate(timeout=60)
    assert out.splitlines()[2] == "1"


@LINUX
@FULL
def test_a_worker_outlives_the_thread_that_asked_for_it(program):
    """A worker started in a thread of the program's answers after that thread has ended."""
    text = """
    held = []
    thread = threading.Thread(target=lambda: held.append(start()))
    thread.start(); thread.join()
    time.sleep(0.2)
    print(len(list(held[0].stream(ASKED))) > 0)
    """
    out, err = program(text).communicate(timeout=60)
    assert ("True\n", "") == (out, err)


@FULL
def test_signals_of_the_terminal_are_the_programs(program):
    """An interrupt, a hang-up or an end for the whole group does not reach the worker."""
    text = """
    import signal
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    worker = start()
    print("ready", flush=True)
    time.sleep(0.5)
    print(len(list(worker.stream(ASKED))) > 0)
    """
    process = program(text, start_new_session=True)
    assert process.stdout.readline() == "ready\n"
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.killpg(process.pid, number)
    assert ("True\n", "") == process.communicate(timeout=60)


def test_a_forked_child_leaves_the_worker_alone(program):
    """A child made by fork cannot use the worker, and its end does not end it."""
    text = """
    worker = start()
    if (child := os.fork()) == 0:
        try:
            next(worker.stream(ASKED))
        except Exception as err:
            assert "fork" in str(err), err
            worker.close()
            sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    print(len(list(worker.stream(ASKED))) > 0)
    """
    process = program(text, command=(sys.executable, "-W", "ignore::DeprecationWarning"))
    assert ("True\n", "") == process.communicate(timeout=60)


@FULL
def test_a_forked_child_starts_one_of_its_own(program):
    """After a fork a new worker can be started, though the thread that does it stayed behind."""
    text = """
    worker = start()
    if (child := os.fork()) == 0:
        own = start()
        sys.exit(len(list(own.stream(ASKED))) > 0 and 7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    """
    process = program(text, command=(sys.executable, "-W", "ignore::DeprecationWarning"))
    assert ("", "") == process.communicate(timeout=60)


def test_a_folder_full_of_traps_is_not_looked_into(program, tmp_path):
    """Modules beside the program, or where it runs, do not stand in for the interpreter's own."""
    for name in ("json", "struct", "queue", "numpy", "faulthandler", "ctypes"):
        (tmp_path / f"{name}.py").write_text("import os; os._exit(99)")
    text = "sys.path.insert(0, os.getcwd())\n" + RUN
    own = f"import sys; sys.path = [path for path in sys.path if path != {str(tmp_path)!r}]\n"
    out, err = program(text, head=own + HEAD, cwd=tmp_path).communicate(timeout=60)
    assert ("True\n", "") == (out, err)


@FULL
def test_a_program_that_reads_its_stdin_keeps_it(program):
    """The worker takes nothing of the program's own input, and prints nothing to its output."""
    process = program(RUN + "print(sys.stdin.read())", stdin=subprocess.PIPE)
    out, err = process.communicate("for me", timeout=60)
    assert ("True\nfor me\n", "") == (out, err)


@LINUX
def test_descriptors_of_the_program_do_not_reach_the_worker(program, tmp_path):
    """An open file or a listening socket of the program's is not open in the worker."""
    text = """
    import socket
    held = socket.socket(); held.bind(("127.0.0.1", 0)); held.listen()
    os.set_inheritable(held.fileno(), True)
    worker = start()
    kinds = [os.readlink(f"/proc/{worker.pid}/fd/{n}") for n in os.listdir(f"/proc/{worker.pid}/fd")]
    print([kind for kind in kinds if kind.startswith("socket")])
    """
    process = program(text)
    out, err = process.communicate(timeout=60)
    assert err == "" or "Permission" in err
    assert out == "[]\n" or os.geteuid() != 0


def test_without_room_for_the_model_the_error_is_ours(smollm2_gguf, program):
    """Under a limit of address space a worker that cannot load says so, or ends; the program lives."""
    text = """
    import resource
    from edgellm.errors import DoesNotFit, EdgeLLMError
    from edgellm.runtime.worker.ending import WorkerEnded
    for n_mib in (120, 200, 300, 450, 600):
        resource.setrlimit(resource.RLIMIT_AS, (n_mib << 20, -1))
        try:
            worker = start()
            list(worker.stream(ASKED))
            worker.close()
            print("fits")
        except EdgeLLMError as err:
            print(type(err).__name__)
        except WorkerEnded as err:
            print("ended", err.ending.returncode, bool(err.ending.exception or err.ending.stderr_tail))
    """
    out, err = program(text).communicate(timeout=120)
    assert err == ""
    lines = out.splitlines()
    assert len(lines) == 5
    known = {"fits", "DoesNotFit", "OutOfMemory", "EngineUnavailable", "EngineFailed"}
    assert all(line in known or line.startswith("ended") for line in lines), lines
    assert "ended 0 False" not in lines


@pytest.mark.redis
def test_the_shared_tier_is_spoken_to_by_the_program(
    smollm2_gguf, redis_server, tmp_path, monkeypatch
):
    """Two workers with a store each share a prefix over Redis, though neither can open a socket."""
    system = Message("system", "You know rivers, and all that lies beside them. " * 20)
    share = ShareOptions(redis_server.url, b"s" * 32, writes_back=True)
    options = SessionOptions(snapshot=Tier.EXACT, snapshot_share=share, mode=Mode.PREFER_LOCAL)
    codes = []
    for name in ("one", "two"):
        monkeypatch.setenv("EDGELLM_HOME", str(tmp_path / name))
        with Worker.start(smollm2_gguf, options) as worker:
            codes.append(worker.warm([system]).code)
            if name == "two":
                assert worker.facts().shared
    assert codes == ["stored", "hit"]
