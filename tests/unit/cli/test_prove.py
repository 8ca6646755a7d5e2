"""`edgellm prove`: a line for each part of what is promised, and the exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edgellm.errors import EngineUnavailable
from edgellm.runtime.proving import proof
from edgellm.runtime.proving.statements import Statement

SHOWN = Statement("shown", "a worker can open no socket", "tried: EPERM")
LACKING = Statement("not enforced", "a worker leaves no core file", "a collector may")
UNTRIED = Statement("not shown", "offline works", "no namespaces")
FAILED = Statement("failed", "nothing leaves in private, M3", "40 bytes")


@pytest.fixture
def proven(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Path | None]]:
    """Return a function that says what a proof finds."""

    def say(*found: Statement) -> list[Path | None]:
        models: list[Path | None] = []

        def prove(model: Path | None) -> Iterator[Statement]:
            models.append(model)
            yield from found

        monkeypatch.setattr(proof, "prove", prove)
        return models

    return say


@pytest.mark.parametrize(
    ("found", "code"),
    [((SHOWN,), 0), ((SHOWN, LACKING, UNTRIED), 0), ((SHOWN, FAILED), 1), ((FAILED, LACKING), 1)],
)
def test_only_a_failure_fails(cli: Any, proven: Any, found: tuple[Statement, ...], code: int):
    """What a platform has no means for is told apart, by its word and by the exit code."""
    proven(*found)
    assert cli("prove").code == code
    result = cli("prove", "--json")
    (line,) = result.lines
    assert (result.code, line["type"], line["ok"]) == (code, "prove", not code)
    assert line["all_shown"] == (found == (SHOWN,))
    assert [Statement.from_wire(one) for one in line["statements"]] == [*found]


def test_lines_for_people(cli: Any, proven: Any):
    """What failed stands out; the last line counts."""
    models = proven(SHOWN, FAILED, LACKING)
    result = cli("prove", "model.gguf")
    assert models == [Path("model.gguf")]
    assert result.out.splitlines() == [
        "shown         a worker can open no socket: tried: EPERM",
        "FAILED        nothing leaves in private, M3: 40 bytes",
        "not enforced  a worker leaves no core file: a collector may",
        "in all: 1 shown, 1 failed, 1 not enforced",
    ]


def test_without_an_engine_it_says_what_it_needs(cli: Any, monkeypatch: pytest.MonkeyPatch):
    """Nothing can be shown then, and that is no success."""

    def prove(model: Path | None) -> Iterator[Statement]:
        raise EngineUnavailable("no engine", hint="`pip install 'edgellm[llama]'`")
        yield

    monkeypatch.setattr(proof, "prove", prove)
    result = cli("prove")
    assert result.code == 1
    assert "edgellm[llama]" in result.err


@pytest.mark.full
def test_all_is_shown_here(edgellm_home: Path, tmp_path: Path):
    """The whole proof, as a user runs it; nothing of it touches the user's own folder."""
    done = subprocess.run(
        [sys.executable, "-m", "edgellm", "prove", "--json"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    (line,) = map(json.loads, done.stdout.splitlines())
    assert [one for one in line["statements"] if one["status"] != "shown"] == []
    assert (done.returncode, line["all_shown"], done.stderr) == (0, True, "")
    assert len(line["statements"]) > 20
    assert not edgellm_home.exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("edgellm-prove")] == []
