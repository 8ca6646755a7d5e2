"""How many CPU threads this process may really use: affinity and the cgroup's quota.

A container with a quota of 2 CPUs on a 64-core host must run 2 threads, not 64.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

_CGROUP_V2 = Path("/sys/fs/cgroup/cpu.max")
_CGROUP_V1 = Path("/sys/fs/cgroup/cpu")


def available_threads(v2: Path = _CGROUP_V2, v1: Path = _CGROUP_V1) -> int:
    """Return the number of threads worth starting, at least 1.

    Args:
        v2: the `cpu.max` file of cgroup v2.
        v1: the CPU controller's folder of cgroup v1.
    """
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS and Windows
    n = len(affinity(0)) if affinity else os.cpu_count() or 1
    quota = _quota_v2(v2) or _quota_v1(v1)
    return max(1, min(n, quota or n))


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
