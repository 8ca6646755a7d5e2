"""The thread count of containers and machines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgellm.hw.cpu import CpuShare, available_threads, cpu_share


@pytest.fixture
def many_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process run on 64 CPUs."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)


@pytest.fixture
def v2(tmp_path: Path):
    """Make a cgroup v2 root with a `cpu.max`, or one below it in a group."""

    def write(text: str | bytes, group: str = "") -> Path:
        path = tmp_path / "v2" / group / "cpu.max"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return tmp_path / "v2"

    return write


@pytest.fixture
def v1(tmp_path: Path):
    """Write the two files of cgroup v1's CPU controller, or of a group below its root."""

    def write(quota: str, period: str, group: str = "") -> Path:
        folder = tmp_path / "cpu" / group
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cpu.cfs_quota_us").write_text(quota)
        (folder / "cpu.cfs_period_us").write_text(period)
        return tmp_path / "cpu"

    return write


@pytest.mark.parametrize(
    ("text", "n_threads"),
    [
        ("200000 100000\n", 2),
        ("150000 100000\n", 1),
        ("250000 100000\n", 2),
        ("199999 100000\n", 1),
        ("50000 100000\n", 1),
        ("1000 100000\n", 1),
        ("6400000 100000\n", 64),
        ("99999999 100000\n", 64),
        ("max 100000\n", 64),
        ("", 64),
        ("200000\n", 64),
        ("200000 0\n", 64),
        ("0 100000\n", 64),
        ("-1 100000\n", 64),
        ("2e5 1e5\n", 64),
        (b"\xff\xfe", 64),
        pytest.param("9" * 5000 + " 100000\n", 64, id="too long a number"),
    ],
)
def test_quota_of_version_2(many_cpus, v2, tmp_path: Path, text: str, n_threads: int) -> None:
    """A fraction of a CPU carries no thread, but there is always one; nonsense limits nothing."""
    assert n_threads == available_threads(v2(text), tmp_path / "none")


@pytest.mark.parametrize(
    ("quota", "period", "n_threads"),
    [
        ("400000\n", "100000\n", 4),
        ("250000\n", "100000\n", 2),
        ("0\n", "100000\n", 64),
        ("-1\n", "100000\n", 64),
        ("100000\n", "0\n", 64),
        ("", "", 64),
    ],
)
def test_quota_of_version_1(
    many_cpus, v1, tmp_path: Path, quota: str, period: str, n_threads: int
) -> None:
    """The older files, where `-1` is no limit."""
    assert n_threads == available_threads(tmp_path / "none", v1(quota, period))


def test_a_group_below_the_root_counts(many_cpus, v2, tmp_path: Path) -> None:
    """A service's own quota, or its slice's, limits it; the tightest one does."""
    own = tmp_path / "cgroup"
    own.write_text("12:cpuset:/x\n0::/system.slice/llm.service\n")
    root = v2("800000 100000\n", "system.slice")
    assert 8 == available_threads(root, tmp_path / "none", own)
    v2("300000 100000\n", "system.slice/llm.service")
    assert 3 == available_threads(root, tmp_path / "none", own)
    own.write_text("1:name=größe:/\n0::/system.slice/llm.service\n", encoding="utf-8")
    assert 3 == available_threads(root, tmp_path / "none", own)
    own.write_text("0::/../../elsewhere\n")
    assert 64 == available_threads(root, tmp_path / "none", own)


def test_a_group_of_version_1_below_the_root_counts(many_cpus, v1, tmp_path: Path) -> None:
    """The group is found by its controller, alone or with others; the tightest quota counts."""
    own = tmp_path / "cgroup"
    root = v1("800000", "100000", "docker")
    v1("350000", "100000", "docker/abc")
    for controllers in ("cpu", "cpu,cpuacct", "cpuacct,cpu"):
        own.write_text(f"9:cpuset:/\n4:{controllers}:/docker/abc\n0::/\n")
        assert 3 == available_threads(tmp_path / "none", root, own)
    own.write_text("4:cpu,cpuacct:/docker\n0::/\n")
    assert 8 == available_threads(tmp_path / "none", root, own)
    own.write_text("4:cpuacct:/docker/abc\n3:cpuset:/docker\n0::/docker/abc\n")
    assert 64 == available_threads(tmp_path / "none", root, own)
    own.write_text("4:cpu:/../docker/abc\n")
    assert 64 == available_threads(tmp_path / "none", root, own)


def test_the_share_says_why(many_cpus, v2, tmp_path: Path) -> None:
    """The CPUs, the quota as it is, and what they come to."""
    assert CpuShare(2, 64, 2.5) == cpu_share(v2("250000 100000\n"), tmp_path / "none")
    assert CpuShare(64, 64, None) == cpu_share(v2("max 100000\n"), tmp_path / "none")


def test_version_1_counts_where_version_2_sets_no_limit(many_cpus, v2, v1) -> None:
    """A machine with both hierarchies has its limit in one of them."""
    folder = v1("300000", "100000")
    assert 3 == available_threads(v2("max 100000\n"), folder)
    assert 2 == available_threads(v2("200000 100000\n"), folder)


def test_affinity_counts_before_any_quota(tmp_path: Path, v2) -> None:
    """A process pinned to one CPU runs one thread, whatever its group may use."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert 1 == available_threads(v2("800000 100000\n"), tmp_path / "none")
    finally:
        os.sched_setaffinity(0, before)


def test_a_pinned_process_starts_one_thread() -> None:
    """`taskset` counts: a child that inherits one CPU sees one, and `edgellm info` says so."""
    before = os.sched_getaffinity(0)
    command = [sys.executable, "-m", "edgellm", "info", "--json"]
    os.sched_setaffinity(0, {max(before)})
    try:
        done = subprocess.run(command, capture_output=True, check=True)
    finally:
        os.sched_setaffinity(0, before)
    threads = json.loads(done.stdout)["threads"]
    assert (1, 1) == (threads["n_threads"], threads["n_cpus"])


def test_without_affinity_the_machine_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS; an unknown number of CPUs is one."""
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert 3 == available_threads(tmp_path / "none", tmp_path / "none")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert 1 == available_threads(tmp_path / "none", tmp_path / "none")


def test_this_machine_has_at_least_one() -> None:
    """The real files, whatever they say."""
    assert 1 <= available_threads() <= (os.cpu_count() or 1)
