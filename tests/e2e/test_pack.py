"""Warming a prompt, shipping its snapshot and taking it in, through the commands and a real engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgellm.cli.app import main
from edgellm.core import Message, Request, Sampling
from edgellm.engines.base import EngineSettings
from edgellm.engines.llamacpp import LlamaCppEngine
from edgellm.runtime.local import open_session
from edgellm.runtime.session import SessionOptions
from edgellm.store.packs.imports import Imports
from edgellm.store.packs.probe import MAX_DIVERGENCE, TIE, compare, take_probe
from edgellm.store.snapshots import SnapshotStore

RULES = "\n".join(f"Rule {n}: answer in one sentence, and name the source." for n in range(9))
KINDS = ("llama", "gemma3", "lfm2", "mamba2", "deepseek4")

Edgellm = Callable[..., tuple[int, list[dict[str, Any]], str]]


@pytest.fixture
def edgellm(capsys: pytest.CaptureFixture[str]) -> Edgellm:
    """Give a function that runs a command here; returns exit code, JSON lines and stderr."""

    def run(*arguments: object) -> tuple[int, list[dict[str, Any]], str]:
        capsys.readouterr()
        code = main([*map(str, arguments), "--json"])
        shown = capsys.readouterr()
        return code, [json.loads(line) for line in shown.out.splitlines()], shown.err

    return run


@pytest.fixture
def system(tmp_path: Path) -> Path:
    """Give a file with a system prompt."""
    path = tmp_path / "rules.txt"
    path.write_text(RULES)
    return path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], SnapshotStore]:
    """Give a function that goes to a machine by its name and returns its store."""

    def go(name: str) -> SnapshotStore:
        monkeypatch.setenv("EDGELLM_HOME", str(tmp_path / name))
        return SnapshotStore(tmp_path / name / "snapshots")

    return go


def _answer(model: Path) -> Any:
    request = Request(
        (Message("system", RULES), Message("user", "What is the capital?")),
        max_tokens=6,
        sampling=Sampling(temperature=0),
    )
    with open_session(model, SessionOptions()) as session:
        return session.generate(request)


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_is_warmed_shipped_and_used(
    tiny_models: Path, tmp_path: Path, system: Path, edgellm: Edgellm, home: Any, kind: str
):
    """What one machine warmed is another's first hit, with the answer that a cold start gives."""
    model = tiny_models / f"tiny-{kind}.gguf"
    home("bare")
    cold = _answer(model)
    home("maker")
    warm = ["snapshots", "warm", model, "--system-file", system, "--normal-priority"]
    codes = [(code, lines[0]["code"]) for code, lines, _ in (edgellm(*warm), edgellm(*warm))]
    assert [(0, "stored"), (0, "hit")] == codes
    key = edgellm("snapshots", "ls")[1][0]["key"]
    pack, keys = tmp_path / "pack.ekp", tmp_path / "keys"
    assert 0 == edgellm("snapshots", "keygen", "-o", keys)[0]
    export = ["snapshots", "export", key[:9], "--model", model, "-o", pack, "--sign-key", keys]
    assert 0 == edgellm(*export)[0]
    store = home("user")
    assert 0 == edgellm("snapshots", "import", pack, "--trust", f"{keys}.pub")[0]
    why = ["snapshots", "why", model, "--system-file", system]
    assert (0, "imported") == (edgellm(*why)[0], edgellm(*why)[1][0]["code"])
    assert 0 == edgellm("snapshots", "check")[0]
    for _ in range(2):
        done = _answer(model)
        assert ("hit", cold.text) == (done.snapshot.code, done.text)
        assert done.usage.reused_tokens > 128
    assert [] == list(Imports(store.files).packs())
    assert (0, "hit") == (edgellm(*why)[0], edgellm(*why)[1][0]["code"])


