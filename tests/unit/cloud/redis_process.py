"""A real Redis server on a socket of its own, in memory only."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Server:
    process: subprocess.Popen[bytes]
    url: str

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Server]:
    """A server that is there when the block begins; it ends with the block, if not before."""
    socket = folder / "s"  # a socket's path has at most 107 bytes
    log = (folder / "log").open("wb")
    arguments = ["--port", "0", "--unixsocket", str(socket), "--save", "", "--appendonly", "no"]
    process = subprocess.Popen(
        ["redis-server", *arguments], stdout=log, stderr=subprocess.STDOUT, cwd=folder
    )
    try:
        wait_for(socket, process)
        yield Server(process, f"unix://{socket}")
    finally:
        process.kill()
        process.wait()
        log.close()


def wait_for(socket: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 20
    while not socket.exists():
        assert process.poll() is None, "redis-server ended at once"
        assert time.monotonic() < deadline, "redis-server does not listen"
        time.sleep(0.02)
