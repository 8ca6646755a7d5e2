"""A check of everything an answer needs here: CPU, engines, GPU, memory, disk, keys, and the endpoint.

Each check stands alone: one that fails is told, and the others go on. Nothing is sent anywhere unless
the caller hands over a probe of the endpoint, and the mode allows one.
"""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING, Any, Final

from edgellm import paths
from edgellm.config import allowed_mode, config_path, read_config
from edgellm.core import Mode
from edgellm.engines.llamacpp.built_for import REBUILD_COMMAND
from edgellm.errors import EdgeLLMError
from edgellm.hw.gpu import gpus
from edgellm.runtime.engine_probe import probe_llama, probe_onnx
from edgellm.runtime.machine_checks import (
    LLAMA_INSTALL,
    Check,
    bandwidth_check,
    cpu_check,
    gpu_checks,
    kernels_check,
    memory_check,
    storage_check,
    threads_check,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from edgellm.runtime.machine_checks import Status

ONNX_INSTALL: Final = "pip install onnx onnxruntime"
_CLOSED: Final = (Mode.OFFLINE, Mode.PRIVATE)


def checkup(probe: Callable[[], str] | None = None, mode: Mode | None = None) -> Iterator[Check]:
    """Make all checks, and yield each as it ends.

    Args:
        probe: asks the endpoint whether it is there, and says what it found; None asks nobody.
        mode: which routes are allowed; None takes what is set.
    """
    settings, found_mode = settings_check(mode)
    yield settings
    yield cpu_check()
    yield threads_check()
    yield from engine_checks()
    yield from gpu_checks(gpus())
    yield memory_check()
    yield bandwidth_check()
    yield storage_check()
    yield kernels_check()
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
