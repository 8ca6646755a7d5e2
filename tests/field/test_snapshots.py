"""The field log's cases of files that keep prompts: damaged, foreign, absent, or longer than they need be.

F-PC-06 stands in e2e/test_many_processes.py, the cases of reuse in test_reuse.py.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgellm.core import Tier
from edgellm.errors import EXIT_BAD_INPUT
from edgellm.formats import identity
from edgellm.runtime.local import LocalSession

Answer = Callable[..., Any]
Open = Callable[..., LocalSession]

SYSTEM = "Always answer in rhyme, and mention the sea at least once. " * 12
OTHER = "Never answer in rhyme, and leave the mountains out of it. " * 12
KINDS = ("tiny-llama", "tiny-gemma3", "tiny-mamba", "tiny-lfm2", "tiny-deepseek2")
GENERATOR = Path(__file__).resolve().parent / "gen_inputs.py"
N_COPIES = 23


def only_file(home: Path) -> Path:
    """Return the one snapshot that is stored."""
    (path,) = home.rglob("*.ekv")
    return path


def damaged_copies(path: Path, folder: Path) -> list[bytes]:
    """Return what the generator makes of a snapshot."""
    words = [sys.executable, str(GENERATOR), "mutate", str(path), str(folder)]
    subprocess.run(words, check=True, capture_output=True)
    copies = [copy.read_bytes() for copy in sorted(folder.iterdir())]
    assert len(copies) == N_COPIES
    assert path.read_bytes() not in copies
    return copies


@pytest.mark.parametrize("kind", ["tiny-llama", "tiny-gemma3", "tiny-lfm2"])
def test_damaged_copies_poison_no_session(
    open_keeping: Open,
    ask_in: Answer,
    tiny_models: Path,
    edgellm_home: Path,
    tmp_path: Path,
    kind: str,
) -> None:
    """F-PC-02: each is a miss in a session that goes on; both prompts are answered as ever."""
    session = open_keeping(tiny_models / f"{kind}.gguf")
    cold = ask_in(session, SYSTEM, "Hello")
    place = only_file(edgellm_home)
    other = ask_in(session, OTHER, "Hello")
    n_warnings = 0
    for content in damaged_copies(place, tmp_path / "copies"):
        place.write_bytes(content)
        again = ask_in(session, SYSTEM, "Hello")
        assert (again.text, again.code, again.n_reused) == (cold.text, "corrupt", 0)
        n_warnings += len(again.warnings)
        unrelated = ask_in(session, OTHER, "Hello")
        assert (unrelated.text, unrelated.code) == (other.text, "hit")
    assert n_warnings == 1


def test_every_damaged_copy_is_a_clean_miss(
    answer: Answer, call_edgellm: Any, tiny_models: Path, edgellm_home: Path, tmp_path: Path
) -> None:
    """F-PC-02, F-PC-07: a warning, the answer of a cold run, and a whole file in its place."""
    model = tiny_models / "tiny-llama.gguf"
    cold = answer(model)
    place = only_file(edgellm_home)
    for content in damaged_copies(place, tmp_path / "copies"):
        place.write_bytes(content)
        found = answer(model)
        assert (found.text, found.code, found.n_reused) == (cold.text, "corrupt", 0)
        assert [said.partition(":")[0] for said in found.warnings] == [
            "a prefix snapshot was damaged and is not used"
        ]
        assert place.read_bytes() != content
    assert call_edgellm("snapshots", "check").returncode == 0
    whole = answer(model)
    assert (whole.text, whole.code, whole.warnings) == (cold.text, "hit", ())


def test_damage_behind_a_shorter_prefix_is_told(
    answer: Answer, call_edgellm: Any, tiny_models: Path, edgellm_home: Path, tmp_path: Path
) -> None:
    """F-PC-07: what stands before it serves, and the user hears of it all the same."""
    model = tiny_models / "tiny-llama.gguf"
    document = tmp_path / "notes.txt"
    document.write_text("- The tide comes in twice a day, and goes as often.\n" * 12)
    flags = ("--prefix-file", document)
    cold = answer(model, *flags)
    listed = map(json.loads, call_edgellm("snapshots", "ls", "--json").stdout.splitlines())
    key = max(listed, key=lambda entry: entry["n_tokens"])["key"]
    (longest,) = edgellm_home.rglob(f"{key}.ekv")
    content = bytearray(longest.read_bytes())
    content[-200] ^= 1
    longest.write_bytes(content)
    found = answer(model, *flags)
    assert (found.text, found.code, 128 < found.n_reused) == (cold.text, "hit", True)
    assert [("damaged" in said) for said in found.warnings] == [True]
    again = answer(model, *flags)
    assert (again.text, again.warnings) == (cold.text, ())
    assert again.n_reused > found.n_reused


@pytest.mark.parametrize("how", ["replaced", "in place"])
def test_one_byte_of_the_weights_is_another_model(
    answer: Answer, tiny_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """F-PC-03: with the name, the length and the time of the other, and ids that are remembered."""
    monkeypatch.setattr(identity, "_SETTLED_S", -1.0)
    model = tmp_path / "model.gguf"
    shutil.copy(tiny_models / "tiny-llama.gguf", model)
    status = model.stat()
    content = model.read_bytes()
    first = answer(model)
    assert (first.code, answer(model).code) == ("not_stored", "hit")
    changed = content[:-2] + bytes([content[-2] ^ 0x7F]) + content[-1:]
    for data in (changed, content):
        if how == "replaced":
            model.unlink()
        model.write_bytes(data)
        os.utime(model, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert (model.stat().st_size, model.stat().st_mtime_ns) == (
            status.st_size,
            status.st_mtime_ns,
        )
        found = answer(model)
        assert (found.code, found.n_reused > 0) == (
            ("not_stored", False) if data is changed else ("hit", True)
        )
        assert found.text == answer(model, "--snapshot", "off").text


def test_weights_written_to_while_in_use_make_no_snapshot_of_either_file(
    open_keeping: Open, ask_in: Answer, answer: Answer, tiny_models: Path, tmp_path: Path
) -> None:
    """F-PC-03: they are mapped, and change under the session; what it keeps then is nobody else's."""
    model = tmp_path / "model.gguf"
    shutil.copy(tiny_models / "tiny-llama.gguf", model)
    content = model.read_bytes()
    half = len(content) // 2
    session = open_keeping(model)
    ask_in(session, SYSTEM, "Hello")
    for data in (content[:half] + bytes(b ^ 0x11 for b in content[half:]), content):
        with model.open("r+b") as file:
            file.write(data)
        ask_in(session, OTHER, "Hello")
    for data in (content, content[:half] + bytes(b ^ 0x11 for b in content[half:])):
        model.write_bytes(data)
        found = answer(model, system=OTHER)
        assert (found.code, found.n_reused) == ("not_stored", 0)
        assert found.text == answer(model, "--snapshot", "off", system=OTHER).text


