"""The last of what a worker and its libraries write to stderr, which is where an engine says why."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Final

from edgellm.runtime.worker.threads import start_thread

if TYPE_CHECKING:
    from collections.abc import Callable

TAIL_BYTES: Final = 8 << 10


class Tail:
    """Reads a pipe to its end, so that it never fills up, and keeps the last 8 KiB.

    Args:
        file: closed at its end.
        listener: called with each line, in a thread; it is called no more when it has raised.
    """

    def __init__(self, file: IO[bytes], listener: Callable[[str], None] | None = None) -> None:
        self._file = file
        self._listener = listener
        self._kept = b""  # replaced, never changed: another thread reads it
        self._thread = start_thread(self._drain, "edgellm-worker-stderr")

    def text(self, wait_s: float) -> str:
        """Return what is kept, after the end of the pipe or the wait."""
        self._thread.join(wait_s)
        return self._kept.decode("utf-8", "replace")

    def _drain(self) -> None:
        with self._file as file:
            lines = iter(lambda: file.readline(TAIL_BYTES), b"")
            try:
                for line in lines:
                    self._keep(line)
                    if self._listener is not None:
                        self._listener(line.decode("utf-8", "replace").rstrip())
            finally:  # whatever a listener raises: a worker would wait for ever at a full pipe
                for line in lines:
                    self._keep(line)

    def _keep(self, line: bytes) -> None:
        self._kept = (self._kept + line)[-TAIL_BYTES:]
