"""How many CPU threads this process may really use: affinity and the cgroup's quota.

A container with a quota of 2 CPUs on a 64-core host must run 2 threads, not 64.
"""

from __future__ import annotations

import math
import os
from pathlib import Path, PurePosixPath

_CGROUP_V2 = Path("/sys/fs/cgroup")
_CGROUP_V1 = Path("/sys/fs/cgroup/cpu")
_OWN_GROUP = Path("/proc/self/cgroup")


def available_threads(v2: Path = _CGROUP_V2, v1: Path = _CGROUP_V1, own: Path = _OWN_GROUP) -> int:
    """Return the number of threads worth starting, at least 1.

    Args:
        v2: root folder of cgroup v2; every group above the process's own may set a quota.
        v1: the CPU controller's folder of cgroup v1.
        own: the file that names the process's own group.
    """
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS and Windows
    n = len(affinity(0)) if affinity else os.cpu_count() or 1
    quotas = [_quota_v2(v2 / group / "cpu.max") for group in _groups(own)]
    found = [quota for quota in (*quotas, _quota_v1(v1)) if quota]
    return max(1, min([n, *found]))


def _groups(own: Path) -> list[PurePosixPath]:
    """Return the v2 group of this process and all above it, relative to the root, which comes last.

    In a container the root is the container's own group, and the path may lead nowhere.
    """
    for line in _read(own).splitlines():
        if line.startswith("0::/"):
            group = PurePosixPath(line.removeprefix("0::/"))
            if ".." not in group.parts:
                return [group, *group.parents]
    return [PurePosixPath()]


def _quota_v2(path: Path) -> int | None:
    fields = _read(path).split()
    return _ceil_div(fields[0], fields[1]) if len(fields) == 2 else None


def _quota_v1(folder: Path) -> int | None:
    return _ceil_div(_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us"))


def _ceil_div(quota: str, period: str) -> int | None:
    """Return quota / period rounded up; None when unlimited (`max`, -1) or unreadable."""
    if not (quota.isdigit() and period.isdigit() and int(period)):
        return None
    return math.ceil(int(quota) / int(period)) or None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
