"""Which command starts a worker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgellm.errors import EngineUnavailable
from edgellm.runtime.worker import interpreter


def test_a_python_that_runs_this_is_taken():
    """In a plain program the worker runs in the same interpreter."""
    assert interpreter.python() == sys.executable
    command = interpreter.worker_command()
    assert ["-m", "edgellm.runtime.worker", str(os.getpid())] == command[1:4]


@pytest.mark.parametrize("executable", ["", "/bin/true", "/nonexistent/python3"])
def test_an_application_that_embeds_python_finds_another(monkeypatch, executable):
    """Where the program is no Python, the one that it was built of is taken."""
    monkeypatch.setattr(sys, "executable", executable)
    found = interpreter.python()
    assert found != executable
    shown = subprocess.run([found, "-V"], capture_output=True, text=True, check=True).stdout
    assert shown.startswith(f"Python {sys.version_info.major}.{sys.version_info.minor}.")


def test_without_any_python_there_is_a_next_step(monkeypatch, tmp_path):
    """A frozen application is told how to do without a worker."""
    monkeypatch.setattr(sys, "executable", "/bin/true")
    for name in ("prefix", "exec_prefix", "base_prefix", "base_exec_prefix"):
        monkeypatch.setattr(sys, name, str(tmp_path))
    with pytest.raises(EngineUnavailable, match='isolation="none"'):
        interpreter.python()


def test_the_worker_finds_the_same_package():
    """The folder that the worker starts in is the one this package came from."""
    import edgellm

    assert interpreter.package_root() == Path(edgellm.__file__).resolve().parents[1]
