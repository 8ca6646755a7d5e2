"""How long a thread of the engine looks for work before it sleeps.

Engines share the work on each token between threads that wait for each other hundreds of times. GNU's
OpenMP lets a thread look 300,000 times before it sleeps (libgomp manual, `GOMP_SPINCOUNT`), which on a
processor with a slow `pause` is longer than a whole token. Where another process wants a core as well, the
thread that has work then waits for one that has none to give its core up: `tests/bench/busy.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from edgellm.hw.flags import listed_cpus

SPINS: Final = 10_000
"""Half a millisecond, at 140 cycles each: longer than what is between two tokens of a small model, so
that a quiet machine is as fast as with the library's number."""

_INTEL: Final = "GenuineIntel"
_SLOW_PAUSE_FLAG: Final = "clflushopt"
"""Came with Skylake, as did a `pause` of 140 cycles in place of 10 (Intel 64 and IA-32 Architectures
Optimization Reference Manual, "Pause Latency in Skylake Client Microarchitecture")."""


def openmp_spins(cpuinfo: Path = Path("/proc/cpuinfo")) -> int | None:
    """Return a number for `GOMP_SPINCOUNT`, or None where the library's own is kept.

    It is kept on processors whose `pause` is quick, or was not measured.

    Args:
        cpuinfo: the kernel's list of processors.
    """
    cpus = listed_cpus(cpuinfo)
    return SPINS if cpus.vendor == _INTEL and _SLOW_PAUSE_FLAG in cpus.flags else None
