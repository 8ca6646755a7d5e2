"""How much memory may be taken: the least of machine, cgroups and the process's own limit."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgellm.hw.memory import available_bytes, memory_facts

GIB = 1 << 30


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the machine have 64 GiB to give, page cache counted."""
    memory = SimpleNamespace(available=64 * GIB, total=128 * GIB)
    monkeypatch.setattr("psutil.virtual_memory", lambda: memory)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)


def group(folder: Path, limit: str, used: str, cache: int = 0) -> None:
    """Write the files of a v2 group."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {cache}\n")


def test_without_limits_the_machine_counts(machine: None, tmp_path: Path) -> None:
    """No cgroup files, no limit: what psutil says."""
    assert available_bytes(tmp_path, tmp_path / "none") == 64 * GIB


@pytest.mark.parametrize(
    ("limit", "used", "cache", "room"),
    [
        (f"{4 * GIB}", f"{GIB}", 0, 3 * GIB),
        (f"{4 * GIB}", f"{3 * GIB}", 2 * GIB, 3 * GIB),
        (f"{4 * GIB}", f"{5 * GIB}", 0, 0),
        ("max", f"{GIB}", 0, 64 * GIB),
        ("", "", 0, 64 * GIB),
    ],
)
def test_a_group_of_version_2(
    machine: None, tmp_path: Path, limit: str, used: str, cache: int, room: int
) -> None:
    """Limit minus use, page cache given back; `max` and nonsense limit nothing."""
    group(tmp_path, limit, used, cache)
    assert available_bytes(tmp_path, tmp_path / "none") == room


def test_every_group_above_counts(machine: None, tmp_path: Path) -> None:
    """A slice's limit binds the service below it."""
    own = tmp_path / "own"
    own.write_text("0::/system.slice/llm.service\n")
    group(tmp_path / "system.slice", str(3 * GIB), str(GIB))
    group(tmp_path / "system.slice" / "llm.service", str(8 * GIB), str(GIB))
    assert available_bytes(tmp_path, own) == 2 * GIB


def test_a_group_of_version_1(machine: None, tmp_path: Path) -> None:
    """The older files, whose number for no limit is near 2^63."""
    folder = tmp_path / "memory" / "job"
    folder.mkdir(parents=True)
    own = tmp_path / "own"
    own.write_text("9:cpuset:/x\n4:memory:/job\n")
    (folder / "memory.limit_in_bytes").write_text(f"{2 * GIB}\n")
    (folder / "memory.usage_in_bytes").write_text(f"{GIB}\n")
    assert available_bytes(tmp_path, own) == GIB
    (folder / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert available_bytes(tmp_path, own) == 64 * GIB


def test_a_group_above_that_cannot_be_seen(machine: None, tmp_path: Path) -> None:
    """In a container of version 1 only `memory.stat` tells of tighter limits outside."""
    folder = tmp_path / "memory"
    folder.mkdir()
    (folder / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (folder / "memory.usage_in_bytes").write_text(f"{GIB}\n")
    stat = f"total_inactive_file {GIB // 2}\nhierarchical_memory_limit {2 * GIB}\n"
    (folder / "memory.stat").write_text(stat)
    facts = memory_facts(tmp_path, tmp_path / "none")
    assert (facts.available_bytes, facts.total_bytes) == (2 * GIB - GIB // 2, 2 * GIB)
    assert facts.source.endswith("memory.stat: hierarchical_memory_limit")


def test_the_limit_of_the_process_counts(tmp_path: Path) -> None:
    """Under `ulimit -v` what is left of it, in a real process."""
    code = "from edgellm.hw.memory import available_bytes; print(available_bytes())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (GIB, GIB)),
    )
    assert 0 < int(done.stdout) < GIB


def test_the_throttle_of_version_2_counts(machine: None, tmp_path: Path) -> None:
    """Beyond `memory.high` nobody is killed but all stand still: the tighter of the two is the limit."""
    group(tmp_path, str(4 * GIB), str(GIB))
    (tmp_path / "memory.high").write_text(f"{2 * GIB}\n")
    assert available_bytes(tmp_path, tmp_path / "none") == GIB
    (tmp_path / "memory.max").write_text("max\n")
    facts = memory_facts(tmp_path, tmp_path / "none")
    assert (facts.available_bytes, facts.total_bytes) == (GIB, 2 * GIB)
    assert facts.source.endswith("memory.high")
    (tmp_path / "memory.high").write_text("max\n")
    assert available_bytes(tmp_path, tmp_path / "none") == 64 * GIB


def test_a_group_named_in_another_script(machine: None, tmp_path: Path) -> None:
    """Groups are folders, and may be named as any folder is."""
    own = tmp_path / "own"
    own.write_text("0::/größe/b\n", encoding="utf-8")
    group(tmp_path / "größe" / "b", str(4 * GIB), str(GIB))
    assert available_bytes(tmp_path, own) == 3 * GIB


@pytest.mark.parametrize("limit", ["-1", "9" * 5000, "1e9", "٣", "\x00"])
def test_a_limit_without_sense(machine: None, tmp_path: Path, limit: str) -> None:
    """It limits nothing, and ends nothing."""
    group(tmp_path, limit, str(GIB))
    assert available_bytes(tmp_path, tmp_path / "none") == 64 * GIB


def test_without_proc_the_free_pages_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A sandbox may have no /proc: what the system calls free is taken, under any own limit."""

    def no_proc(*_: object) -> None:
        raise FileNotFoundError(2, "No such file or directory", "/proc/meminfo")

    monkeypatch.setattr("psutil.virtual_memory", no_proc)
    monkeypatch.setattr("psutil.Process", no_proc)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    facts = memory_facts(tmp_path, tmp_path / "none")
    assert (facts.limited_by, facts.source) == ("host", "free pages of the system")
    assert 0 < facts.available_bytes <= facts.total_bytes
    monkeypatch.setattr(resource, "getrlimit", lambda _: (4096, 4096))
    assert available_bytes(tmp_path, tmp_path / "none") == 4096
