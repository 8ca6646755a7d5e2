"""How much memory this process may still take: of the machine, of its cgroup, of its own limit.

Page cache counts as free: it is given back when somebody asks. In a container the machine's free
memory means nothing, and under `ulimit -v` neither does the container's.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final, Literal

LimitedBy = Literal["host", "cgroup", "rlimit"]

_CGROUP: Final = Path("/sys/fs/cgroup")
_OWN_GROUP: Final = Path("/proc/self/cgroup")
_UNLIMITED_BYTES: Final = 1 << 60  # cgroup v1 writes a number near 2^63 for no limit
_MAX_DIGITS: Final = 20  # of a number of 64 bits
# Limits, use, and the page cache in that use. Beyond `memory.high` nobody is killed, but all stand still.
_V2: Final = (
    ("memory.max", "memory.high"),
    "memory.current",
    ("inactive_file", "active_file"),
)
_V1: Final = (
    ("memory.limit_in_bytes",),
    "memory.usage_in_bytes",
    ("total_inactive_file", "total_active_file"),
)
_ABOVE: Final = (
    "hierarchical_memory_limit"  # of version 1: the least of all groups above, seen or not
)
_Names = tuple[tuple[str, ...], str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """What of the memory may still be taken, and who says so.

    Attributes:
        available_bytes: now; never below 0.
        total_bytes: of what limits it.
        limited_by: the machine, a control group, or the process's own address space.
        source: the file or the call that the figure comes from.
    """

    available_bytes: int
    total_bytes: int
    limited_by: LimitedBy
    source: str


def available_bytes(cgroup: Path = _CGROUP, own: Path = _OWN_GROUP) -> int:
    """Return the bytes that can be taken now; arguments as of `memory_facts`."""
    return memory_facts(cgroup, own).available_bytes


def memory_facts(cgroup: Path = _CGROUP, own: Path = _OWN_GROUP) -> MemoryFacts:
    """Return the least of what machine, groups and limits leave.

    Args:
        cgroup: root folder of cgroup v2; v1's memory controller is `memory` below it, and where both
            are there v2 may be `unified` below it.
        own: the file that names the process's own groups.

    Source: `memory.max`, `memory.high`, `memory.current`, Linux cgroup-v2.rst; `memory.limit_in_bytes`,
    cgroup-v1/memory.rst; MemAvailable, proc(5).
    """
    found = [_host(), *_group_rooms(cgroup, own)]
    room = _address_room()
    if room is not None:
        found.append(room)
    return min(found, key=lambda facts: facts.available_bytes)


def host_total_bytes() -> int:
    """Return the memory of the machine, whatever of it this process may use."""
    return _host().total_bytes


def _host() -> MemoryFacts:
    """Return what the machine has. Without /proc, as in some sandboxes, page cache counts as taken."""
    import psutil

    try:
        memory = psutil.virtual_memory()
    except OSError:
        page = os.sysconf("SC_PAGE_SIZE")
        free, total = (page * os.sysconf(name) for name in ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES"))
        return MemoryFacts(max(0, free), total, "host", "free pages of the system")
    available = max(0, int(memory.available))
    return MemoryFacts(available, int(memory.total), "host", "available memory of the system")


def _address_room() -> MemoryFacts | None:
    """Return what RLIMIT_AS leaves to this process, None without a limit or where there is none."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    import psutil

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    try:
        used = int(psutil.Process(os.getpid()).memory_info().vms)
    except (psutil.Error, OSError):  # no /proc: the worker starts anew, and smaller
        used = 0
    return MemoryFacts(max(0, limit - used), int(limit), "rlimit", "RLIMIT_AS (ulimit -v)")


def _group_rooms(cgroup: Path, own: Path) -> list[MemoryFacts]:
    """Return what each group from the process's own up to the root still allows."""
    v1, v2 = _own_groups(own)
    rooms = [_room(root / group, _V2) for root in (cgroup, cgroup / "unified") for group in v2]
    rooms += [_room(cgroup / "memory" / group, _V1) for group in v1]
    return [room for room in rooms if room is not None]


def _own_groups(own: Path) -> tuple[list[PurePosixPath], list[PurePosixPath]]:
    """Return the memory groups of v1 and of v2, each with all above it up to the root.

    In a container the root is the container's own group, and the path may lead nowhere.
    """
    v1, v2 = [PurePosixPath()], [PurePosixPath()]
    for line in _read(own).splitlines():
        number, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        group = PurePosixPath(name.lstrip("/"))
        if ".." in group.parts:
            continue
        if number == "0" and not controllers:
            v2 = [group, *group.parents]
        elif "memory" in controllers.split(","):
            v1 = [group, *group.parents]
    return v1, v2


def _room(folder: Path, names: _Names) -> MemoryFacts | None:
    """Return limit - use + page cache of one group, None when it sets no limit.

    Both lists of the cache count, as they do in the machine's own MemAvailable: a file that is read
    twice is on the active one, and is given back all the same.
    """
    used = _number(_read(folder / names[1]))
    if used is None:
        return None
    stat = [line.partition(" ")[::2] for line in _read(folder / "memory.stat").splitlines()]
    limits = [(name, _read(folder / name)) for name in names[0]]
    limits += [(f"memory.stat: {name}", value) for name, value in stat if name == _ABOVE]
    told = [(_number(value), name) for name, value in limits]
    found = [(n, name) for n, name in told if n is not None and n < _UNLIMITED_BYTES]
    if not found:
        return None
    limit, name = min(found)
    cache = sum(_number(value) or 0 for name, value in stat if name in names[2])
    room = max(0, limit - max(0, used - cache))
    return MemoryFacts(room, limit, "cgroup", str(folder / name))


def _number(text: str) -> int | None:
    plain = text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS
    return int(text) if plain else None


def _read(path: Path) -> str:
    try:
        return os.fsdecode(path.read_bytes()).strip()  # the names of groups are those of folders
    except OSError:
        return ""
