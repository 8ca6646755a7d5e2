"""How many CPU threads this process may really use: affinity and the quotas of its control groups.

A container with a quota of 2 CPUs on a 64-core host must run 2 threads, not 64; one with 2.5 as well,
because the third thread would stand still for half of each period and the others wait for it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_CGROUP_V2 = Path("/sys/fs/cgroup")
_CGROUP_V1 = Path("/sys/fs/cgroup/cpu")
_OWN_GROUP = Path("/proc/self/cgroup")
_MAX_DIGITS = 20  # of a number of 64 bits


@dataclass(frozen=True, slots=True)
class CpuShare:
    """What this process may use of the machine's CPUs.

    Attributes:
        n_threads: worth starting; the smaller of the two below, rounded down, at least 1.
        n_cpus: that the scheduler may put it on.
        quota_cpus: CPU time per time that its control groups allow, or None without a limit.
    """

    n_threads: int
    n_cpus: int
    quota_cpus: float | None


def available_threads(v2: Path = _CGROUP_V2, v1: Path = _CGROUP_V1, own: Path = _OWN_GROUP) -> int:
    """Return the number of threads worth starting, at least 1; arguments as of `cpu_share`."""
    return cpu_share(v2, v1, own).n_threads


def cpu_share(v2: Path = _CGROUP_V2, v1: Path = _CGROUP_V1, own: Path = _OWN_GROUP) -> CpuShare:
    """Return what this process may use; what cannot be read limits nothing.

    Args:
        v2: root folder of cgroup v2; every group above the process's own may set a quota.
        v1: the CPU controller's folder of cgroup v1; likewise.
        own: the file that names the process's own groups.

    Source: `cpu.max` and `cpu.cfs_quota_us`, Linux cgroup-v2.rst and sched-bwc.rst; /proc/self/cgroup,
    cgroups(7).
    """
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS and Windows
    n_cpus = len(affinity(0)) if affinity else os.cpu_count() or 1
    lines = _read(own).splitlines()
    quotas = [
        *(_quota_v2(v2 / group / "cpu.max") for group in _groups(lines, "")),
        *(_quota_v1(v1 / group) for group in _groups(lines, "cpu")),
    ]
    found = [quota for quota in quotas if quota is not None]
    quota = min(found) if found else None
    n_threads = n_cpus if quota is None else min(n_cpus, int(quota))
    return CpuShare(max(1, n_threads), n_cpus, quota)


def _groups(lines: list[str], controller: str) -> list[PurePosixPath]:
    """Return this process's group and all above it, relative to the root, which comes last.

    In a container the root is the container's own group, and the path may lead nowhere.
    """
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(",") and (controller or number == "0"):
            group = PurePosixPath(path.lstrip("/"))
            if ".." not in group.parts:
                return [group, *group.parents]
    return [PurePosixPath()]


def _quota_v2(path: Path) -> float | None:
    fields = _read(path).split()
    return _ratio(fields[0], fields[1]) if len(fields) == 2 else None


def _quota_v1(folder: Path) -> float | None:
    return _ratio(_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us"))


def _ratio(quota: str, period: str) -> float | None:
    """Return quota / period; None when unlimited (`max`, -1), without sense, or unreadable."""
    if not all(text.isascii() and text.isdigit() for text in (quota, period)):
        return None
    if max(len(quota), len(period)) > _MAX_DIGITS or not (int(quota) and int(period)):
        return None
    return int(quota) / int(period)


def _read(path: Path) -> str:
    try:
        return os.fsdecode(path.read_bytes()).strip()  # the names of groups are those of folders
    except OSError:
        return ""
