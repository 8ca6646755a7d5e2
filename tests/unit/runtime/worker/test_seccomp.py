"""The kernel's filter, run here by hand for machines that this one is not, and by this kernel."""

from __future__ import annotations

import errno
import json
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from edgellm.runtime.worker.hardening import MEASURES, NO_SOCKETS
from edgellm.runtime.worker.seccomp import socket_filter

ALLOW, DENY = 0x7FFF0000, 0x00050000 | errno.EPERM
X86, ARM, I386 = 0xC000003E, 0xC00000B7, 0x40000003


def _run(program: bytes, numbering: int, call: int) -> int:
    """Do what the kernel does with a program of these few instructions."""
    steps = [struct.unpack_from("=HBBI", program, at) for at in range(0, len(program), 8)]
    loaded = at = 0
    while True:
        code, if_true, if_false, k = steps[at]
        at += 1
        if code == 0x20:
            loaded = {0: call, 4: numbering}[k]
        elif code == 0x15:
            at += if_true if loaded == k else if_false
        elif code == 0x35:
            at += if_true if loaded >= k else if_false
        else:
            assert code == 0x06
            return k


@pytest.mark.parametrize(
    ("machine", "numbering", "denied"),
    [
        ("x86_64", X86, {41, 53, 101, 311, 425, 438}),
        ("aarch64", ARM, {198, 199, 117, 271, 425, 438}),
    ],
)
def test_the_program_denies_what_it_should_and_nothing_else(machine, numbering, denied):
    """Of all calls of a machine only those that make or take sockets are answered with EPERM."""
    program = socket_filter(machine)
    assert denied == {call for call in range(600) if _run(program, numbering, call) == DENY}
    assert all(_run(program, numbering, call) in {ALLOW, DENY} for call in range(600))


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("numbering", [I386, 0, 0xFFFFFFFF])
def test_another_numbering_is_denied_whole(machine, numbering):
    """A 32-bit call, where `socket` has another number, gets nowhere."""
    program = socket_filter(machine)
    assert {DENY} == {_run(program, numbering, call) for call in (0, 1, 41, 102, 198, 359)}


def test_x32_calls_are_denied():
    """The bit that makes an x32 call of an x86-64 one does not lead around the filter."""
    program = socket_filter("x86_64")
    assert {DENY} == {_run(program, X86, 0x40000000 + call) for call in (0, 41, 59)}


def test_an_unknown_machine_has_no_filter():
    """Where the numbers of calls are not known there is none, instead of a wrong one."""
    assert socket_filter("riscv64") is None


PROGRAM = """
import ctypes, errno, json, os, socket, sys, threading
from edgellm.runtime.worker.hardening import harden, enforced
before = enforced()
hardened, told = threading.Event(), []
def late():
    hardened.wait()
    told.append(attempt(socket.socket))
thread = threading.Thread(target=late)
thread.start()
harden(os.getppid())
os.environ["GGML_NO_BACKTRACE"] = "1"
def attempt(function):
    try:
        function()
    except OSError as err:
        return errno.errorcode[err.errno]
    return "open"
def datagram():
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    ends[0].connect(sys.argv[1])  # as to the system's log
    ends[0].send(b"out")
hardened.set()
thread.join()
libc = ctypes.CDLL(None, use_errno=True)
ring = libc.syscall(425, 8, ctypes.create_string_buffer(120))
print(json.dumps({
    "before": before, "after": enforced(),
    "families": {n: attempt(lambda: socket.socket(n)) for n in range(1, 46)},
    "ring": errno.errorcode[ctypes.get_errno()] if ring < 0 else "open",
    "pair": attempt(datagram), "thread": told,
    "calls": [libc.syscall(n, 2, 1, 0, 0) for n in (0x40000000 + 41, 0x40000000 + 53)],
    "started": os.system(sys.executable + " -c 'import socket; socket.socket()' 2>/dev/null"),
}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="seccomp is Linux's")
def test_g3_the_worker_cannot_open_a_socket_in_any_mode(tmp_path):
    """The worker cannot open a socket in any mode, in no thread, and cannot turn a pair into one."""
    root, place = Path(__file__).parents[4], str(tmp_path / "log")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.bind(place)
        command = [sys.executable, "-c", PROGRAM, place]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root)
    said = json.loads(done.stdout)
    assert NO_SOCKETS not in said["before"]
    assert list(MEASURES) == said["after"]
    assert {"EPERM"} == set(said["families"].values())
    assert said["ring"] == "EPERM"
    assert (said["pair"], said["thread"], said["calls"]) == ("EPERM", ["EPERM"], [-1, -1])
    assert said["started"] != 0, "nor can what the worker starts"
