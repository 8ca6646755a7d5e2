"""`edgellm` in processes of their own that begin behind the imports: a server that forks for each.

A start costs half a second, nearly all of it imports. What is told of here imports once, runs nothing
but `run --help`, and forks when it is asked to: each command still has its own memory, its own limit of it,
its own signals, streams, folder and environment, and ends as any process does. Not for tests of the
start itself, of variables that Python reads at its start, or of terminals and pipes.

The parent (the fixture `warm_start`) sends one JSON line with the three streams' descriptors; the
answers are a line with the process's number, and one with how it ended, as `subprocess` counts it.
"""

from __future__ import annotations

import array
import contextlib
import gc
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_MAX_LINE_BYTES = 1 << 20
_MODULES = (
    *("edgellm.cli.answer", "edgellm.cli.chat", "edgellm.cli.stats", "edgellm.prompt.template"),
    *("edgellm.engines.llamacpp", "edgellm.runtime.conversion", "edgellm.runtime.local"),
    *("edgellm.formats.gguf_check", "jinja2", "llama_cpp"),
)


class WarmStart:
    """A server, and a function to run one command in a process that it forks."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        self._server = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # who forks should be one thread
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        self._lines = self._socket.makefile("r", encoding="utf-8")

    def run(
        self,
        words: Sequence[object],
        *,
        cwd: str | Path,
        timeout: float,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        memory_bytes: int = resource.RLIM_INFINITY,
        umask: int = -1,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run `edgellm WORDS` to its end; past `timeout` seconds it is killed, and that raises."""
        request = {
            "words": [str(word) for word in words],
            "cwd": str(cwd),
            "env": dict(os.environ if env is None else env),
            "memory_bytes": memory_bytes,
            "umask": umask,
        }
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out:
            given.write(stdin)
            given.seek(0)
            with tempfile.TemporaryFile() as err:
                streams = array.array("i", [file.fileno() for file in (given, out, err)])
                line = json.dumps(request).encode() + b"\n"
                ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)]
                n_sent = self._socket.sendmsg([line], ancillary)
                self._socket.sendall(line[n_sent:])
                code = self._wait(words, timeout)
                for file in (out, err):
                    file.seek(0)
                return subprocess.CompletedProcess(list(words), code, out.read(), err.read())

    def _wait(self, words: Sequence[object], timeout: float) -> int:
        pid = int(self._lines.readline())
        is_late = False
        with contextlib.suppress(ProcessLookupError):  # it has ended, and was waited for
            ending = os.pidfd_open(pid)
            try:
                is_late = not select.select([ending], [], [], timeout)[0]
                if is_late:
                    os.kill(pid, signal.SIGKILL)
            finally:
                os.close(ending)
        code = int(self._lines.readline())
        if is_late:
            raise subprocess.TimeoutExpired(list(map(str, words)), timeout)
        return code

    def close(self) -> None:
        """End the server."""
        self._lines.close()
        self._socket.close()
        self._server.wait(60)


def _serve(connection: socket.socket) -> None:
    """Fork for every request, one after the other; only a child returns from here."""
    while True:
        line, descriptors, _, _ = socket.recv_fds(connection, _MAX_LINE_BYTES, 3)
        if not line:
            sys.exit()
        while not line.endswith(b"\n"):
            line += connection.recv(_MAX_LINE_BYTES)
        pid = os.fork()
        if not pid:
            connection.close()
            _become(json.loads(line), descriptors)
            return
        for descriptor in descriptors:
            os.close(descriptor)
        connection.sendall(f"{pid}\n".encode())
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        connection.sendall(f"{code}\n".encode())


def _become(request: dict[str, Any], descriptors: Sequence[int]) -> None:
    """Take over what `subprocess` would have given a new process."""
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = ["edgellm", *request["words"]]
    if request["umask"] >= 0:
        os.umask(request["umask"])
    limit = request["memory_bytes"]
    if limit != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


if __name__ == "__main__":
    import importlib

    from edgellm.cli.app import main

    for module in _MODULES:
        importlib.import_module(module)
    main(["run", "--help"])  # what the commands are made of is imported with the first of them
    sys.stdout.flush()
    gc.freeze()  # no child collects, and copies, what was made here
    _serve(socket.socket(fileno=int(sys.argv[1])))
    sys.exit(main())
