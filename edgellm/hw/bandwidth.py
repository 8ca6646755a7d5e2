"""How fast this machine's memory is, measured for at most two seconds and remembered.

A device profile gives what a data sheet says; what was measured here stands above it. Decoding reads
the weights once for every token, so this figure over their bytes is the most tokens a second.
"""

from __future__ import annotations

import json
import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from edgellm.fileio import write_atomic
from edgellm.paths import cache_dir

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import ThreadPoolExecutor

    import numpy as np
    from numpy.typing import NDArray

LIMIT_S: Final = 2.0
_MOST_BYTES: Final = 256 << 20  # of all buffers: beyond the caches of all but the largest servers
_LEAST_BYTES: Final = 16 << 20
_SHARE: Final = 8  # of what is available
_FILE: Final = "bandwidth.json"
_MAX_FILE_BYTES: Final = 1 << 12
_CPUINFO: Final = Path("/proc/cpuinfo")


def measure(n_threads: int, available_bytes: int, limit_s: float = LIMIT_S) -> float | None:
    """Return the best rate of reading, or of copying, in 10^9 bytes a second.

    A copy counts what it reads and what it writes. Buffers are at most an eighth of what is available.

    Args:
        n_threads: that touch memory at once.
        available_bytes: of memory; with too little nothing is measured, and None returned.
        limit_s: for all of it.
    """
    from concurrent.futures import ThreadPoolExecutor

    import numpy as np

    n_bytes = min(_MOST_BYTES, available_bytes // _SHARE) // (2 * n_threads)
    if n_bytes < _LEAST_BYTES // (2 * n_threads) or n_threads < 1:
        return None
    stop_s = time.perf_counter() + limit_s
    total, best = n_bytes * n_threads, 0.0
    with ThreadPoolExecutor(n_threads) as pool:
        sources = list(pool.map(lambda i: np.full(n_bytes // 8, i, np.uint64), range(n_threads)))
        targets = list(pool.map(np.empty_like, sources))
        pass_s = 0.0
        while time.perf_counter() + pass_s < stop_s:  # none begins that would not end in time
            read_s = _timed(pool, _read, sources, targets)
            copy_s = _timed(pool, _copy, sources, targets)
            pass_s = read_s + copy_s
            best = max(best, total / read_s, 2 * total / copy_s)
    return best / 1e9 or None


def remember(gb_s: float) -> None:
    """Keep a rate that was measured, for this CPU.

    Raises:
        OSError: it cannot be written.
    """
    folder = cache_dir()
    folder.mkdir(parents=True, exist_ok=True)
    value = {"cpu": cpu_name(), "gb_s": round(gb_s, 1)}
    write_atomic(folder / _FILE, json.dumps(value).encode())


def remembered() -> float | None:
    """Return the rate that was measured on this CPU, None without one or where it cannot be read."""
    try:
        with (cache_dir() / _FILE).open("rb") as file:
            value = json.loads(file.read(_MAX_FILE_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    rate = value.get("gb_s") if isinstance(value, dict) else None
    if not isinstance(rate, (int, float)) or not 0 < rate < 1e5:
        return None
    return float(rate) if value.get("cpu") == cpu_name() else None


def cpu_name(cpuinfo: Path = _CPUINFO) -> str:
    """Return what the CPU calls itself, or the kind of machine where nobody says."""
    try:
        with cpuinfo.open("rb") as file:
            text = file.read(_MAX_FILE_BYTES).decode("ascii", "replace")
    except OSError:
        text = ""
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model"):
            return value.strip()
    return platform.processor() or platform.machine()


def _timed(
    pool: ThreadPoolExecutor,
    work: Callable[[NDArray[np.uint64], NDArray[np.uint64]], None],
    sources: list[NDArray[np.uint64]],
    targets: list[NDArray[np.uint64]],
) -> float:
    started_s = time.perf_counter()
    list(pool.map(work, sources, targets))
    return max(time.perf_counter() - started_s, 1e-9)


def _read(source: NDArray[np.uint64], target: NDArray[np.uint64]) -> None:
    del target
    source.max()


def _copy(source: NDArray[np.uint64], target: NDArray[np.uint64]) -> None:
    target[:] = source
