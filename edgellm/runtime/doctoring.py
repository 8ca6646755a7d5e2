"""A check of everything an answer needs here: CPU, engines, GPU, memory, disk, keys, and the endpoint.

Each check stands alone: one that fails is told, and the others go on. Nothing is sent anywhere unless
the caller hands over a probe of the endpoint, and the mode allows one.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from edgellm import kernels, paths
from edgellm.config import allowed_mode, config_path, read_config
from edgellm.core import Mode
from edgellm.engines.llamacpp.built_for import REBUILD_COMMAND
from edgellm.errors import EdgeLLMError, UsageError
from edgellm.hw.bandwidth import cpu_name, measure, remember
from edgellm.hw.builds import engine_folder, gpu_kinds
from edgellm.hw.cpu import cpu_share
from edgellm.hw.flags import cpu_flags, is_arm
from edgellm.hw.gpu import gpus
from edgellm.hw.memory import memory_facts
from edgellm.hw.storage import storage_facts
from edgellm.policy.fitting import margin_bytes
from edgellm.runtime.engine_probe import probe_llama, probe_onnx
from edgellm.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from edgellm.hw.gpu import GpuFacts

Status = Literal["ok", "warning", "failed", "skipped"]

LLAMA_INSTALL: Final = "pip install 'llama-cpp-python>=0.3.36,<0.4'"
ONNX_INSTALL: Final = "pip install onnx onnxruntime"
_X86_SPEEDUPS: Final = ("avx2", "f16c", "fma")
_ARM_SPEEDUPS: Final = ("asimddp",)
_LITTLE_BYTES: Final = 1 << 30
_SLOW_DISK: Final = 50e6
_CLOSED: Final = (Mode.OFFLINE, Mode.PRIVATE)


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


def checkup(probe: Callable[[], str] | None = None, mode: Mode | None = None) -> Iterator[Check]:
    """Make all checks, and yield each as it ends.

    Args:
        probe: asks the endpoint whether it is there, and says what it found; None asks nobody.
        mode: which routes are allowed; None takes what is set.
    """
    settings, found_mode = settings_check(mode)
    yield settings
    yield _cpu()
    yield Check("threads", "ok", _threads_text())
    yield from engine_checks()
    yield from gpu_checks(gpus())
    yield memory_check()
    yield _bandwidth()
    yield _storage()
    yield _kernels()
    yield keyring_check(os.environ.get(paths.ENCRYPT_VARIABLE, ""))
    yield endpoint_check(probe, found_mode)


def settings_check(mode: Mode | None = None) -> tuple[Check, Mode]:
    """Return whether the settings can be read, and the mode: the strict one where they cannot.

    Args:
        mode: that stands above them, or None.
    """
    try:
        path, found = config_path(), allowed_mode(read_config().mode)
    except EdgeLLMError as err:
        return Check("settings", "failed", err.message, err.hint), mode or Mode.PRIVATE
    place = str(path) if path.is_file() else "no file of settings"
    return Check("settings", "ok", f"mode {(mode or found).value}, {place}"), mode or found


def engine_checks() -> Iterator[Check]:
    """Yield what each engine is, or why it is not usable; without any there is a failure."""
    llama = importlib.util.find_spec("llama_cpp") is not None
    onnx = importlib.util.find_spec("onnxruntime") is not None
    if llama:
        yield _llama()
    else:
        status: Status = "skipped" if onnx else "failed"
        yield Check("llama.cpp", status, "not installed", f"run: {LLAMA_INSTALL}")
    if onnx:
        yield _onnx()
    else:
        yield Check("ONNX Runtime", "skipped", "not installed", f"run: {ONNX_INSTALL}")


def _llama() -> Check:
    found = probe_llama()
    if found.missing:
        return Check(
            "llama.cpp", "failed", found.failure, f"build it for this CPU: {REBUILD_COMMAND}"
        )
    if found.failure:
        hint = f"install it again: {LLAMA_INSTALL} --force-reinstall --no-cache-dir"
        return Check("llama.cpp", "failed", f"it cannot be loaded: {found.failure}", hint)
    built = f"built for {', '.join(found.features)}" if found.features else "chooses its kernels"
    return Check("llama.cpp", "ok", f"{found.version}, {built}")


def _onnx() -> Check:
    found = probe_onnx()
    if found.failure:
        hint = f"install it again: {ONNX_INSTALL} --force-reinstall"
        return Check("ONNX Runtime", "failed", f"it cannot be loaded: {found.failure}", hint)
    return Check("ONNX Runtime", "ok", f"{found.version}, providers {', '.join(found.providers)}")


def _cpu() -> Check:
    flags = cpu_flags()
    if not flags:
        return Check("CPU", "warning", f"{cpu_name()}; what it can do is not known here")
    wanted = _ARM_SPEEDUPS if is_arm(flags) else _X86_SPEEDUPS
    has, lacks = ([f for f in wanted if (f in flags) is there] for there in (True, False))
    if lacks:
        told = f"{cpu_name()}, without {', '.join(lacks)}"
        return Check("CPU", "warning", told, "answers will be slow; small models suit it best")
    return Check("CPU", "ok", f"{cpu_name()}, with {', '.join(has)}")


def _threads_text() -> str:
    share = cpu_share()
    quota = "no quota" if share.quota_cpus is None else f"a quota of {share.quota_cpus:g}"
    return f"{share.n_threads} ({share.n_cpus} CPUs, {quota})"


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


def _bandwidth() -> Check:
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


def _storage() -> Check:
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


def _kernels() -> Check:
    try:
        row = kernels.isa()
    except EdgeLLMError as err:
        return Check("kernels", "failed", err.message, err.hint)
    slow = row == "numpy"
    return Check("kernels", "ok", f"{row}: snapshots are packed in Python" if slow else row)


def keyring_check(wanted: str) -> Check:
    """Return whether snapshots can be encrypted under a key of the system's keyring.

    Args:
        wanted: as `EDGELLM_SNAPSHOT_ENCRYPT` says it; without `keyring` nothing fails.
    """
    bad: Status = "failed" if wanted == "keyring" else "skipped"
    other = f"or keep the key in a file: {paths.ENCRYPT_VARIABLE}=file:PATH"
    if importlib.util.find_spec("keyring") is None:
        return Check(
            "keyring", bad, "not installed", f"run: pip install cryptography keyring, {other}"
        )
    import keyring
    from keyring.errors import KeyringError

    try:
        backend: Any = keyring.get_keyring()
        priority = float(backend.priority)
    except (KeyringError, RuntimeError) as err:
        return Check("keyring", bad, f"none to be used: {err}", other)
    name = f"{type(backend).__module__}.{type(backend).__name__}"
    if priority <= 0:  # the backend of machines that have none
        return Check("keyring", bad, f"this machine has none ({name})", other)
    return Check("keyring", "ok", name)


def endpoint_check(probe: Callable[[], str] | None, mode: Mode) -> Check:
    """Return whether the endpoint is there; it is asked only with a probe, and where the mode allows.

    Args:
        probe: asks it, and says what it found.
        mode: which routes are allowed.
    """
    if probe is None:
        return Check("endpoint", "skipped", "not asked; --endpoint asks it")
    if mode in _CLOSED:
        told = f"mode {mode.value}: no endpoint may be asked"
        return Check("endpoint", "failed", told, "`edgellm config set mode prefer-local` allows it")
    try:
        return Check("endpoint", "ok", probe())
    except EdgeLLMError as err:
        return Check("endpoint", "failed", err.message, err.hint)
