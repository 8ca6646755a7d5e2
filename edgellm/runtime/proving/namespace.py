"""A network of its own for this process and all it starts, as Linux gives it without root.

It has nothing but a loopback interface, to which all addresses there are lead. So whatever is sent, to
wherever it is sent, is counted by the kernel, and arrives nowhere.

Sources: unshare(2), netdevice(7), user_namespaces(7); linux/route.h, linux/ipv6_route.h for the routes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
import sys
from pathlib import Path
from typing import Final

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_SIOCADDRT, _SIOCGIFFLAGS, _SIOCSIFFLAGS, _SIOCGIFINDEX = 0x890B, 0x8913, 0x8914, 0x8933
_IFF_UP, _RTF_UP = 0x1, 0x1
_COUNTERS: Final = Path("/proc/net/dev")
_SENT_COLUMN: Final = 8  # behind the eight of what was received
# Addresses for documentation (RFC 5737, RFC 3849), with the port of name servers.
_PROBES: Final = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
_ROUTE4: Final = struct.Struct("@L16s16s16sHhLPhPLLH6x")  # struct rtentry
_ROUTE6: Final = struct.Struct("@16s16s16sIHHILII")  # struct in6_rtmsg
_INTERFACE: Final = struct.Struct("@16sh22x")  # struct ifreq with its flags
_INDEX: Final = struct.Struct("@16si20x")


def enter() -> str:
    """Leave the machine's network for one of this process's own. Only before there are threads.

    Returns:
        "" where it is done, else why it cannot be.
    """
    if sys.platform != "linux":
        return "network namespaces are Linux's"
    why = _unshare(_CLONE_NEWNET)
    if not why:
        return ""
    user, group = os.geteuid(), os.getegid()
    if _unshare(_CLONE_NEWUSER | _CLONE_NEWNET):
        return f"this system lets nobody make a network namespace here ({why})"
    try:
        Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="ascii")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="ascii")
    except OSError as err:
        return f"a user namespace was made, and its ids cannot be set: {err.strerror}"
    return ""


def _unshare(flags: int) -> str:
    libc = ctypes.CDLL(None, use_errno=True)
    return os.strerror(ctypes.get_errno()) if libc.unshare(flags) else ""


def open_loopback() -> bool:
    """Bring up the loopback interface of a new namespace, and lead all addresses to it.

    Returns:
        Whether what is sent to any address is counted from now on, for both internet families that
        this kernel has; False where the counter sees loopback alone, or nothing.
    """
    if sys.platform != "linux":
        return False
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        answer = fcntl.ioctl(control, _SIOCGIFFLAGS, _INTERFACE.pack(b"lo", 0))
        flags = _INTERFACE.unpack(answer)[1] | _IFF_UP
        fcntl.ioctl(control, _SIOCSIFFLAGS, _INTERFACE.pack(b"lo", flags))
        with contextlib.suppress(OSError):
            _route_all(control)
    return all(_is_counted(family, address) for family, address in _PROBES)


def _route_all(control: socket.socket) -> None:
    """Add a default route over the loopback interface, for IPv4 and, where there is one, for IPv6."""
    import fcntl

    nowhere = struct.pack("@H14x", socket.AF_INET)
    device = ctypes.create_string_buffer(b"lo")
    route = _ROUTE4.pack(
        *(0, nowhere, nowhere, nowhere, _RTF_UP, 0, 0, 0, 0, ctypes.addressof(device), 0, 0, 0)
    )
    fcntl.ioctl(control, _SIOCADDRT, route)
    index = _INDEX.unpack(fcntl.ioctl(control, _SIOCGIFINDEX, _INDEX.pack(b"lo", 0)))[1]
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as other:
        none = bytes(16)
        fcntl.ioctl(
            other, _SIOCADDRT, _ROUTE6.pack(none, none, none, 0, 0, 0, 1, 0, _RTF_UP, index)
        )


def _is_counted(family: int, address: str) -> bool:
    before = sent_bytes()
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.sendto(b"probe", (address, 53))
    except OSError:  # IPv6 that is turned off carries nothing out
        return family == socket.AF_INET6 and not Path("/proc/net/if_inet6").exists()
    return sent_bytes() > before


def sent_bytes() -> int:
    """Return what was sent over all interfaces of this process's network since it is there."""
    lines = _COUNTERS.read_text(encoding="ascii").splitlines()[2:]
    return sum(int(line.partition(":")[2].split()[_SENT_COLUMN]) for line in lines)
