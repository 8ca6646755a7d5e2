"""Seccomp: a filter in the kernel after which this process and all it starts can open no socket.

A classic BPF program, as seccomp(2) takes it. It answers EPERM to `socket`, to `io_uring_setup`
(which can make sockets without that call), to `pidfd_getfd` and `ptrace` (which could take one from
another process of the same user), and to every call in a numbering other than the machine's own, where
these have other numbers. What is open stays open: the pipes.

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
_ALLOW: Final = 0x7FFF0000
_ERRNO: Final = 0x00050000 | errno.EPERM
_LOAD_WORD, _JUMP_EQUAL, _JUMP_NOT_LESS, _RETURN = 0x20, 0x15, 0x35, 0x06
_OFFSET_NR, _OFFSET_ARCH = 0, 4  # in struct seccomp_data
_X32_BIT: Final = 0x40000000
_IO_URING_SETUP, _PIDFD_GETFD = 425, 438  # the same everywhere
_MACHINES: Final = {
    # machine: (its numbering by linux/audit.h, denied calls)
    "x86_64": (0xC000003E, (41, 101, _IO_URING_SETUP, _PIDFD_GETFD)),
    "aarch64": (0xC00000B7, (198, 117, _IO_URING_SETUP, _PIDFD_GETFD)),
}
_PACKING: Final = struct.Struct("=HBBI")  # struct sock_filter: code, jump if true, if false, k


class _Program(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def deny_sockets() -> bool:
    """Install the filter for this thread and all that it will start; call it before there are others.

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
