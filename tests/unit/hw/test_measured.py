"""What is measured: the memory's bandwidth, within its time and remembered, and a folder's disk."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgellm.hw import bandwidth, storage
from edgellm.hw.bandwidth import cpu_name, measure, remember, remembered
from edgellm.hw.storage import storage_facts
from edgellm.paths import cache_dir

MIB = 1 << 20


def test_a_rate_is_measured() -> None:
    """Between what a slow board and the fastest machine manage."""
    rate = measure(2, 1 << 30, limit_s=0.3)
    assert rate is not None
    assert 0.2 < rate < 3000


def test_little_memory_is_left_alone() -> None:
    """With less than 128 MiB nothing is measured."""
    assert measure(2, 100 * MIB) is None


def test_buffers_are_an_eighth_of_what_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe is not what runs out of memory."""
    import numpy as np

    taken: list[int] = []
    full = np.full

    def counted(n: int, *rest: object) -> object:
        taken.append(8 * n)
        return full(n, *rest)

    monkeypatch.setattr(np, "full", counted)
    measure(2, 256 * MIB, limit_s=0.05)
    assert 2 * sum(taken) <= 32 * MIB


def test_no_pass_begins_that_would_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two seconds are two seconds, by a clock that the passes move."""
    now = [0.0]

    def slow(*_: object) -> float:
        now[0] += 0.4
        return 0.4

    monkeypatch.setattr(bandwidth, "_timed", slow)
    monkeypatch.setattr(bandwidth, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    measure(1, 1 << 30, limit_s=2.0)
    assert now[0] <= 2.0


def test_a_rate_is_remembered_for_this_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another CPU's figure, a home moved to another machine, is none."""
    assert remembered() is None
    remember(51.26)
    assert remembered() == 51.3
    monkeypatch.setattr(bandwidth, "cpu_name", lambda: "another one")
    assert remembered() is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b'{"cpu": 1}',
        b'{"gb_s": "fast"}',
        b'{"gb_s": -1}',
        b'{"gb_s": NaN}',
        b"\xff",
        b"[" * 2000,
    ],
)
def test_a_damaged_note_is_none(content: bytes) -> None:
    """It is measured again."""
    cache_dir().mkdir(parents=True)
    (cache_dir() / "bandwidth.json").write_bytes(content)
    assert remembered() is None


def test_the_note_is_json() -> None:
    """Its figure and whose it is."""
    remember(10.0)
    value = json.loads((cache_dir() / "bandwidth.json").read_bytes())
    assert value == {"cpu": cpu_name(), "gb_s": 10.0}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("processor : 0\nmodel name : Some CPU @ 2 GHz\n", "Some CPU @ 2 GHz"),
        ("processor : 0\n\nModel : Raspberry Pi 5 Model B\n", "Raspberry Pi 5 Model B"),
    ],
)
def test_a_cpu_has_a_name(tmp_path: Path, text: str, name: str) -> None:
    """x86 names the CPU, ARM boards the board."""
    (tmp_path / "cpuinfo").write_text(text)
    assert name == cpu_name(tmp_path / "cpuinfo")


def test_without_cpuinfo_the_platform_says(tmp_path: Path) -> None:
    """Never nothing."""
    assert cpu_name(tmp_path / "none")


def test_a_disk_is_measured(tmp_path: Path) -> None:
    """Both ways, and nothing is left behind."""
    found = storage_facts(tmp_path / "not" / "there", n_bytes=2 * MIB)
    assert found.folder == tmp_path
    assert found.free_bytes > 0
    assert found.write_bytes_per_s is not None
    assert found.write_bytes_per_s > 0
    assert found.read_bytes_per_s is not None
    assert [] == [path for path in tmp_path.iterdir() if path.name.startswith(".edgellm")]


def test_a_full_disk_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its free space is told, and the probe's file is gone."""

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    found = storage_facts(tmp_path, n_bytes=MIB)
    assert (found.write_bytes_per_s, found.read_bytes_per_s) == (None, None)
    assert [] == [path for path in tmp_path.iterdir() if path.name.startswith(".edgellm")]


def test_a_disk_with_no_room_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenth of what is free is the most that the probe takes."""
    monkeypatch.setattr(storage.shutil, "disk_usage", lambda _: SimpleNamespace(free=5 * MIB))
    assert storage_facts(tmp_path).write_bytes_per_s is None


def test_without_a_way_past_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading is not measured where the cache would answer."""
    monkeypatch.delattr(os, "posix_fadvise")
    found = storage_facts(tmp_path, n_bytes=MIB)
    assert found.write_bytes_per_s is not None
    assert found.read_bytes_per_s is None
