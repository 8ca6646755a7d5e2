"""Faults on purpose, so that tests can see what becomes of an answer when its worker fails.

`EDGELLM_WORKER_FAULT` holds `PHASE[:N]:KIND[@FILE]`: before the N-th step (from 1) of a phase, `KIND`
happens. With `@FILE` it happens once: only the process that can make that file has the fault.

phases: `load`, `context`, `prefill` (steps are chunks), `decode` (tokens), `snapshot` (states that
are copied out or in)
kinds:  `abort` SIGABRT, `segv` SIGSEGV, `kill` SIGKILL, `oom` what a C++ library does when memory
ends, `memory` a `MemoryError`, `fatal` an `EngineFailed`, `exit` a silent end with code 0, `hang` never goes on and hears
nothing, `slow` half a second for each step from there, `garbage` bytes that are no frame, `half` half
a frame and the end
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, get_args

from edgellm.errors import EngineFailed, UsageError
from edgellm.routing import Phase

if TYPE_CHECKING:
    from collections.abc import Mapping

FAULT_VARIABLE: Final = "EDGELLM_WORKER_FAULT"
KINDS: Final = (
    *("abort", "segv", "kill", "oom", "memory", "fatal", "exit", "hang", "slow", "garbage", "half"),
)
_SLOW_S: Final = 0.5
# What libstdc++ prints when nobody catches the exception of a failed `new`.
_BAD_ALLOC: Final = (
    b"terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n"
)


@dataclass(slots=True)
class Fault:
    """One fault, and how many steps of its phase there were.

    Attributes:
        phase: in which it happens.
        at: before which step, from 1.
        kind: one of `KINDS`.
        once: a file that says that it has happened, or "".
        frames_fd: where frames go, for the kinds that damage them.
    """

    phase: str
    at: int
    kind: str
    once: str = ""
    frames_fd: int = -1
    n_steps: int = 0

    def step(self, phase: Phase) -> None:
        """Count a step, and fail if it is the one."""
        if phase != self.phase:
            return
        self.n_steps += 1
        if self.kind == "slow":
            time.sleep(_SLOW_S if self.n_steps >= self.at else 0)
        elif self.n_steps == self.at and self._is_mine():
            self._happen()

    def _is_mine(self) -> bool:
        if not self.once:
            return True
        with suppress(FileExistsError):
            os.close(os.open(self.once, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            return True
        return False

    def _happen(self) -> None:
        match self.kind:
            case "abort":
                os.abort()
            case "segv":
                signal.raise_signal(signal.SIGSEGV)
            case "kill":
                os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
            case "oom":
                os.write(2, _BAD_ALLOC)
                os.abort()
            case "memory" | "fatal":
                raise _raised(self.kind)
            case "exit":
                os._exit(0)
            case "hang":
                _hang()
            case "garbage":
                os.write(self.frames_fd, b"\xff" * 64)
                _hang()
            case "half":
                os.write(self.frames_fd, b"\x40\0\0\0\1{")
                os._exit(0)


def _raised(kind: str) -> MemoryError | EngineFailed:
    said = "a fault on purpose"
    return MemoryError(said) if kind == "memory" else EngineFailed(said)


def _hang() -> None:
    """Never come back, and take no order: what hears them needs the interpreter."""
    import ctypes

    ctypes.PyDLL(None).pause()  # a PyDLL keeps the interpreter's lock


def read_fault(environ: Mapping[str, str] = os.environ, *, frames_fd: int = -1) -> Fault | None:
    """Return the fault that the environment asks for, or None.

    Raises:
        UsageError: it is spelled wrong.
    """
    asked = environ.get(FAULT_VARIABLE)
    if not asked:
        return None
    what, _, once = asked.partition("@")
    phase, *numbers = what.split(":")
    kind = numbers.pop() if numbers else ""
    at = numbers[0] if numbers else "1"
    wrong = phase not in get_args(Phase) or kind not in KINDS or len(numbers) > 1
    if wrong or not (at.isascii() and at.isdigit()):
        raise UsageError(f"{FAULT_VARIABLE}={asked!r} is not PHASE[:N]:KIND[@FILE]")
    return Fault(phase, int(at), kind, once, frames_fd)
