"""Exit codes in words: signals of POSIX, directly or through a shell, and NTSTATUS values of Windows. Pure."""

from __future__ import annotations

from typing import Final

SIGABRT: Final = 6
SIGKILL: Final = 9
SIGTERM: Final = 15
_SIGNAL_NAMES: Final = {
    4: "SIGILL",
    SIGABRT: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    SIGKILL: "SIGKILL",
    10: "SIGBUS",  # of macOS
    11: "SIGSEGV",
    SIGTERM: "SIGTERM",
}
# A shell, or a launcher, between a process and us gives 128 and the signal's number.
_SHELL_BASE: Final = 128
# NTSTATUS values that Windows gives as exit codes, ntstatus.h.
_NT_ERRORS: Final = range(0xC0000000, 0xD0000000)
_NT_MEMORY: Final = {0xC0000017: "STATUS_NO_MEMORY", 0xC000012D: "STATUS_COMMITMENT_LIMIT"}
_NT_NAMES: Final = {
    **_NT_MEMORY,
    0xC0000409: "STATUS_STACK_BUFFER_OVERRUN",  # fail-fast: what abort() ends with, for any reason
    0xC0000005: "STATUS_ACCESS_VIOLATION",
    0xC000001D: "STATUS_ILLEGAL_INSTRUCTION",
    0xC0000374: "STATUS_HEAP_CORRUPTION",
    0xC000013A: "STATUS_CONTROL_C_EXIT",
}


def signal_of(returncode: int | None) -> int | None:
    """Return the number of the signal that ended a process, None without one."""
    if returncode is None:
        return None
    if returncode < 0 and -returncode < _SHELL_BASE:
        return -returncode
    if returncode > _SHELL_BASE and returncode - _SHELL_BASE in _SIGNAL_NAMES:
        return returncode - _SHELL_BASE
    return None


def says_memory(returncode: int | None) -> bool:
    """Return whether an exit code by itself says that memory ran out."""
    return returncode is not None and _unsigned(returncode) in _NT_MEMORY


def described(returncode: int | None) -> str:
    """Say how a process ended.

    Args:
        returncode: as the system gave it, negative for a signal; None if it could not be asked.
    """
    if returncode is None:
        return "it ended, nobody knows how"
    number = signal_of(returncode)
    if number is not None:
        return f"signal {_SIGNAL_NAMES.get(number, str(number))}"
    code = _unsigned(returncode)
    if code not in _NT_ERRORS:
        return f"exit code {returncode}"
    return f"exit code 0x{code:08X} {_NT_NAMES.get(code, '')}".rstrip()


def _unsigned(returncode: int) -> int:
    return returncode & 0xFFFFFFFF
