"""The worker's own process, spoken to by hand: what it does with orders, and with what it did not foresee."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import edgellm
from edgellm.core import Tier
from edgellm.runtime.session import SessionOptions
from edgellm.runtime.worker.environment import worker_environment
from edgellm.runtime.worker.frames import encode_json, read_frame
from edgellm.runtime.worker.messages import Close, to_wire
from edgellm.runtime.worker.opening import announcement, orders_for
from edgellm.runtime.worker.serving import BROKE_CODE

PACKAGE = Path(edgellm.__file__).resolve().parent  # installed, or the source tree
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture
def worker():
    """Start a worker's process, with a parent that it is told."""
    started = []

    def begin(
        parent: int | None = None, version: str = VERSION, **variables: str
    ) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "edgellm.runtime.worker", str(parent or os.getpid()), version],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=PACKAGE.parent,
            env={**worker_environment(), **variables},
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def test_an_end_of_orders_ends_it(worker):
    """Where the program is gone before it said anything, so is the worker, without a word."""
    process = worker()
    assert process.communicate(timeout=20) == (b"", b"")
    assert process.returncode == 1


def test_another_parent_than_it_was_told_ends_it(worker):
    """A worker whose program ended while it was started does not stay."""
    process = worker(parent=1)
    process.wait(timeout=20)
    assert process.returncode == 1


@pytest.mark.parametrize(
    "sent", [encode_json(to_wire(Close())), b"\xff" * 20, encode_json({"type": "eval"})]
)
def test_what_is_no_order_to_open_ends_it(worker, sent):
    """Before a model is open there is one thing to say; all else ends the process."""
    process = worker()
    out, err = process.communicate(sent, timeout=20)
    assert out == b""
    assert process.returncode in {1, BROKE_CODE}
    assert err.count(b"\n") <= 1, "no traceback"


def test_an_error_nobody_foresaw_says_where_and_not_what(worker):
    """The last words of a worker that broke are a kind and a place, never a text."""
    process = worker(EDGELLM_WORKER_FAULT="my secret prompt")
    _, err = process.communicate(timeout=20)
    assert process.returncode == BROKE_CODE
    assert err.startswith(b"UsageError at faults.py:")
    assert b"secret" not in err


def test_what_a_library_prints_is_no_frame(worker, tmp_path):
    """Standard output is not where frames go, so that nothing printed damages one."""
    (tmp_path / "sitecustomize.py").write_text(
        "import atexit, os, sys\nsys.addaudithook(lambda event, _: event == 'import' and "
        "_[0] == 'edgellm.runtime.answering' and os.write(1, b'hello from a library\\n'))\n"
    )
    orders = orders_for(tmp_path / "none.gguf", SessionOptions(snapshot=Tier.OFF))
    process = worker(PYTHONPATH=str(tmp_path))
    process.stdin.write(b"".join(orders.frames))
    process.stdin.flush()
    assert read_frame(process.stdout)["error"]["class"] == "ModelNotFound"
    assert b"hello from a library" in process.communicate(timeout=20)[1]


def test_an_interpreter_of_another_version_is_told(worker):
    """An embedded program that found the Python of another version hears so, and no crash."""
    process = worker(version="2.7")
    error = read_frame(process.stdout)["error"]
    assert error["class"] == "EngineUnavailable"
    assert f"Python {VERSION}, and the program in 2.7" in error["message"]


@pytest.mark.parametrize("announced", ["tiny-llama.gguf", "tiny-gemma3.gguf", "none.gguf"])
def test_a_model_that_was_announced_is_only_opened_on_an_order(worker, tiny_models, announced):
    """What was announced may be looked at before; what is opened is what the order names."""
    orders = orders_for(tiny_models / "tiny-llama.gguf", SessionOptions(snapshot=Tier.OFF))
    process = worker()
    process.stdin.write(announcement(tiny_models / announced) + b"".join(orders.frames))
    process.stdin.flush()
    opened = read_frame(process.stdout)
    while opened["type"] == "step":  # signs of life
        opened = read_frame(process.stdout)
    assert opened["model"]["path"] == str(tiny_models / "tiny-llama.gguf")
    assert opened["model"]["architecture"] == "llama"


def test_no_order_behind_an_announcement_ends_it(worker, tiny_models):
    """Where the program opens nothing after all, so does the worker."""
    process = worker()
    assert process.communicate(announcement(tiny_models / "tiny-llama.gguf"), timeout=20)[0] == b""
    assert process.returncode == 1
