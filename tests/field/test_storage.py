"""The field log's cases of storage: kills, homes, folders and disks that do not do what they should.

F-ST-02 and F-ST-04 stand in e2e/test_many_processes.py too, F-ST-05 in unit/catalog.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from edgellm.errors import EXIT_DOES_NOT_FIT
from edgellm.store.disk.survey import survey

Answer = Callable[..., Any]

EDGELLM = (sys.executable, "-m", "edgellm")
TIME_LIMIT_S = 120
N_KILLS, MAX_DELAY_S = 8, 0.2
CAP_BYTES, FILE_BYTES = 20_000_000, 1_000_000
N_PREFIXES = 25  # of each of the two processes, together twice what there is room for
USER = """
import sys
from edgellm import Message, Sampling, load
who, cap = sys.argv[2], int(sys.argv[3])
def ask(llm, system):
    messages = [Message("system", system), Message("user", "Hello")]
    return llm.generate(messages, max_tokens=1, sampling=Sampling(temperature=0)).snapshot.code
with load(sys.argv[1], snapshot="exact", n_ctx=1024, n_threads=1, snapshot_cap_bytes=cap) as llm:
    for n in range(int(sys.argv[4])):
        ask(llm, f"{who} {n}: " + "the tide comes in and goes out again. " * 40)
        print(ask(llm, sys.argv[5]))
"""
"""Fill the store, and use one prompt again and again; print what became of that one."""


def run(
    *words: object, before: Sequence[str] = (), **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run `edgellm` to its end, behind another program if one is given."""
    return subprocess.run(
        [*before, *EDGELLM, *map(str, words)],
        env=os.environ | environ,
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_S,
        check=False,
    )


def on_a_small_disk(folder: Path, size: str, script: str) -> list[str]:
    """Return a command before a command, which runs it where a folder is a disk of that size."""
    folder.mkdir(exist_ok=True)
    mount = f"mount -t tmpfs -o size={size} none {folder}"
    if subprocess.run(["unshare", "-m", "sh", "-c", mount], check=False).returncode:
        pytest.skip("a mount of one's own takes root and a right that containers lack")
    return ["unshare", "-m", "sh", "-c", f"{mount} && {script}"]


@pytest.mark.parametrize("n_kills", [N_KILLS, pytest.param(20, marks=pytest.mark.full)])
def test_a_conversion_killed_at_any_moment(
    field_samples: Path, tmp_path: Path, n_kills: int
) -> None:
    """F-ST-01: no file of that name or the whole one; the next run makes it and leaves nothing else."""
    source, out = field_samples / "hf" / "00_ok_control", tmp_path / "out" / "model.gguf"
    out.parent.mkdir()
    assert run("convert", source, "--type", "bf16", "-o", tmp_path / "whole.gguf").returncode == 0
    whole = (tmp_path / "whole.gguf").read_bytes()
    rng = random.Random(7)
    killed = 0
    for _ in range(n_kills):
        words = [*EDGELLM, "convert", str(source), "--type", "bf16", "-o", str(out)]
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as made:
            while made.poll() is None and not any(out.parent.iterdir()):
                time.sleep(0.002)
            time.sleep(rng.uniform(0, MAX_DELAY_S))
            made.kill()
        if out.exists():  # it was done just before
            assert out.read_bytes() == whole
            out.unlink()
        else:
            assert made.returncode == -signal.SIGKILL
            killed += 1
    assert killed > n_kills // 4
    done = run("convert", source, "--type", "bf16", "-o", out)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in out.parent.iterdir()] == [out.name]
    assert out.read_bytes() == whole


def test_a_conversion_onto_a_disk_that_becomes_full(field_samples: Path, tmp_path: Path) -> None:
    """F-ST-01: in the middle of the write, it fails with what was needed and leaves nothing."""
    source, out = field_samples / "hf" / "00_ok_control", tmp_path / "out" / "model.gguf"
    out.parent.mkdir()
    limited = ["bash", "-c", 'ulimit -f 20; exec "$0" "$@"']
    done = run("convert", source, "--type", "bf16", "-o", out, before=limited)
    assert done.returncode == EXIT_DOES_NOT_FIT, done.stderr
    assert list(out.parent.iterdir()) == []


def test_a_conversion_onto_a_disk_too_small(field_samples: Path, tmp_path: Path) -> None:
    """F-ST-01: the same on a real small disk."""
    disk = tmp_path / "disk"
    before = on_a_small_disk(disk, "32k", f'"$0" "$@"; echo "exit $?," $(ls -A {disk})')
    source = field_samples / "hf" / "00_ok_control"
    done = run("convert", source, "--type", "bf16", "-o", disk / "model.gguf", before=before)
    assert done.stdout.splitlines()[-1] == f"exit {EXIT_DOES_NOT_FIT},", done.stderr


