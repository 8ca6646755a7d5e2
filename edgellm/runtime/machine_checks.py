"""The checks of a machine itself for `edgellm doctor`: CPU, GPU, memory, disk, and what computes on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from edgellm import kernels, paths
from edgellm.errors import EdgeLLMError, UsageError
from edgellm.hw.bandwidth import cpu_name, measure, remember
from edgellm.hw.builds import engine_folder, gpu_kinds
from edgellm.hw.cpu import cpu_share
from edgellm.hw.flags import cpu_flags, is_arm
from edgellm.hw.memory import memory_facts
from edgellm.hw.storage import storage_facts
from edgellm.policy.fitting import margin_bytes
from edgellm.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from edgellm.hw.gpu import GpuFacts

Status = Literal["ok", "warning", "failed", "skipped"]

LLAMA_INSTALL: Final = "pip install 'llama-cpp-python>=0.3.36,<0.4'"
_X86_SPEEDUPS: Final = ("avx2", "f16c", "fma")
_ARM_SPEEDUPS: Final = ("asimddp",)
_LITTLE_BYTES: Final = 1 << 30
_SLOW_DISK: Final = 50e6


@dataclass(frozen=True, slots=True)
class Check:
    """What one check found.

    Attributes:
        name: of the check, in one or two words.
        status: `failed` makes `edgellm doctor` exit with 1; `skipped` was not asked for, or is not here.
        found: in words, with the numbers.
        hint: what to do about it, or "".
    """

    name: str
    status: Status
    found: str
    hint: str = ""


def cpu_check() -> Check:
    """Return what the CPU can do that engines are fast with."""
    flags = cpu_flags()
    if not flags:
        return Check("CPU", "warning", f"{cpu_name()}; what it can do is not known here")
    wanted = _ARM_SPEEDUPS if is_arm(flags) else _X86_SPEEDUPS
    has, lacks = ([f for f in wanted if (f in flags) is there] for there in (True, False))
    if lacks:
        told = f"{cpu_name()}, without {', '.join(lacks)}"
        return Check("CPU", "warning", told, "answers will be slow; small models suit it best")
    return Check("CPU", "ok", f"{cpu_name()}, with {', '.join(has)}")


def threads_check() -> Check:
    """Return how many threads an answer gets, by affinity and quota."""
    share = cpu_share()
    quota = "no quota" if share.quota_cpus is None else f"a quota of {share.quota_cpus:g}"
    return Check("threads", "ok", f"{share.n_threads} ({share.n_cpus} CPUs, {quota})")


def gpu_checks(there: tuple[GpuFacts, ...]) -> Iterator[Check]:
    """Yield each GPU, and whether the engine can use it."""
    if not there:
        yield Check("GPU", "ok", "none: the CPU computes")
    kinds = gpu_kinds(engine_folder())
    for gpu in there:
        memory = "" if gpu.total_bytes is None else f", {format_bytes(gpu.total_bytes)}"
        free = "" if gpu.free_bytes is None else f", {format_bytes(gpu.free_bytes)} free"
        capability = f", {gpu.compute_capability}" if gpu.compute_capability else ""
        driver = f", driver {gpu.driver}" if gpu.driver else ""
        told = f"{gpu.name}{capability}{driver}{memory}{free}"
        told += f"; {gpu.note}" if gpu.note else ""
        if gpu.kind in kinds:
            yield Check("GPU", "ok", told)
        else:
            switch = f"CMAKE_ARGS=-DGGML_{gpu.kind.upper()}=on"
            again = f"{switch} {LLAMA_INSTALL} --force-reinstall --no-cache-dir"
            yield Check(
                "GPU", "warning", f"{told}; the engine has no code for it", f"build it: {again}"
            )


def memory_check() -> Check:
    """Return the figure that plans are made with, and who says so."""
    found = memory_facts()
    have, total = format_bytes(found.available_bytes), format_bytes(found.total_bytes)
    margin = format_bytes(margin_bytes(found.available_bytes))
    told = f"{have} of {total} are available, {margin} of it stay free; by {found.source}"
    if found.available_bytes < _LITTLE_BYTES:
        hint = {
            "host": "close other programs",
            "cgroup": "raise the control group's limit",
            "rlimit": "raise `ulimit -v`",
        }[found.limited_by]
        return Check("memory", "warning", told, hint)
    return Check("memory", "ok", told)


def bandwidth_check() -> Check:
    """Measure how fast memory is read, and keep that for plans."""
    rate = measure(cpu_share().n_threads, memory_facts().available_bytes)
    if rate is None:
        return Check("bandwidth", "skipped", "too little memory is available to measure it")
    told = f"{rate:.1f} GB/s read by {cpu_share().n_threads} threads"
    try:
        remember(rate)
    except (OSError, UsageError) as err:
        why = err.message if isinstance(err, UsageError) else err.strerror
        return Check("bandwidth", "ok", f"{told}; not kept for plans: {why}")
    return Check("bandwidth", "ok", told)


def storage_check() -> Check:
    """Return how fast the disk of `EDGELLM_HOME` is, and what is free on it."""
    try:
        home = paths.home_dir()
    except UsageError as err:
        return Check("disk", "failed", err.message, err.hint)
    try:
        found = storage_facts(home)
    except OSError as err:
        return Check("disk", "failed", f"{home}: {err.strerror}", f"set {paths.HOME_VARIABLE}")
    free = f"{format_bytes(found.free_bytes)} free"
    if found.write_bytes_per_s is None:
        told = f"{found.folder} cannot be written, {free}"
        return Check("disk", "failed", told, f"set {paths.HOME_VARIABLE} to a folder of yours")
    written = format_bytes(int(found.write_bytes_per_s))
    read = "" if found.read_bytes_per_s is None else format_bytes(int(found.read_bytes_per_s))
    told = f"{found.folder}: written at {written}/s" + (f", read at {read}/s" if read else "")
    slow = found.read_bytes_per_s is not None and found.read_bytes_per_s < _SLOW_DISK
    hint = "snapshots pay only where the prompt is long" if slow else ""
    return Check("disk", "warning" if slow else "ok", f"{told}, {free}", hint)


def kernels_check() -> Check:
    """Return which kernels pack snapshots here."""
    try:
        row = kernels.isa()
    except EdgeLLMError as err:
        return Check("kernels", "failed", err.message, err.hint)
    slow = row == "numpy"
    return Check("kernels", "ok", f"{row}: snapshots are packed in Python" if slow else row)
