"""What keeps a worker apart from the rest of the machine: done by itself, before it reads anything.

Each measure is tried and then looked at: `enforced` names only what holds in this process now.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Final

from edgellm.runtime.worker.seccomp import deny_sockets

NO_SOCKETS: Final = "no sockets"
NO_CORE_FILES: Final = "no core files"
NOT_TRACEABLE: Final = "not traceable"
ENDS_WITH_PARENT: Final = "ends with its parent"
KILLED_FIRST: Final = "killed first when memory ends"
NO_BACKTRACES: Final = "no backtraces"
MEASURES: Final = (
    *(NO_SOCKETS, NO_CORE_FILES, NOT_TRACEABLE, ENDS_WITH_PARENT, KILLED_FIRST, NO_BACKTRACES),
)
_PR_SET_PDEATHSIG, _PR_GET_PDEATHSIG = 1, 2
_PR_GET_DUMPABLE, _PR_SET_DUMPABLE = 3, 4
_OOM_SCORE: Final = Path("/proc/self/oom_score_adj")
_RAISED_SCORE: Final = 500
"""Above what desktops give their applications (200 and 300), so that the kernel takes the worker."""


def harden(parent: int) -> None:
    """Take the measures that this platform has.

    Args:
        parent: the process that started this one; if that has ended already, this one ends.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the program's to hear
    if sys.platform == "linux":
        _raise_oom_score()  # before the process is not dumpable: the file is root's after that
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        _prctl(_PR_SET_DUMPABLE, 0)
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if os.getppid() != parent:
            os._exit(1)
    deny_sockets()


def enforced() -> tuple[str, ...]:
    """Return which of `MEASURES` hold in this process, each found out and not remembered."""
    held = {
        NO_SOCKETS: not _can_open_socket(),
        NO_CORE_FILES: _core_limit() == 0,
        NO_BACKTRACES: bool(os.environ.get("GGML_NO_BACKTRACE")),
    }
    if sys.platform == "linux":
        held[NOT_TRACEABLE] = _prctl(_PR_GET_DUMPABLE, 0) == 0
        held[ENDS_WITH_PARENT] = _death_signal() == signal.SIGKILL
        held[KILLED_FIRST] = _oom_score() >= _RAISED_SCORE
    return tuple(name for name in MEASURES if held.get(name))


def _can_open_socket() -> bool:
    import socket

    for family in (socket.AF_INET, getattr(socket, "AF_UNIX", socket.AF_INET)):
        try:
            socket.socket(family).close()
        except PermissionError:
            continue
        except OSError:  # a system without this family: no proof that it is forbidden
            return True
        return True
    return False


def _core_limit() -> int:
    try:
        import resource
    except ImportError:  # Windows writes none of itself
        return 0
    return resource.getrlimit(resource.RLIMIT_CORE)[0]


def _oom_score() -> int:
    try:
        return int(_OOM_SCORE.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0


def _raise_oom_score() -> None:
    if _oom_score() < _RAISED_SCORE:
        try:
            _OOM_SCORE.write_text(str(_RAISED_SCORE), encoding="ascii")
        except OSError:
            return  # a sandbox without /proc; `enforced` will not name it


def _death_signal() -> int:
    import ctypes

    number = ctypes.c_int(0)
    _prctl(_PR_GET_PDEATHSIG, ctypes.addressof(number))
    return number.value


def _prctl(option: int, value: int) -> int:
    """Call prctl(2); -1 where it failed."""
    import ctypes

    zero = ctypes.c_ulong(0)
    return int(ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), zero, zero, zero))
