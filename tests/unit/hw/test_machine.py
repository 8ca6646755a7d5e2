"""The machine as one value: whose limit counts, which GPU the engine can use, whose bandwidth."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgellm.hw import machine as machine_module
from edgellm.hw.bandwidth import remember
from edgellm.hw.builds import cpu_libraries, engine_folder, gpu_kinds
from edgellm.hw.gpu import GpuFacts
from edgellm.hw.machine import machine
from edgellm.hw.memory import memory_facts

GIB = 1 << 30
CARD = GpuFacts("card", "cuda", 8 * GIB, 7 * GIB)


def test_this_machine() -> None:
    """The real files: something is available, at most all there is, and threads to use it."""
    found = machine()
    assert 0 < found.available_bytes <= found.total_bytes
    assert found.limited_by in ("host", "cgroup", "rlimit")
    assert found.share.n_threads >= 1
    assert found.profile is None


@pytest.mark.parametrize(("kinds", "usable", "idle"), [({"cuda"}, 1, 0), ({"metal"}, 0, 1)])
def test_gpus_the_engine_has_code_for(
    monkeypatch: pytest.MonkeyPatch, kinds: set[str], usable: int, idle: int
) -> None:
    """A card without code for it in the engine's files is idle."""
    monkeypatch.setattr(machine_module, "gpus", lambda _: (CARD,))
    monkeypatch.setattr(machine_module, "gpu_kinds", lambda _: kinds)
    found = machine()
    assert (usable, idle) == (len(found.gpus), len(found.idle_gpus))
    assert not found.unified


def test_the_bandwidth_that_was_measured_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A profile is a prior; where the machine is recognised, its figure is used until then."""
    (tmp_path / "proc/device-tree").mkdir(parents=True)
    (tmp_path / "proc/device-tree/model").write_bytes(b"Raspberry Pi 5 Model B Rev 1.0\0")
    monkeypatch.setattr(machine_module, "host_total_bytes", lambda: int(7.9 * GIB))
    found = machine(tmp_path, with_profile=True)
    assert ("raspberry-pi-5-8gb", 17.1) == (found.profile, found.bandwidth_gb_s)
    remember(9.5)
    assert machine(tmp_path, with_profile=True).bandwidth_gb_s == 9.5
    assert machine(tmp_path).profile is None


def test_a_group_is_named_as_what_limits(tmp_path: Path) -> None:
    """The figure, the total and the file are the group's."""
    folder = tmp_path / "memory" / "job"
    folder.mkdir(parents=True)
    (tmp_path / "own").write_text("4:memory:/job\n")
    (folder / "memory.limit_in_bytes").write_text(f"{GIB}\n")
    (folder / "memory.usage_in_bytes").write_text(f"{GIB // 2}\n")
    (folder / "memory.stat").write_text(
        f"total_inactive_file {GIB // 8}\ntotal_active_file {GIB // 8}\n"
    )
    found = memory_facts(tmp_path, tmp_path / "own")
    assert (GIB * 3 // 4, GIB, "cgroup") == (
        found.available_bytes,
        found.total_bytes,
        found.limited_by,
    )
    assert found.source.endswith("job/memory.limit_in_bytes")


def test_a_hybrid_layout(tmp_path: Path) -> None:
    """Version 2 below `unified` counts as well, with the groups above the process's own."""
    (tmp_path / "own").write_text("4:memory:/\n0::/slice/job\n")
    folder = tmp_path / "unified" / "slice"
    folder.mkdir(parents=True)
    (folder / "memory.max").write_text("1000000\n")
    (folder / "memory.current").write_text("400000\n")
    assert memory_facts(tmp_path, tmp_path / "own").available_bytes == 600000


def test_the_files_of_an_engine(tmp_path: Path) -> None:
    """Which libraries lie there says what the build can do; links to one are one."""
    for name in ("libggml-base.so", "libggml-cpu.so", "libggml-cpu.so.0", "libggml-cuda.so"):
        (tmp_path / name).touch()
    assert {"cuda"} == gpu_kinds(tmp_path)
    assert (tmp_path / "libggml-cpu.so",) == cpu_libraries(tmp_path)
    assert frozenset() == gpu_kinds(None)


def test_the_installed_engine_is_found_and_not_loaded() -> None:
    """As Python would find it."""
    folder = engine_folder()
    assert folder is not None
    assert cpu_libraries(folder)


def test_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is found, and nothing fails."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert engine_folder() is None
