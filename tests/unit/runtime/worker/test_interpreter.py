"""Which command starts a worker."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from edgellm.errors import EngineUnavailable
from edgellm.runtime.worker import interpreter


def test_a_python_that_runs_this_is_taken():
    """In a plain program the worker runs in the same interpreter."""
    assert interpreter.python() == sys.executable
    command = interpreter.worker_command()
    assert "-m edgellm.runtime.worker" in " ".join(command)
    assert command[-2] == str(os.getpid())


def test_what_the_program_was_told_not_to_look_for_the_worker_does_not_find(tmp_path):
    """A program that ignores the environment has a worker that does, and one in an archive works too."""
    shown = "from edgellm.runtime.worker.interpreter import worker_command; print(*worker_command()[1:-2])"
    root = str(interpreter.package_root())
    text = f"import sys; sys.path.insert(0, {root!r}); sys.dont_write_bytecode = True; {shown}"
    told = subprocess.run(
        [sys.executable, "-I", "-c", text], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert told.stdout.split() == ["-E", "-s", "-B", "-m", "edgellm.runtime.worker"]


def test_a_package_in_an_archive_is_found_there(monkeypatch, tmp_path):
    """A worker of a program that is one archive imports from it, and from nowhere before it."""
    archive = tmp_path / "program.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for name in ("edgellm", "edgellm/runtime", "edgellm/runtime/worker"):
            file.writestr(f"{name}/__init__.py", "")
        file.writestr(
            "edgellm/runtime/worker/__main__.py", "import sys; print(sys.argv[1:], sys.path[0])"
        )
    (tmp_path / "edgellm.py").write_text("raise LookupError")
    monkeypatch.setattr(interpreter, "package_root", lambda: archive)
    command = interpreter.worker_command()
    told = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert told.stdout == f"{[str(os.getpid()), version]} {archive}\n"


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
