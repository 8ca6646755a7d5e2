"""plan and convert, from a folder to a verified file."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from edgellm.converters import verify
from edgellm.converters.presets import PRESETS
from edgellm.errors import DoesNotFit, ModelNotFound, UsageError, VerifyFailed
from edgellm.formats.gguf import read_header
from edgellm.kernels.ggml import WRITTEN
from edgellm.runtime.conversion import TYPE_OF_BITS, TYPES, ConvertOptions, convert, plan

CHECKPOINT = Path(__file__).resolve().parents[2] / "data" / "checkpoints" / "linear-bf16"


@pytest.fixture
def options(tmp_path: Path) -> ConvertOptions:
    """Options that work."""
    return ConvertOptions(CHECKPOINT, tmp_path / "m.gguf", "q8_0", prove=False)


@pytest.mark.parametrize("type_name", TYPES)
def test_the_plan_is_exact_and_the_result_is_the_file(
    options: ConvertOptions, type_name: str
) -> None:
    """Bytes planned are bytes written; the result's sha256 is the file's."""
    options = dataclasses.replace(options, type=type_name)
    planned = plan(options)
    assert not options.out.exists()
    result = convert(options)
    data = options.out.read_bytes()
    assert planned.out_bytes == result.n_bytes == len(data)
    assert result.sha256 == hashlib.sha256(data).hexdigest()
    assert [row.name for row in planned.tensors] == [
        t.name for t in read_header(options.out).tensors
    ]
    assert planned.n_params == sum(row.shape[0] * (*row.shape, 1)[1] for row in planned.tensors)
    assert list(options.out.parent.glob("*partial*")) == []


@pytest.mark.parametrize("type_name", ["f32", "q8_0", "q4_k_m"])
def test_a_gguf_between_changes_no_byte_of_an_unquantised_model(
    options: ConvertOptions, tmp_path: Path, type_name: str
) -> None:
    """Checkpoint -> bf16 -> type is the same file as checkpoint -> type, of generation 1."""
    middle = convert(dataclasses.replace(options, out=tmp_path / "middle.gguf", type="bf16"))
    direct = convert(dataclasses.replace(options, type=type_name))
    source = ConvertOptions(middle.path, tmp_path / "second.gguf", type_name, prove=False)
    planned = plan(source)
    result = convert(source)
    assert planned.out_bytes == result.n_bytes
    assert (planned.architecture, planned.generation, result.generation) == ("llama", 1, 1)
    assert result.sha256 == direct.sha256


def test_a_quantised_gguf_is_of_the_second_generation(
    options: ConvertOptions, tmp_path: Path
) -> None:
    """The file, the plan and the result say so, and the file can be told apart by anybody."""
    first = convert(options)
    again = ConvertOptions(first.path, tmp_path / "again.gguf", "q4_0")
    assert plan(again).generation == 2
    result = convert(again)
    assert (first.generation, result.generation) == (1, 2)
    assert read_header(result.path).metadata["edgellm.generation"] == 2
    assert any("loss adds up" in warning for warning in result.warnings)


def test_the_types_are_written_once() -> None:
    """What the command line offers is what has a preset; this list is there to load no numpy."""
    assert list(TYPES) == list(PRESETS)
    assert set(TYPE_OF_BITS.values()) <= set(TYPES)
    for preset in PRESETS.values():
        assert preset.type in WRITTEN


def test_the_plan_tells_the_memory_of_the_proof_apart(
    options: ConvertOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole file and the vocabularies; nothing where nothing is or can be proven."""
    assert plan(options).proof_memory_bytes == 0
    proven = dataclasses.replace(options, prove=True)
    assert plan(proven).proof_memory_bytes > plan(proven).out_bytes
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    assert plan(proven).proof_memory_bytes == 0


def test_fallbacks_are_counted(options: ConvertOptions) -> None:
    """Rows of 32 fill no block of 256: the mix becomes another one, and that is said."""
    result = convert(dataclasses.replace(options, type="q4_k_m"))
    assert [(f.wanted, f.stored) for f in result.fallbacks] == [("q4_k", "q5_0"), ("q6_k", "q8_0")]
    told = [warning for warning in result.warnings if "no multiple of 256" in warning]
    assert len(told) == 2
    assert told[0].count("blk.") == 2
    assert " and 3 more" in told[0]
    assert result.fallbacks == plan(dataclasses.replace(options, type="q4_k_m")).fallbacks


