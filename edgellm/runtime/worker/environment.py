"""The worker's environment: a list of variables that it may have, and no other.

What is not named here does not reach the process that runs native code over a stranger's file: no
key, no token, no proxy.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from edgellm.hw.spinning import openmp_spins
from edgellm.paths import CAP_VARIABLE, HOME_VARIABLE
from edgellm.runtime.worker.faults import FAULT_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

_ALLOWED: Final = frozenset(
    {
        # where things are
        *("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "TMP", "TEMP", "TZ", "LANG", "LANGUAGE"),
        *("XDG_DATA_HOME", "XDG_CACHE_HOME", "LD_LIBRARY_PATH", "LD_PRELOAD", "DYLD_LIBRARY_PATH"),
        *("SYSTEMROOT", "WINDIR", "SYSTEMDRIVE", "USERPROFILE", "APPDATA", "LOCALAPPDATA"),
        *("PROGRAMDATA", "PATHEXT", "COMSPEC", "NUMBER_OF_PROCESSORS", "PROCESSOR_ARCHITECTURE"),
        # the interpreter
        *("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONNOUSERSITE", "PYTHONPLATLIBDIR"),
        *("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", "PYTHONHASHSEED", "PYTHONUTF8"),
        *("VIRTUAL_ENV", "CONDA_PREFIX"),
        # this package
        *(HOME_VARIABLE, CAP_VARIABLE, FAULT_VARIABLE),
        *("EDGELLM_KERNELS", "EDGELLM_ISA", "EDGELLM_NATIVE_LIB"),
    }
)
# Engines and what they compute with read many variables of their own.
_ALLOWED_PREFIXES: Final = (
    *("LC_", "GGML_", "LLAMA_", "OMP_", "KMP_", "GOMP_", "OPENBLAS_", "MKL_", "BLIS_", "MALLOC_"),
    *("CUDA_", "NVIDIA_", "HIP_", "ROCR_", "ROCM_", "HSA_", "VK_", "MESA_", "SYCL_", "MTL_"),
)
# `LLAMA_CLOUD_API_KEY` and `NVIDIA_API_KEY` begin like harmless ones.
_NEVER: Final = (
    *("KEY", "TOKEN", "SECRET", "PASS", "CRED", "PROXY", "AUTH", "COOKIE", "SESSION"),
    *("URL", "URI", "ENDPOINT", "WEBHOOK", "DSN"),  # which may have a password in them
)

_WAITING: Final = frozenset({"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"})


def worker_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return what of an environment the worker gets.

    A crash then writes no backtrace: ggml would start a debugger on the process, which takes
    seconds, and could print what it holds. Threads that wait sleep sooner than OpenMP lets them,
    unless the user has said how they wait.
    """
    kept = {name: value for name, value in environ.items() if _is_allowed(name.upper())}
    spins = None if _WAITING & kept.keys() else openmp_spins()
    if spins is not None:
        kept["GOMP_SPINCOUNT"] = str(spins)
    return {**kept, "GGML_NO_BACKTRACE": "1"}


def _is_allowed(name: str) -> bool:
    if name in _ALLOWED:
        return True
    return name.startswith(_ALLOWED_PREFIXES) and not any(word in name for word in _NEVER)
