"""What the kernel counted against a process's memory group: processes killed there, limits hit.

The folders are found while the process lives; the counters can still be read when it is gone. Version 1
counts in `memory.oom_control` and `memory.failcnt` of the group itself, version 2 in `memory.events`,
which also counts the groups below.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

_CGROUP: Final = Path("/sys/fs/cgroup")
_PROC: Final = Path("/proc")
_MAX_COUNTER_BYTES: Final = 1 << 16  # files of some ten lines; the kernel's, but read with a bound
_MAX_DIGITS: Final = 20  # of a number of 64 bits


@dataclass(frozen=True, slots=True)
class MemoryCounters:
    """What happened in one group so far. None is not told here.

    Attributes:
        oom_kills: processes of the group that were killed because memory ran out, whoever's limit
            it was: the group's own, one above it, or the machine's.
        limit_hits: how often the group's limit was reached; most of these ended well.
        machine_oom_kills: processes killed anywhere on the machine.
    """

    oom_kills: int | None = None
    limit_hits: int | None = None
    machine_oom_kills: int | None = None


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """The memory group of one process.

    Attributes:
        folder: where its counters are, or None where there is none to read.
        version: of the control groups, 1 or 2.
        vmstat: the file of the machine's own counters.
    """

    folder: Path | None
    version: int
    vmstat: Path

    def counters(self) -> MemoryCounters:
        """Read the counters as they are now; what cannot be read is None."""
        machine = _field(_read(self.vmstat), "oom_kill")
        if self.folder is None:
            return MemoryCounters(machine_oom_kills=machine)
        if self.version == 1:
            kills = _field(_read(self.folder / "memory.oom_control"), "oom_kill")
            return MemoryCounters(kills, _number(_read(self.folder / "memory.failcnt")), machine)
        events = _read(self.folder / "memory.events")
        return MemoryCounters(_field(events, "oom_kill"), _field(events, "max"), machine)


def memory_group(pid: int | None = None, cgroup: Path = _CGROUP, proc: Path = _PROC) -> MemoryGroup:
    """Find the memory group of a process that lives.

    Args:
        pid: of the process; None is this one.
        cgroup: root folder of cgroup v2; v1's memory controller is `memory` below it, and in a
            hybrid layout v2 is `unified` below it.
        proc: root folder of the process files.

    Source: `memory.events`, Linux cgroup-v2.rst; `memory.oom_control`, cgroup-v1/memory.rst;
    /proc/PID/cgroup, cgroups(7); `oom_kill` of /proc/vmstat, mm/vmstat.c.
    """
    vmstat = proc / "vmstat"
    names = _group_names(_read(proc / ("self" if pid is None else str(pid)) / "cgroup"))
    for version, name in names:
        for root in _roots(cgroup, version):
            # In a container the root is the container's own group, and the path leads nowhere.
            for folder in (root / name, root):
                if _has_counters(folder, version):
                    return MemoryGroup(folder, version, vmstat)
    return MemoryGroup(None, 2, vmstat)


def _group_names(text: str) -> list[tuple[int, PurePosixPath]]:
    """Return version and path of the memory groups, version 1 first: where it is, it limits."""
    v1: list[tuple[int, PurePosixPath]] = []
    v2: list[tuple[int, PurePosixPath]] = []
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        group = PurePosixPath(name.lstrip("/"))
        if ".." in group.parts:
            group = PurePosixPath()
        if "memory" in controllers.split(","):
            v1.append((1, group))
        elif number == "0" and not controllers:
            v2.append((2, group))
    return v1 + v2


def _roots(cgroup: Path, version: int) -> tuple[Path, ...]:
    return (cgroup / "memory",) if version == 1 else (cgroup, cgroup / "unified")


def _has_counters(folder: Path, version: int) -> bool:
    name = "memory.oom_control" if version == 1 else "memory.events"
    return (folder / name).is_file()


def _field(text: str, name: str) -> int | None:
    """Return the number of one line `name number`."""
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return _number(value)
    return None


def _number(text: str) -> int | None:
    text = text.strip()
    plain = text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS
    return int(text) if plain else None


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return os.fsdecode(file.read(_MAX_COUNTER_BYTES))  # groups are named as folders are
    except OSError:
        return ""
