"""Seccomp: a filter in the kernel after which this process and all it starts can open no socket.

A classic BPF program, as seccomp(2) takes it. It answers EPERM to `socket` and `socketpair` (one end of
a pair of datagram sockets can be connected anew, to the system's log or bus), to `io_uring_setup` (which
can make sockets without these calls), to `pidfd_getfd`, `ptrace` and `process_vm_writev` (by which
another process of the same user can be made to lend or use one), and to every call in a numbering other
than the machine's own, where these have other numbers. What is open stays open: the pipes.

Sources: linux/seccomp.h, linux/filter.h, linux/audit.h, linux/prctl.h; the call numbers of
arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
import sys
from typing import Final

_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_SET_SECCOMP: Final = 22
_MODE_FILTER: Final = 2
_SET_MODE_FILTER, _ALL_THREADS = 1, 1  # of seccomp(2)
_SECCOMP_CALL: Final = {"x86_64": 317, "aarch64": 277}
_ALLOW: Final = 0x7FFF0000
_ERRNO: Final = 0x00050000 | errno.EPERM
_LOAD_WORD, _JUMP_EQUAL, _JUMP_NOT_LESS, _RETURN = 0x20, 0x15, 0x35, 0x06
_OFFSET_NR, _OFFSET_ARCH = 0, 4  # in struct seccomp_data
_X32_BIT: Final = 0x40000000
_IO_URING_SETUP, _PIDFD_GETFD = 425, 438  # the same everywhere
_MACHINES: Final = {
    # machine: (its numbering by linux/audit.h, denied calls)
    "x86_64": (0xC000003E, (41, 53, 101, 311, _IO_URING_SETUP, _PIDFD_GETFD)),
    "aarch64": (0xC00000B7, (198, 199, 117, 271, _IO_URING_SETUP, _PIDFD_GETFD)),
}
_PACKING: Final = struct.Struct("=HBBI")  # struct sock_filter: code, jump if true, if false, k


class _Program(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def deny_sockets() -> bool:
    """Install the filter for all threads and all that they will start.

    Returns:
        Whether it holds now; False on systems, machines and kernels without it.
    """
    program = socket_filter(platform.machine())
    if sys.platform != "linux" or program is None:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    code = _Program(len(program) // _PACKING.size, program)
    zero = ctypes.c_ulong(0)  # prctl is variadic: every argument is a whole word
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), zero, zero, zero):
        return False
    address = ctypes.c_ulong(ctypes.addressof(code))
    call = ctypes.c_long(_SECCOMP_CALL[platform.machine()])
    # Something that runs before this package, as a file of site's, may have started threads.
    if not libc.syscall(
        call, ctypes.c_ulong(_SET_MODE_FILTER), ctypes.c_ulong(_ALL_THREADS), address
    ):
        return True
    return not libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_MODE_FILTER), address, zero, zero)


def socket_filter(machine: str) -> bytes | None:
    """Return the BPF program for a machine, or None where its call numbers are not known here."""
    if machine not in _MACHINES:
        return None
    numbering, denied = _MACHINES[machine]
    n_checks = len(denied) + 1
    steps = [
        (_LOAD_WORD, 0, 0, _OFFSET_ARCH),
        (_JUMP_EQUAL, 0, n_checks + 2, numbering),  # another numbering: to the refusal
        (_LOAD_WORD, 0, 0, _OFFSET_NR),
        # x32 shares the numbering of x86-64 and sets a bit; nothing else is that large.
        (_JUMP_NOT_LESS, n_checks, 0, _X32_BIT),
    ]
    for n, call in enumerate(denied):
        steps.append((_JUMP_EQUAL, len(denied) - n, 0, call))
    steps += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ERRNO)]
    return b"".join(_PACKING.pack(*step) for step in steps)