def test_a_store_on_a_disk_too_small(answer: Answer, tiny_models: Path, tmp_path: Path) -> None:
    """F-PC-07: twice the right answer and one warning; neither a snapshot nor half of one stays."""
    disk = tmp_path / "disk"
    find = f"find {disk} -name '*.ekv' -o -name '*.tmp'"
    before = on_a_small_disk(disk, "300k", f'"$0" "$@" && "$0" "$@" && {find} && exit 0')
    model = tiny_models / "tiny-llama.gguf"
    cold = answer(model, "--snapshot", "off")
    printed: list[str] = []

    def twice(*words: object) -> subprocess.CompletedProcess[str]:
        done = run(*words, before=before, EDGELLM_HOME=str(disk))
        printed.extend(done.stdout.splitlines())
        return done

    told = answer(model, run=twice)
    lines = [json.loads(line) for line in printed]  # a file that was found would be no JSON
    assert [line["text"] for line in lines if line["type"] == "done"] == [cold.text, cold.text]
    assert told.code == "not_stored"
    assert len(told.warnings) == 2
    assert all("snapshot" in said for said in told.warnings)


@pytest.mark.parametrize("home", ["/proc/none", "/dev/null/none"])
def test_a_home_that_cannot_be_made(
    answer: Answer, tiny_models: Path, home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-ST-02: as root's or nobody's HOME is in some containers: an answer, and what is not kept."""
    monkeypatch.delenv("EDGELLM_HOME")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    model = tiny_models / "tiny-llama.gguf"
    told = answer(model, run=lambda *words: run(*words, HOME=home))
    assert told.n_reused == 0
    assert sorted("audit log" in words for words in told.warnings) == [False, True], told
    assert told.text == answer(model, "--snapshot", "off", run=lambda *w: run(*w, HOME=home)).text


def test_nothing_is_written_next_to_a_model(
    answer: Answer, tiny_models: Path, edgellm_home: Path, tmp_path: Path
) -> None:
    """F-ST-03: from a folder that cannot be written models are described, run and kept elsewhere."""
    folder = tmp_path / "models"
    folder.mkdir()
    model = folder / "model.gguf"
    shutil.copy(tiny_models / "tiny-llama.gguf", model)
    model.chmod(0o444)
    before: list[str] = []
    if os.geteuid() == 0:
        before = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all", "--"]
    for mode in (0o500, 0o700):
        folder.chmod(mode)
        state = folder.stat().st_mtime_ns
        for words in (("info", model), ("run", model, "Hello", "-n", 1)):
            done = run(*words, before=before)
            assert done.returncode == 0, done.stderr
            assert "warning" not in done.stderr
        told = answer(model, run=lambda *words: run(*words, before=before))
        assert told.code == ("not_stored" if mode == 0o500 else "hit")
        assert [path.name for path in folder.iterdir()] == ["model.gguf"]
        assert folder.stat().st_mtime_ns == state
    assert list(edgellm_home.rglob("*.ekv"))


def test_two_processes_stay_below_the_cap(
    answer: Answer, call_edgellm: Any, tiny_models: Path, edgellm_home: Path
) -> None:
    """F-ST-06: fifty prompts, room for half of them: what is in use stays, the rest makes room.

    The list, the pruning and the removal then work on what is left.
    """
    model, root = tiny_models / "tiny-llama.gguf", edgellm_home / "snapshots"
    used = "The one that is used again and again. " * 40
    users = [
        subprocess.Popen(
            [sys.executable, "-c", USER, model, who, str(CAP_BYTES), str(N_PREFIXES), used],
            stdout=subprocess.PIPE,
            text=True,
        )
        for who in ("one", "two")
    ]
    most = 0
    while any(user.poll() is None for user in users):
        most = max(most, survey(root).n_bytes)
        time.sleep(0.02)
    codes = [code for user in users for code in user.communicate()[0].split()]
    assert len(codes) == 2 * N_PREFIXES
    assert {code for code in codes[2:] if code not in {"hit", "live"}} <= {"not_stored"}
    assert sum(code == "not_stored" for code in codes) <= 2
    assert CAP_BYTES - 3 * FILE_BYTES < most <= CAP_BYTES + FILE_BYTES
    assert survey(root).n_bytes <= CAP_BYTES
    assert len(call_edgellm("snapshots", "ls", "--json").stdout.splitlines()) > N_PREFIXES // 2
    assert call_edgellm("snapshots", "prune", "--max", "5MB").returncode == 0
    assert FILE_BYTES < survey(root).n_bytes <= 5_000_000
    assert call_edgellm("snapshots", "rm", "--all", "--yes").returncode == 0
    assert list(root.rglob("*.ekv")) == list(root.rglob("*.tmp")) == []