def test_another_model_leaves_it_waiting(
    tiny_models: Path, tmp_path: Path, system: Path, edgellm: Edgellm, home: Any
):
    """Weights that differ in one bit are not those the pack was made with."""
    model = tiny_models / "tiny-llama.gguf"
    home("maker")
    edgellm("snapshots", "warm", model, "--system-file", system, "--normal-priority")
    key = edgellm("snapshots", "ls")[1][0]["key"]
    pack = tmp_path / "pack.ekp"
    code, _, told = edgellm("snapshots", "export", key, "--model", model, "-o", pack)
    assert (0, True) == (code, "nobody signed it" in told)
    content = bytearray(model.read_bytes())
    content[-3] ^= 1
    other = tmp_path / "other.gguf"
    other.write_bytes(content)
    code, _, told = edgellm("snapshots", "export", key, "--model", other, "-o", tmp_path / "no")
    assert (2, True) == (code, "not of this model" in told)
    store = home("user")
    code, lines, _ = edgellm("snapshots", "import", pack)
    assert (2, "usage") == (code, lines[-1]["code"])
    (tmp_path / "keys.pub").write_bytes(_stranger(tmp_path))
    code, lines, _ = edgellm("snapshots", "import", pack, "--trust", tmp_path / "keys.pub")
    assert (5, "pack_refused") == (code, lines[-1]["code"])
    assert 0 == edgellm("snapshots", "import", pack, "--allow-unsigned")[0]
    assert "not_stored" == _answer(other).snapshot.code
    assert [1] == [n_waiting for _, _, n_waiting in Imports(store.files).packs()]
    assert 1 < edgellm("snapshots", "rm", "--all", "--yes")[1][0]["n"] + 1
    assert [] == list(Imports(store.files).packs())


def _stranger(folder: Path) -> bytes:
    from edgellm.store.packs.signing import make_keys

    make_keys(folder / "stranger")
    return (folder / "stranger.pub").read_bytes()


def test_warming_stands_back(tiny_models: Path, system: Path, tmp_path: Path):
    """The command lowers its own priority, unless it is asked not to."""
    probe = (
        "import os, sys; from edgellm.cli.app import main; before = os.nice(0);"
        "code = main(sys.argv[1:]); print(code, os.nice(0) - before)"
    )
    model = tiny_models / "tiny-llama.gguf"
    warm = [
        sys.executable,
        "-c",
        probe,
        "snapshots",
        "warm",
        str(model),
        "--system-file",
        str(system),
    ]
    for flags, steps in (([], 10), (["--normal-priority"], 0)):
        done = subprocess.run(
            [*warm, *flags], capture_output=True, text=True, check=True, env=os.environ
        )
        assert ["0", str(steps)] == done.stdout.split()[-2:]
        assert "reading the system prompt" in done.stderr


def test_a_short_prompt_is_not_kept(tiny_models: Path, tmp_path: Path, edgellm: Edgellm):
    """What cannot be kept is told, and exits 1."""
    (tmp_path / "short.txt").write_text("Be kind.")
    model = tiny_models / "tiny-llama.gguf"
    code, lines, _ = edgellm(
        "snapshots", "warm", model, "--system-file", tmp_path / "short.txt", "--normal-priority"
    )
    assert (1, "too_short") == (code, lines[0]["code"])


@pytest.mark.model
@pytest.mark.parametrize(
    ("name", "n_tokens"),
    [
        ("smollm2_gguf", 200),
        pytest.param("smollm2_gguf", 540, marks=pytest.mark.full),
        ("gemma3_gguf", 540),  # more than its window
    ],
)
def test_rounding_is_far_below_the_tolerance(
    request: pytest.FixtureRequest, name: str, n_tokens: int
):
    """Thread counts and weight layouts change what is said after a probe by a fifth of it at most."""
    path: Path = request.getfixturevalue(name)
    probe, logits = None, []
    for n_threads, repack in ((2, True), (1, True), (3, True), (4, False)):
        engine = LlamaCppEngine(path, EngineSettings(n_threads=n_threads, repack=repack))
        engine.reserve(1024)
        if probe is None:
            tokens = engine.tokenize(RULES * 9, special=False, add_bos=True)[:n_tokens]
            engine.decode(tokens)
            state = engine.capture()
        engine.restore(state)
        row = engine.decode([tokens[5]])[0].copy()
        engine.close()
        probe = probe or take_probe(tokens[5], row)
        logits.append(row)
    verdicts = [compare(probe, row) for row in logits]
    assert all(verdict.agrees for verdict in verdicts)
    assert max(verdict.divergence for verdict in verdicts) < MAX_DIVERGENCE / 5
    assert max(float(np.abs(row - logits[0]).max()) for row in logits) < TIE
