"""The llama.cpp library itself: found, initialised once, its log kept in a ring, its structs checked.

The log callback is a property of the whole process in llama.cpp, hence the one module-level ring.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgellm.engines.llamacpp.built_for import refuse_other_cpu
from edgellm.engines.llamacpp.compute import Compute
from edgellm.errors import EngineUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

INSTALL_COMMAND = "pip install 'llama-cpp-python>=0.3.36,<0.4'"
_WARN_LEVEL, _ERROR_LEVEL, _CONT_LEVEL = 3, 4, 5  # ggml_log_level in ggml.h
_RING_LINES = 400

# llama_context_default_params() and llama_model_default_params() of llama.cpp 0c1e570. A field
# that reads differently means the struct's layout is not what the binding thinks it is.
_CONTEXT_DEFAULTS = {
    "n_ctx": 512,
    "n_batch": 2048,
    "n_ubatch": 512,
    "n_seq_max": 1,
    "n_rs_seq": 0,
    "rope_scaling_type": -1,
    "flash_attn_type": -1,
    "rope_freq_base": 0.0,
    "rope_freq_scale": 0.0,
    "yarn_orig_ctx": 0,
    "type_k": 1,
    "type_v": 1,
    "embeddings": False,
    "offload_kqv": True,
    "op_offload": True,
    "kv_unified": False,
}
_MODEL_DEFAULTS = {"n_gpu_layers": -1, "vocab_only": False, "check_tensors": False}


class LogRing:
    """The last lines llama.cpp logged, from all threads.

    Args:
        told: called with each error line as it comes, by whichever thread met the error.
    """

    def __init__(self, told: Callable[[str], None] | None = None) -> None:
        self._told = told
        self._lines: deque[tuple[int, str]] = deque(maxlen=_RING_LINES)
        self._partial = ""
        self._level = 0
        self._lock = threading.Lock()

    def feed(self, level: int, text: str) -> None:
        """Take a piece of log text; a piece without a newline is continued by the next one."""
        with self._lock:
            if level != _CONT_LEVEL:
                self._level = level
            *whole, self._partial = (self._partial + text).split("\n")
            new = [(self._level, line) for line in whole if line.strip()]
            self._lines.extend(new)
        for one, line in new:
            if one == _ERROR_LEVEL and self._told is not None:
                self._told(line)

    def mark(self) -> None:
        """Forget what was said: what follows belongs to the next call."""
        with self._lock:
            self._lines.clear()
            self._partial = ""

    def errors(self, n: int = 3) -> str:
        """Return the last `n` error lines (or warnings, if there are none) as one line."""
        with self._lock:
            lines = list(self._lines)
        bad = [text for level, text in lines if level == _ERROR_LEVEL]
        bad = bad or [text for level, text in lines if level == _WARN_LEVEL]
        return " | ".join(bad[-n:]) or "the library gave no reason"

    def contains(self, text: str) -> bool:
        """Return whether any line since the last `mark` holds `text`."""
        return self.search(re.compile(re.escape(text))) is not None

    def search(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Return the first match in the lines since the last `mark`."""
        with self._lock:
            matches = (pattern.search(line) for _, line in self._lines)
            return next((match for match in matches if match), None)


@dataclass(frozen=True)
class Library:
    """The loaded library.

    Attributes:
        lib: the binding's module of C functions.
        log: what the library says.
        version: of the Python package.
        commit: of ggml, or "unknown".
        mismatch: which struct default reads wrongly, or "".
        compute: the one thread of this process that decodes. OpenMP keeps a team of workers for
            each thread that ever computed; two teams on the same cores make every barrier sleep,
            which made a token four times slower.
        pid: of the process that loaded it; a forked child has none of its threads.
    """

    lib: Any
    log: LogRing
    version: str
    commit: str
    mismatch: str
    callback: Any  # kept alive: the library holds a pointer to it
    compute: Compute
    pid: int


def tell_errors(to: Callable[[str], None]) -> None:
    """Hand the library's error lines on as they come; called before `load`.

    A process that may be killed says what went wrong while it still can.
    """
    global _errors_to  # noqa: PLW0603  # the log is the process's, see above
    _errors_to = to


def _nobody(line: str) -> None:
    """Tell nobody."""


_errors_to: Callable[[str], None] = _nobody


@functools.cache
def load() -> Library:
    """Load and initialise llama.cpp, once per process.

    Raises:
        EngineUnavailable: it is not installed, cannot be loaded, or was built for another CPU.
    """
    refuse_other_cpu()
    try:
        import llama_cpp
        from llama_cpp import llama_cpp as lib
    except ModuleNotFoundError as err:
        raise EngineUnavailable(
            "the llama.cpp engine is not installed", hint=f"run: {INSTALL_COMMAND}"
        ) from err
    except (OSError, RuntimeError, AttributeError, ImportError) as err:
        raise EngineUnavailable(
            f"the llama.cpp engine cannot be loaded: {err}",
            hint=f"install it again: {INSTALL_COMMAND} --force-reinstall --no-cache-dir",
        ) from err
    ring = LogRing(_errors_to)

    def hear(level: int, text: bytes, _: object) -> None:
        ring.feed(level, text.decode("utf-8", "replace"))

    callback = lib.llama_log_callback(hear)
    lib.llama_log_set(callback, ctypes.c_void_p(0))
    lib.llama_backend_init()
    return Library(
        lib=lib,
        log=ring,
        version=llama_cpp.__version__,
        commit=_commit(llama_cpp),
        mismatch=mismatch(lib),
        callback=callback,
        compute=Compute(),
        pid=os.getpid(),
    )


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=load.cache_clear)


def mismatch(lib: ModuleType | Any) -> str:
    """Return the first struct default that is not the known one as text, or ""."""
    found = (
        ("context", lib.llama_context_default_params(), _CONTEXT_DEFAULTS),
        ("model", lib.llama_model_default_params(), _MODEL_DEFAULTS),
    )
    for what, params, known in found:
        for name, value in known.items():
            actual = getattr(params, name, None)
            if actual != value:
                return f"{what} parameter {name} defaults to {actual}, not {value}"
    return ""


def _commit(package: ModuleType) -> str:
    """Return ggml's commit as the library was built, so that a snapshot knows its kernels."""
    from pathlib import Path

    folder = Path(str(package.__file__)).parent / "lib"
    for name in ("libggml-base.so", "libggml-base.dylib", "ggml-base.dll"):
        if (folder / name).exists():
            base = ctypes.CDLL(str(folder / name))
            base.ggml_commit.restype = ctypes.c_char_p
            return str(base.ggml_commit().decode("ascii", "replace"))
    return "unknown"