@pytest.mark.parametrize("what", ["no bytes", "folder", "pipe"])
def test_what_is_no_snapshot_under_its_name(
    run_edgellm: Any, answer: Answer, tiny_models: Path, edgellm_home: Path, what: str
) -> None:
    """F-PC-04: the real command neither hangs nor fails, and the answer is a cold one's."""
    model = tiny_models / "tiny-llama.gguf"
    cold = answer(model)
    place = only_file(edgellm_home)
    place.unlink()
    {"no bytes": Path.touch, "folder": Path.mkdir, "pipe": os.mkfifo}[what](place)
    found = answer(model, run=run_edgellm)
    assert (found.text, found.n_reused) == (cold.text, 0)
    assert found.code in {"corrupt", "incompatible", "unreadable"}


def test_nothing_is_kept_of_nothing(
    answer: Answer, call_edgellm: Any, tiny_models: Path, edgellm_home: Path
) -> None:
    """F-PC-04: no system prompt makes no file, and a key that is not there is an error."""
    model = tiny_models / "tiny-llama.gguf"
    found = answer(model, system=None)
    assert (found.code, found.n_reused) == ("too_short", 0)
    warmed = call_edgellm("snapshots", "warm", model, "--system", "", "--normal-priority")
    assert warmed.returncode != 0
    assert list(edgellm_home.rglob("*.ekv")) == []
    assert call_edgellm("snapshots", "rm", "0123abcd", "--yes").returncode == EXIT_BAD_INPUT


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_that_is_gone_leaves_the_session_warm(
    open_keeping: Open, ask_in: Answer, tiny_models: Path, edgellm_home: Path, kind: str
) -> None:
    """F-PC-04: the next turn goes on from memory, with the answer of a store that is there."""
    model = tiny_models / f"{kind}.gguf"
    left = open_keeping(model, snapshot=Tier.OFF)
    first = ask_in(left, SYSTEM, "Hello")
    turns = ("Hello", first.text, "And then?")
    expected = ask_in(left, SYSTEM, *turns)
    session = open_keeping(model)
    assert ask_in(session, SYSTEM, "Hello").text == first.text
    shutil.rmtree(edgellm_home / "snapshots")
    second = ask_in(session, SYSTEM, *turns)
    assert (second.text, second.n_reused) == (expected.text, expected.n_reused)
    assert second.code == "live" or expected.n_reused == 0


def test_a_snapshot_is_as_long_as_its_prompt(
    answer: Answer, call_edgellm: Any, tiny_models: Path, monkeypatch: Any, tmp_path: Path
) -> None:
    """F-PC-08: any context gives one length, which the list shows with the tokens; no logits in it."""
    model = tiny_models / "tiny-llama.gguf"
    listed = []
    for n_ctx, n_times in ((512, 1), (8192, 1), (8192, 3)):
        monkeypatch.setenv("EDGELLM_HOME", str(tmp_path / f"{n_ctx}-{n_times}"))
        assert answer(model, "--ctx", n_ctx, system=SYSTEM * n_times).code == "not_stored"
        out = call_edgellm("snapshots", "ls", "--json").stdout
        listed.append(json.loads(out))
        (path,) = (tmp_path / f"{n_ctx}-{n_times}").rglob("*.ekv")
        assert path.stat().st_size == listed[-1]["n_bytes"]
    small, large, longer = listed
    assert (small["n_tokens"], small["n_bytes"]) == (large["n_tokens"], large["n_bytes"])
    row_bytes = 4 * 2 * (2 * 32) * 2  # layers, keys and values, heads of 32 channels, f16
    for entry in listed:
        assert entry["n_bytes"] <= entry["n_tokens"] * (row_bytes + 4) + 8192
    assert 2.5 < longer["n_bytes"] / small["n_bytes"] < 3.5
    found = answer(model, "--ctx", 512)  # at home in the last folder: another length, no hit
    assert found.code == "not_stored"
    assert answer(model, "--ctx", 1024).code == "hit"
