"""What the kernel counted against a memory group, in both versions of control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgellm.hw.cgroups import MemoryCounters, memory_group

V1_OOM = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"
V2_EVENTS = "low 0\nhigh 2\nmax 41\noom 5\noom_kill 4\noom_group_kill 0\n"
VMSTAT = "nr_free_pages 12\noom_kill 9\npgfault 77\n"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A process folder whose machine has killed nine processes."""
    folder = tmp_path / "proc"
    folder.mkdir()
    (folder / "vmstat").write_text(VMSTAT)
    return folder


def process(proc: Path, pid: int, groups: str) -> None:
    """Put a process into groups."""
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "cgroup").write_text(groups)


def v1_group(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "memory.oom_control").write_text(V1_OOM)
    (folder / "memory.failcnt").write_text("17\n")


def v2_group(folder: Path, events: str = V2_EVENTS) -> None:
    folder.mkdir(parents=True)
    (folder / "memory.events").write_text(events)


def test_version_1_counts_in_the_memory_controllers_folder(tmp_path: Path, proc: Path) -> None:
    """Kills from `memory.oom_control`, limit hits from `memory.failcnt`."""
    process(proc, 7, "9:name=systemd:/\n4:memory:/jobs/llm\n0::/\n")
    v1_group(tmp_path / "cg" / "memory" / "jobs" / "llm")
    assert memory_group(7, tmp_path / "cg", proc).counters() == MemoryCounters(3, 17, 9)


def test_a_group_named_in_another_script_is_found(tmp_path: Path, proc: Path) -> None:
    """Groups are folders, and may be named as any folder is; a number too long for one is not told."""
    process(proc, 7, "0::/größe\n")
    v2_group(tmp_path / "cg" / "größe", V2_EVENTS.replace("41", "9" * 5000))
    assert memory_group(7, tmp_path / "cg", proc).counters() == MemoryCounters(4, None, 9)


def test_version_2_counts_in_memory_events(tmp_path: Path, proc: Path) -> None:
    """Kills are `oom_kill`, limit hits are `max`."""
    process(proc, 7, "0::/user.slice/app.scope\n")
    v2_group(tmp_path / "cg" / "user.slice" / "app.scope")
    assert memory_group(7, tmp_path / "cg", proc).counters() == MemoryCounters(4, 41, 9)


def test_a_hybrid_layout_has_version_2_in_unified(tmp_path: Path, proc: Path) -> None:
    """Where version 1 holds other controllers only, memory counts in the unified tree."""
    process(proc, 7, "3:cpuset:/\n0::/app\n")
    v2_group(tmp_path / "cg" / "unified" / "app")
    assert memory_group(7, tmp_path / "cg", proc).counters() == MemoryCounters(4, 41, 9)


def test_a_containers_root_is_its_own_group(tmp_path: Path, proc: Path) -> None:
    """The path of the host's tree leads nowhere inside; the root's counters are the container's."""
    process(proc, 7, "0::/docker/0123abcd\n")
    v2_group(tmp_path / "cg")
    assert memory_group(7, tmp_path / "cg", proc).counters() == MemoryCounters(4, 41, 9)


def test_a_path_that_climbs_is_not_followed(tmp_path: Path, proc: Path) -> None:
    """A namespaced path outside the root, `/../other`, falls back to the root."""
    process(proc, 7, "0::/../other\n")
    v2_group(tmp_path / "other")
    assert memory_group(7, tmp_path / "cg", proc).counters() == MemoryCounters(None, None, 9)


def test_counters_outlive_the_process(tmp_path: Path, proc: Path) -> None:
    """The group is found once; when the process is gone its counters can still be read."""
    process(proc, 7, "0::/app\n")
    v2_group(tmp_path / "cg" / "app")
    group = memory_group(7, tmp_path / "cg", proc)
    (proc / "7" / "cgroup").unlink()
    (tmp_path / "cg" / "app" / "memory.events").write_text("max 50\noom_kill 6\n")
    assert group.counters() == MemoryCounters(6, 50, 9)


@pytest.mark.parametrize("text", ["", "oom_kill\n", "oom_kill minus\n", "oom_kill -1\n", "\xff\n"])
def test_nonsense_is_not_told(tmp_path: Path, proc: Path, text: str) -> None:
    """What is no number of at least 0 is None, not 0."""
    process(proc, 7, "0::/app\n")
    v2_group(tmp_path / "cg" / "app", text)
    assert memory_group(7, tmp_path / "cg", proc).counters() == MemoryCounters(None, None, 9)


def test_without_control_groups_the_machine_counts(tmp_path: Path, proc: Path) -> None:
    """No groups at all: only what was killed on the machine."""
    assert memory_group(8, tmp_path / "cg", proc).counters() == MemoryCounters(None, None, 9)


def test_this_process_can_be_asked() -> None:
    """On the real machine it answers, whatever there is."""
    counters = memory_group().counters()
    assert all(n is None or n >= 0 for n in (counters.oom_kills, counters.limit_hits))
