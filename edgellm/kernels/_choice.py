"""Which implementation runs: the variables are read here, once, at first use.

EDGELLM_KERNELS     `auto` (the default), `native` (a missing library is an error), or `numpy`
EDGELLM_ISA         one row of the native library; the default is the best that can run
EDGELLM_NATIVE_LIB  path of the library; the default is the one installed beside this file
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from edgellm.errors import UsageError
from edgellm.kernels._native import NativeKernels, NativeUnavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

log = logging.getLogger(__name__)

KNOWN_KERNELS: Final = ("auto", "native", "numpy")
KNOWN_ISAS: Final = ("scalar", "avx2", "avx512", "neon")
_SUFFIX: Final = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")


@functools.cache
def native() -> NativeKernels | None:
    """Give the native library, or None for numpy; the same answer for the process's life.

    Raises:
        UsageError: a variable has a value that cannot be used.
    """
    chosen = choose(os.environ)
    log.info("kernels: %s", "numpy" if chosen is None else chosen.isa())
    return chosen


@functools.cache
def numpy_is_forced() -> bool:
    """Say whether `EDGELLM_KERNELS=numpy` is set, which the quantisers honour as well.

    Raises:
        UsageError: the variable's value is unknown.
    """
    return _kernels_variable(os.environ) == "numpy"


def choose(environ: Mapping[str, str]) -> NativeKernels | None:
    """Decide from the variables in `environ` and the library's presence.

    Raises:
        UsageError: a value is unknown, or names what cannot run here.
    """
    kernels = _kernels_variable(environ)
    wanted_isa = environ.get("EDGELLM_ISA", "")
    if wanted_isa and wanted_isa not in KNOWN_ISAS:
        known = ", ".join(KNOWN_ISAS)
        raise UsageError(f"EDGELLM_ISA={wanted_isa} is not known", hint=f"use one of {known}")
    if kernels == "numpy":
        return None
    named = environ.get("EDGELLM_NATIVE_LIB", "")
    path = Path(named) if named else Path(__file__).parent / f"libedgellm_native{_SUFFIX}"
    try:
        library = NativeKernels(path)
    except NativeUnavailable as err:
        # A library somebody named, or said must be there, is never passed over in silence.
        if kernels == "native" or named:
            variable = "EDGELLM_NATIVE_LIB" if named else "EDGELLM_KERNELS"
            raise UsageError(
                f"{variable}={environ[variable]}: {err}",
                hint="reinstall edgellm with a C++ compiler at hand and EDGELLM_REQUIRE_NATIVE=1, "
                "or set EDGELLM_KERNELS=numpy",
            ) from err
        log.debug("no native kernels: %s", err)
        return None
    if not library.force_isa(wanted_isa):
        have = ", ".join(library.isas())
        raise UsageError(f"EDGELLM_ISA={wanted_isa} cannot run here", hint=f"use one of {have}")
    return library


def _kernels_variable(environ: Mapping[str, str]) -> str:
    kernels = environ.get("EDGELLM_KERNELS", "") or "auto"
    if kernels not in KNOWN_KERNELS:
        known = ", ".join(KNOWN_KERNELS)
        raise UsageError(f"EDGELLM_KERNELS={kernels} is not known", hint=f"use one of {known}")
    return kernels
