"""Channel: a worker's process as the program holds it, with the three threads at its pipes.

One thread writes orders, so that no caller waits for a full pipe and a signal handler may send; one
reads what comes; one keeps the end of stderr. When the process ends, the reader says how, once.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue
from subprocess import TimeoutExpired
from time import monotonic
from typing import TYPE_CHECKING, Final

from edgellm.errors import UsageError
from edgellm.runtime.worker import messages
from edgellm.runtime.worker.ending import Ending
from edgellm.runtime.worker.frames import FrameError, Raw, Sender, encode_json, read_frame
from edgellm.runtime.worker.messages import Broke, Opened, StepMade, TierCall, to_wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from edgellm.routing import Phase
    from edgellm.runtime.worker.ending import Asked
    from edgellm.runtime.worker.spawning import Process
    from edgellm.runtime.worker.tier import TierServer
    from edgellm.wire import Wire

TAIL_BYTES: Final = 8 << 10
_REAP_S: Final = 1.0
"""How long a process whose pipe ended may take to end itself."""
_DRAIN_S: Final = 0.2
"""How long its stderr is read on after its end: something it started may hold that open."""


class Channel:
    """What goes to a worker and comes from it.

    Args:
        process: with pipes at stdin, stdout and stderr.
        listener: called with each line of its stderr, in a thread.

    Attributes:
        pid: of the process.
        phase: what it does, as it last said.
        heard_s: when something came last, by `time.monotonic`.
        tier: serves what it asks of the shared tier, or None.
        ended: set when it has ended and `ending` says how.
    """

    def __init__(self, process: Process, listener: Callable[[str], None] | None = None) -> None:
        self._process = process
        self._listener = listener
        self._started_s = monotonic()
        self._outbox: SimpleQueue[bytes | None] = SimpleQueue()
        self._inbox: SimpleQueue[Wire | Ending] = SimpleQueue()
        self._tail: deque[bytes] = deque()
        self._asked: Asked = ""
        self._was_closed = False
        self._broke = ""
        self.pid = process.pid
        self.phase: Phase = "load"
        self.heard_s = self._started_s
        self.tier: TierServer | None = None
        self.ended = threading.Event()
        self.ending: Ending | None = None
        self._drainer = self._thread(self._drain, "edgellm-worker-stderr")
        self._thread(self._write, "edgellm-worker-orders")
        self._thread(self._read, "edgellm-worker-frames")

    @staticmethod
    def _thread(target: Callable[[], None], name: str) -> threading.Thread:
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
        return thread

    def send(self, message: Wire) -> None:
        """Send an order; never waits, and may be called from a signal handler.

        Raises:
            FrameError: it is too long.
        """
        self.put(encode_json(to_wire(message)))

    def put(self, frame: bytes) -> None:
        """Send a frame that was encoded."""
        self._outbox.put(frame)

    def next(self, timeout_s: float | None = None) -> Wire | Ending | None:
        """Return the next message, or the ending, again and again; None when the time is over."""
        if self.ending is not None and self._inbox.empty():
            return self.ending
        try:
            return self._inbox.get(timeout=timeout_s)
        except Empty:
            return None

    def expect_close(self) -> None:
        """Take the process's end from now on for what was asked."""
        self._was_closed = True

    def kill(self, asked: Asked) -> None:
        """End the process at once."""
        self._asked = self._asked or asked
        with suppress(OSError):  # it has ended
            self._process.kill()

    def _write(self) -> None:
        stdin = self._process.stdin
        if stdin is None:
            return
        sender = Sender(stdin.fileno())
        with suppress(OSError):  # it ended: the reader sees that, too
            while (frame := self._outbox.get()) is not None:
                sender.put(frame)
        with suppress(OSError):
            stdin.close()

    def _read(self) -> None:
        damage = ""
        stdout = self._process.stdout
        try:
            while stdout is not None and (frame := read_frame(stdout)) is not None:
                self._take(frame)
        except (FrameError, UsageError) as err:
            damage = str(err)
            self.kill("damage")
        self._end(damage)
        if stdout is not None:
            stdout.close()

    def _take(self, frame: dict[str, object] | Raw) -> None:
        self.heard_s = monotonic()
        if isinstance(frame, Raw):
            if self.tier is None:
                raise FrameError("raw bytes came that nobody announced")
            self.tier.came(frame)
            return
        message = messages.from_wire(frame)
        if isinstance(message, TierCall):
            if self.tier is None:
                raise FrameError("the worker asks for a shared tier that there is not")
            self.tier.called(message)
            return
        if isinstance(message, StepMade):
            self.phase = message.phase
        if isinstance(message, Opened):
            self.phase = "snapshot"  # the only thing that goes on between answers
        if isinstance(message, Broke):
            self._broke = message.exception
            return
        self._inbox.put(message)

    def _end(self, damage: str) -> None:
        """Find out how the process ended, and tell."""
        try:
            returncode = self._process.wait(_REAP_S)
        except TimeoutExpired:  # it closed its pipe and goes on
            damage = damage or "it closed its pipe and went on"
            self.kill("damage")
            returncode = self._process.wait()
        ran_s = monotonic() - self._started_s
        self._drainer.join(_DRAIN_S)
        self._outbox.put(None)
        if self.tier is not None:
            self.tier.close()
        self.ending = Ending(
            returncode=returncode,
            phase=self.phase,
            stderr_tail=b"".join(self._tail)[-TAIL_BYTES:].decode("utf-8", "replace"),
            exception=self._broke,
            ran_s=ran_s,
            asked=self._asked,
            damage=damage if self._asked in ("", "damage") else "",
            was_closed=self._was_closed and returncode == 0,
        )
        self._inbox.put(self.ending)
        self.ended.set()

    def _drain(self) -> None:
        stderr = self._process.stderr
        if stderr is None:
            return
        n_kept = 0
        with stderr:
            for line in iter(lambda: stderr.readline(TAIL_BYTES), b""):
                self._tail.append(line)
                n_kept += len(line)
                while n_kept - len(self._tail[0]) >= TAIL_BYTES:
                    n_kept -= len(self._tail.popleft())
                if self._listener is not None:
                    self._listener(line.decode("utf-8", "replace").rstrip())
