"""content_id: same bytes same name, other bytes other name, and a cache that may be broken."""

from __future__ import annotations

import _thread
import os
import shutil
import threading
import time
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest

from edgellm.errors import ModelCorrupt, ModelNotFound
from edgellm.formats import identity
from edgellm.formats.gguf import read_header
from edgellm.formats.identity import LoadingId, content_id

if TYPE_CHECKING:
    from pathlib import Path

LATER_S = 3600.0


def later() -> float:
    """Tell a time at which nothing is fresh."""
    return time.time() + LATER_S


def name_of(path: Path) -> str:
    """Return the content id, remembered at once."""
    return content_id(path, read_header(path), clock=later)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Write a model of several megabytes."""
    path = tmp_path / "m.gguf"
    out = gguf.GGUFWriter(str(path), "llama")
    out.add_tensor("w", np.random.default_rng(7).random((3000, 1000), np.float32))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return path


def test_a_copy_has_the_same_name_and_any_part_changes_it(model: Path, tmp_path: Path):
    """Path and times do not matter; header, first and last weight and length do."""
    first = name_of(model)
    copy = shutil.copyfile(model, tmp_path / "copy.gguf")
    assert name_of(copy) == first
    header = read_header(model)
    seen = {first}
    for offset in (header.data_start, header.file_bytes - 1, header.file_bytes - 40_000):
        content = bytearray(model.read_bytes())
        content[offset] ^= 1
        copy.write_bytes(content)
        seen.add(name_of(copy))
    copy.write_bytes(model.read_bytes() + b"\0")
    seen.add(name_of(copy))
    assert len(seen) == 5


def test_a_change_in_place_is_seen_although_the_times_are_set_back(model: Path):
    """Size and mtime may lie (`rsync -t`): the change time does not."""
    first = name_of(model)
    status = model.stat()
    with model.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x99")
    os.utime(model, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert name_of(model) != first


def test_the_second_time_comes_from_the_cache(model: Path, edgellm_home: Path):
    """What the cache says is believed, and only for the same stamp."""
    first = name_of(model)
    (entry,) = (edgellm_home / "cache" / "content-ids").iterdir()
    entry.write_text(entry.read_text().replace(first, "ab" * 16))
    assert name_of(model) == "ab" * 16
    model.touch()
    assert name_of(model) == first


@pytest.mark.parametrize("junk", [b"", b"{", b"[1]", b'{"stamp": 1}', b"[" * 3000, b"\xff" * 9000])
def test_a_broken_cache_is_ignored_and_mended(model: Path, edgellm_home: Path, junk: bytes):
    """Junk in the cache costs a second reading, nothing else."""
    first = name_of(model)
    (entry,) = (edgellm_home / "cache" / "content-ids").iterdir()
    good = entry.read_bytes()
    entry.write_bytes(junk)
    assert name_of(model) == first
    assert entry.read_bytes() == good


def test_a_cache_that_cannot_be_written_is_no_error(model: Path, edgellm_home: Path):
    """A file in the way of the folder stands for a read-only disk."""
    edgellm_home.mkdir()
    (edgellm_home / "cache").write_text("in the way")
    assert len(name_of(model)) == 32


def test_a_file_that_was_just_written_is_not_remembered(model: Path, edgellm_home: Path):
    """A later write within the clock's grain would carry the same stamp."""
    content_id(model, read_header(model), clock=lambda: model.stat().st_ctime + 1)
    assert not (edgellm_home / "cache").exists()


def test_a_header_of_another_file_is_refused(model: Path):
    """The file grew between the header and the id: it is being written."""
    header = read_header(model)
    with model.open("ab") as file:
        file.write(b"more")
    with pytest.raises(ModelCorrupt, match="a moment ago"):
        content_id(model, header)


def test_every_byte_counts(tmp_path: Path):
    """One bit anywhere in header, weights or padding makes another name."""
    path = tmp_path / "small.gguf"
    out = gguf.GGUFWriter(str(path), "llama")
    out.add_tensor("w", np.arange(96, dtype=np.float32))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    header, content = read_header(path), path.read_bytes()
    seen = {content_id(path, header)}
    for offset in range(len(content)):
        path.write_bytes(content[:offset] + bytes([content[offset] ^ 1]) + content[offset + 1 :])
        seen.add(content_id(path, header))
    assert len(seen) == 1 + len(content)


def test_an_id_is_worked_out_while_something_else_is_done(model: Path):
    """The thread's id is the same, and an untouched file is unchanged."""
    loading = LoadingId(model, read_header(model))
    loading.check_unchanged()
    assert loading.result() == name_of(model)


def test_a_file_replaced_while_it_loads_is_told(model: Path, tmp_path: Path):
    """The name and the weights in memory must be of one file."""
    loading = LoadingId(model, read_header(model))
    loading.result()
    shutil.copyfile(model, tmp_path / "new.gguf").replace(model)
    with pytest.raises(ModelCorrupt, match="changed while it was loaded"):
        loading.check_unchanged()


def test_a_file_that_vanishes_is_an_error_of_the_result(model: Path):
    """What went wrong in the thread is raised where the id is asked for."""
    header = read_header(model)
    model.unlink()
    with pytest.raises(ModelNotFound):
        LoadingId(model, header).result()


def test_what_is_written_to_while_in_use_has_an_id_of_its_own(model: Path):
    """Never the new one, nor the old one again: weights of both may be in use. A touch is no change."""
    loading = LoadingId(model, read_header(model))
    first = loading.result()
    os.utime(model, ns=(5, 5))
    model.chmod(0o640)
    assert loading.result() == first
    content = model.read_bytes()
    with model.open("r+b") as file:
        file.write(content[:-3] + b"abc")
    changed = loading.result()
    assert len(changed) == len(first)
    assert changed not in {first, name_of(model)}
    assert loading.result() == changed
    with model.open("r+b") as file:
        file.write(content)
    assert loading.result() not in {first, name_of(model)}


def test_another_file_in_its_place_leaves_the_one_in_use(model: Path, tmp_path: Path):
    """It is mapped whatever its name leads to now, and where it is gone."""
    loading = LoadingId(model, read_header(model))
    first = loading.result()
    other = shutil.copyfile(model, tmp_path / "other.gguf")
    with other.open("r+b") as file:
        file.write(b"something else")
    other.replace(model)
    assert loading.result() == first
    model.unlink()
    assert loading.result() == first


def test_an_id_is_worked_out_where_there_is_no_thread(model: Path, monkeypatch: pytest.MonkeyPatch):
    """Who asks for it waits for all of it then."""

    def refuse(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    header = read_header(model)
    assert LoadingId(model, header).result() == content_id(model, header)


def test_memory_that_runs_out_in_the_thread_is_an_error_or_an_id(
    model: Path, monkeypatch: pytest.MonkeyPatch
):
    """Never a name without a digit: all models would share it."""
    header, real, n_fails = read_header(model), identity.content_id, 1

    def tight(*given: Any) -> str:
        nonlocal n_fails
        n_fails -= 1
        if n_fails >= 0:
            raise MemoryError
        return real(*given)

    monkeypatch.setattr(identity, "content_id", tight)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    assert LoadingId(model, header).result() == content_id(model, header)
    n_fails = 2
    with pytest.raises(MemoryError):
        LoadingId(model, header).result()