def test_same_input_same_file(options: ConvertOptions, tmp_path: Path) -> None:
    """Neither the folder's name, nor the threads, nor the time go into the file."""
    moved = tmp_path / "another name"
    shutil.copytree(CHECKPOINT, moved)
    digests = {
        convert(ConvertOptions(src, tmp_path / f"{i}.gguf", "q4_0", n_threads=n_threads)).sha256
        for i, (src, n_threads) in enumerate([(CHECKPOINT, 1), (CHECKPOINT, 8), (moved, 2)])
    }
    assert len(digests) == 1


def test_an_existing_file_is_kept_unless_told(options: ConvertOptions) -> None:
    """Nothing is overwritten by accident."""
    options.out.write_bytes(b"precious")
    with pytest.raises(UsageError, match="is there already"):
        convert(options)
    assert options.out.read_bytes() == b"precious"
    convert(dataclasses.replace(options, overwrite=True))
    assert options.out.read_bytes()[:4] == b"GGUF"


def test_wrong_options(options: ConvertOptions, tmp_path: Path) -> None:
    """Each wrong option is an error before anything is read or written."""
    wrong: list[dict[str, Any]] = [
        {"type": "q5_9"},
        {"n_threads": -1},
        {"out": tmp_path},
        {"out": tmp_path / "no" / "m.gguf"},
    ]
    for change in wrong:
        with pytest.raises(UsageError):
            convert(dataclasses.replace(options, **change))
    with pytest.raises(ModelNotFound, match="no such file or folder"):
        plan(dataclasses.replace(options, src=tmp_path / "nowhere"))


def test_a_source_that_is_there_and_no_file_is_told_what_it_is(
    options: ConvertOptions, tmp_path: Path
) -> None:
    """A device, a pipe, a socket: nothing is read of it, and nobody is sent to look for it."""
    pipe, name = tmp_path / "pipe", tmp_path / "socket"
    os.mkfifo(pipe)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(name))
        for src, what in ((Path(os.devnull), "a device"), (pipe, "a pipe"), (name, "a socket")):
            for work in (plan, convert):
                with pytest.raises(UsageError, match=f"is {what}; a checkpoint folder or a GGUF"):
                    work(dataclasses.replace(options, src=src))


def test_too_small_a_disk_is_told_before_writing(
    options: ConvertOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The size is known exactly, so the disk is asked first."""
    usage = shutil.disk_usage(options.out.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(DoesNotFit) as caught:
        convert(options)
    assert caught.value.need_bytes == plan(options).out_bytes
    assert caught.value.have_bytes == 1000
    assert list(options.out.parent.glob("*m.gguf*")) == []


def test_an_interrupted_run_leaves_nothing(options: ConvertOptions) -> None:
    """Ctrl-C in the middle removes the partial file."""

    def interrupt(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(options, progress=interrupt)
    assert list(options.out.parent.glob("*m.gguf*")) == []


def test_a_file_that_fails_verification_gets_no_name(
    options: ConvertOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read back differs from what was written: no file, whatever was there stays."""

    def spoil(path: Path, *rest: Any) -> str:
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        return good(path, *rest)

    good = verify.verify_file
    monkeypatch.setattr(verify, "verify_file", spoil)
    options.out.write_bytes(b"old")
    with pytest.raises(VerifyFailed):
        convert(dataclasses.replace(options, overwrite=True))
    assert options.out.read_bytes() == b"old"
    assert list(options.out.parent.glob("*partial*")) == []


def test_a_dead_runs_partial_file_is_replaced(options: ConvertOptions) -> None:
    """A killed run does not stop the next one."""
    partial = options.out.with_name(".m.gguf.edgellm-partial")
    partial.write_bytes(b"GGUF and half a file")
    convert(options)
    assert not partial.exists()


def test_the_source_is_only_read(options: ConvertOptions) -> None:
    """The checkpoint folder has the same files with the same times afterwards."""
    before = {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in CHECKPOINT.iterdir()}
    convert(options)
    assert {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in CHECKPOINT.iterdir()} == before
