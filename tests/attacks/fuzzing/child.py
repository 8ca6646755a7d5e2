"""What runs in a process of its own, under limits: the loop over inputs, or a single one.

The input at work lies in a file before the reader sees it, so that whatever kills the process leaves
it behind. Too much CPU time for one input ends the process by SIGPROF, inside C code too; memory is limited to a
gigabyte more than the process had when it was ready.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from fuzzing.targets import FAULTS, MAX_BYTES, MAX_WORK_S, TARGETS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fuzzing.targets import Target

_MAX_MUTATIONS = 3
_PAGE_BYTES = 4096
# Instrumented code takes that many times longer, at least: what stops it is read again without.
_SLOWER = 4


def inputs(target: Target, seed: int) -> Iterator[bytes]:
    """Give the seeds as they are, then changes of them without end."""
    rng = random.Random(seed)
    pool = target.seeds()
    yield from pool
    while True:
        data = rng.choice(pool)
        for _ in range(rng.randint(1, _MAX_MUTATIONS)):
            data = target.mutate(data, rng)
        yield data[: target.max_bytes]


def loop(reader: str, seconds: float, seed: int, current: Path, work_s: float) -> None:
    """Read the seeds, then inputs until the time is over, and print how many they were."""
    target = _target(reader)
    end_s = time.monotonic() + seconds
    seeds = target.seeds()
    for data in seeds:  # whatever is imported late is no allocation of an input
        current.write_bytes(data)
        target.read(data)
    print(json.dumps({"seeds": len(seeds)}), flush=True)
    limit = _limit_memory()
    n_inputs = 0
    fd = os.open(current, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for data in inputs(target, seed):
        os.ftruncate(fd, 0)
        os.pwrite(fd, data, 0)
        _read_limited(target, data, limit, work_s)
        n_inputs += 1
        if n_inputs >= len(seeds) and time.monotonic() >= end_s:
            break
    os.close(fd)
    current.unlink()
    print(json.dumps({"inputs": n_inputs}))


def replay(reader: str, path: Path, work_s: float) -> None:
    """Read one input under the limits, after the seeds have warmed the process up."""
    target = _target(reader)
    for data in target.seeds()[:1]:
        target.read(data)
    _read_limited(target, path.read_bytes(), _limit_memory(), work_s)


def _target(reader: str) -> Target:
    return {**TARGETS, **FAULTS}[reader]


def _read_limited(target: Target, data: bytes, limit_bytes: int, work_s: float) -> None:
    signal.setitimer(signal.ITIMER_PROF, work_s)
    target.read(data)
    signal.setitimer(signal.ITIMER_PROF, 0)
    if _peak_bytes() > limit_bytes:
        raise MemoryError(f"{_peak_bytes()} bytes at once")


def _peak_bytes() -> int:
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _limit_memory(more_bytes: int = MAX_BYTES) -> int:
    """Forbid more memory than there is now and `more_bytes`; return the resident bound."""
    import resource

    statm = Path("/proc/self/statm")
    if statm.exists():
        n_bytes = int(statm.read_text().split()[0]) * _PAGE_BYTES + more_bytes
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (n_bytes, hard))
    return _peak_bytes() + more_bytes


def guided(reader: str, seconds: float, seed: int, folder: Path) -> None:
    """Hand the target to libFuzzer, which keeps what reaches new code; it ends the process."""
    import atheris

    target = _target(reader)
    with atheris.instrument_imports(include=list(target.packages)):
        seeds = target.seeds()
        for data in seeds:
            target.read(data)
    print(json.dumps({"seeds": len(seeds)}), flush=True)
    corpus = folder / "corpus"
    corpus.mkdir(exist_ok=True)
    for number, data in enumerate(seeds):
        (corpus / f"seed-{number:03}").write_bytes(data)

    def read(data: bytes) -> None:
        target.read(data)

    def mutate(data: bytes, max_size: int, mutation_seed: int) -> bytes:
        rng = random.Random(mutation_seed)
        made = target.mutate(data, rng) if rng.randrange(2) else atheris.Mutate(data, max_size)
        return made[:max_size]

    flags = [
        f"-max_total_time={max(1, int(seconds))}",
        f"-timeout={_SLOWER * MAX_WORK_S}",
        f"-rss_limit_mb={_limit_memory(MAX_BYTES + (256 << 20)) >> 20}",
        f"-malloc_limit_mb={MAX_BYTES >> 20}",
        f"-max_len={target.max_bytes}",
        f"-artifact_prefix={folder}{os.sep}",
        f"-seed={seed + 1}",
        "-print_final_stats=1",
    ]
    atheris.Setup([sys.argv[0], *flags, str(corpus)], read, custom_mutator=mutate)
    atheris.Fuzz()
