"""Running the child processes of a proof, in an environment and folders that are not the user's.

Nothing of the user's is read or written: `EDGELLM_HOME`, the temporary folder and the key are made up, and
all else of the environment stays, since proxies and keys in it are part of what must change nothing.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from edgellm.errors import EngineFailed, UsageError
from edgellm.runtime.proving.orders import Report
from edgellm.runtime.proving.tracing import read_trace, strace_command
from edgellm.runtime.tether import tether
from edgellm.runtime.worker.interpreter import package_root, python

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from edgellm.runtime.proving.orders import Order
    from edgellm.runtime.proving.tracing import Traced

CHILD: Final = "edgellm.runtime.proving.child"
_KEPT: Final = ("EDGELLM_KERNELS", "EDGELLM_ISA", "EDGELLM_NATIVE_LIB")
_MADE_UP_KEY: Final = "edgellm-prove"
_LAST_WORDS: Final = 400


@dataclass(frozen=True, slots=True)
class Ran:
    """What a child did.

    Attributes:
        report: what it says.
        printed: all that it and its workers printed, but for the report.
        traced: what strace saw, None where it was not asked to look.
    """

    report: Report
    printed: bytes
    traced: Traced | None = None


class Children:
    """Children of one proof; those that still run when it is left are ended."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._is_over = False

    def run(
        self, order: Order, *, environ: Mapping[str, str] = os.environ, with_strace: bool = False
    ) -> Ran:
        """Run a child to its end.

        Args:
            order: what it does; its folder is made.
            environ: what it gets, but for what is edgellm's own.
            with_strace: whether strace looks at it, which must be installed.

        Raises:
            EngineFailed: it ended without a report.
            EngineUnavailable: there is no interpreter.
        """
        folder = Path(order.folder)
        log = folder.with_name(f"{folder.name}.strace")
        (folder / "tmp").mkdir(parents=True, exist_ok=True)
        tracer = (strace_command(log) or []) if with_strace else []
        command = [*tracer, python(), "-m", CHILD, json.dumps(order.to_wire())]
        code, out, err = self._finished(command, child_environment(order, environ))
        *before, last = out.rstrip(b"\n").split(b"\n")
        try:
            report = Report.from_wire(json.loads(last))
        except (ValueError, UsageError) as error:
            words = err.decode("utf-8", "replace").strip()[-_LAST_WORDS:]
            raise EngineFailed(f"a proof's process ended with code {code}: {words}") from error
        traced = None
        if with_strace:
            traced = read_trace(log.read_text("utf-8", "replace").splitlines())
        return Ran(report, b"\n".join([*before, err]), traced)

    def _finished(self, command: Sequence[str], env: Mapping[str, str]) -> tuple[int, bytes, bytes]:
        with tether() as watched:
            with self._lock:
                if self._is_over:
                    raise EngineFailed("the proof was given up")
                process = subprocess.Popen(
                    command,
                    stdin=watched,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    cwd=package_root(),
                    env=env,
                    start_new_session=True,  # an interrupt is for the command to hear
                )
                self._running.add(process)
            try:
                out, err = process.communicate()
            finally:
                with self._lock:
                    self._running.discard(process)
        return process.returncode, out, err

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._is_over = True
            for process in self._running:
                with suppress(OSError):
                    if hasattr(os, "killpg"):
                        os.killpg(process.pid, signal.SIGKILL)
                    else:
                        process.kill()


def child_environment(order: Order, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a child: the user's without what is edgellm's own, but for engines."""
    ours = {
        name: value
        for name, value in environ.items()
        if not name.upper().startswith("EDGELLM_") or name in _KEPT
    }
    folder = Path(order.folder)
    temporary = dict.fromkeys(("TMPDIR", "TMP", "TEMP"), str(folder / "tmp"))
    return ours | temporary | {"EDGELLM_HOME": str(folder), "EDGELLM_API_KEY": _MADE_UP_KEY}
