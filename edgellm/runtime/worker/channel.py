"""Channel: a worker's process as the program holds it, with the three threads at its pipes.

One thread writes orders, so that no caller waits for a full pipe and a signal handler may send; one
reads what comes; one keeps the end of stderr. However the process ends, and whatever goes wrong here,
the reader says so, once.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack, suppress
from queue import Empty, SimpleQueue
from subprocess import TimeoutExpired
from time import monotonic
from typing import TYPE_CHECKING, Final

from edgellm.errors import UsageError
from edgellm.runtime.worker import messages
from edgellm.runtime.worker.ending import Ending
from edgellm.runtime.worker.frames import (
    MAX_SAID_BYTES,
    FrameError,
    Raw,
    Sender,
    TokenMade,
    encode_json,
    read_frame,
)
from edgellm.runtime.worker.messages import Broke, Opened, StepMade, TierCall, to_wire
from edgellm.runtime.worker.tail import Tail
from edgellm.runtime.worker.threads import start_thread

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO, Any

    from edgellm.routing import Phase
    from edgellm.runtime.worker.ending import Asked
    from edgellm.runtime.worker.spawning import Process
    from edgellm.runtime.worker.tier import TierServer
    from edgellm.wire import Wire

_REAP_S: Final = 1.0
"""How long a process may take to end when its pipe has, and again when it was killed."""
_DRAIN_S: Final = 0.2
"""How long its stderr is read on after its end: something it started may hold that open."""
_MAX_LAST_WORDS: Final = 4096
_KILLED: Final = -9


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

    Raises:
        EngineUnavailable: no threads can be started; the process is ended.
    """

    def __init__(self, process: Process, listener: Callable[[str], None] | None = None) -> None:
        stdin, stdout, stderr = process.stdin, process.stdout, process.stderr
        if stdin is None or stdout is None or stderr is None:
            raise ValueError("the process has no pipes")
        self._process = process
        self._stdin, self._stdout = stdin, stdout
        self._started_s = monotonic()
        self._outbox: SimpleQueue[bytes | None] = SimpleQueue()
        self._inbox: SimpleQueue[Wire | TokenMade | Ending | None] = SimpleQueue()
        self._asked: Asked = ""
        self._was_closed = False
        self._broke = self._deaf = ""
        self.pid = process.pid
        self.phase: Phase = "load"
        self.heard_s = self._started_s
        self.tier: TierServer | None = None
        self.ended = threading.Event()
        self.ending: Ending | None = None
        with ExitStack() as failed:
            failed.callback(put_down, process)
            failed.callback(self._outbox.put, None)
            self._tail = Tail(stderr, listener)
            start_thread(self._write, "edgellm-worker-orders")
            start_thread(self._read, "edgellm-worker-frames")
            failed.pop_all()

    def send(self, message: Wire) -> None:
        """Send an order; never waits, and may be called from a signal handler.

        Raises:
            FrameError: it is too long.
        """
        self.put(encode_json(to_wire(message)))

    def put(self, frame: bytes) -> None:
        """Send a frame that was encoded."""
        self._outbox.put(frame)

    def next(self, timeout_s: float) -> Wire | TokenMade | Ending | None:
        """Return the next message, or the ending, again and again; None when the time is over.

        None comes early where `wake` was called.
        """
        if self.ending is not None and self._inbox.empty():
            return self.ending
        try:
            return self._inbox.get(timeout=timeout_s)
        except Empty:
            return None

    def wake(self) -> None:
        """Let who waits for the next message look around."""
        self._inbox.put(None)

    def expect_close(self) -> None:
        """Take the process's end from now on for what was asked."""
        self._was_closed = True

    def kill(self, asked: Asked) -> None:
        """End the process at once."""
        self._asked = self._asked or asked
        with suppress(OSError):  # it has ended
            self._process.kill()

    def _write(self) -> None:
        sender = Sender(self._stdin.fileno())
        try:
            while (frame := self._outbox.get()) is not None:
                sender.put(frame)
        except OSError:  # it ended, as the reader will find out, or hears no more
            if not self.ended.wait(2 * _REAP_S):
                self._deaf = "it closed its pipe for orders and went on"
                self.kill("damage")
        with suppress(OSError):
            self._stdin.close()

    def _read(self) -> None:
        damage = "its frames could not be read"
        try:
            damage = self._read_all(self._stdout)
        finally:
            if damage:
                self.kill("damage")
            self._end(damage)
            with suppress(OSError):
                self._stdout.close()

    def _read_all(self, stdout: IO[bytes]) -> str:
        """Take frames to their end; return what was wrong with the last one, or ""."""
        try:
            while (frame := read_frame(stdout, MAX_SAID_BYTES)) is not None:
                self._take(frame)
        except (FrameError, UsageError) as err:
            return str(err)
        except OSError as err:  # as where a program closes all descriptors that it does not know
            return f"its pipe could not be read: {err.strerror or err}"
        except MemoryError:
            return "the program had no memory to read what it sent"
        return ""

    def _take(self, frame: dict[str, Any] | Raw | TokenMade) -> None:
        self.heard_s = monotonic()
        if isinstance(frame, TokenMade):
            self.phase = "decode"
            self._inbox.put(frame)
        elif isinstance(frame, Raw):
            self._needed_tier().came(frame)
        else:
            self._take_message(messages.from_wire(frame))

    def _take_message(self, message: Wire) -> None:
        if isinstance(message, TierCall):
            self._needed_tier().called(message)
            return
        if isinstance(message, Broke):
            self._broke = message.exception[:_MAX_LAST_WORDS]
            return
        if isinstance(message, StepMade):
            self.phase = message.phase
        if isinstance(message, Opened):
            self.phase = "snapshot"  # the only thing that goes on between answers
        self._inbox.put(message)

    def _needed_tier(self) -> TierServer:
        if self.tier is None:
            raise FrameError("something came for a shared tier that there is not")
        return self.tier

    def _end(self, damage: str) -> None:
        """Find out how the process ended, and tell."""
        returncode, damage = self._reaped(damage or self._deaf)
        ran_s = monotonic() - self._started_s
        self._outbox.put(None)
        if self.tier is not None:
            self.tier.close()
        self.ending = Ending(
            returncode=returncode,
            phase=self.phase,
            stderr_tail=self._tail.text(_DRAIN_S),
            exception=self._broke,
            ran_s=ran_s,
            asked=self._asked,
            damage=damage if self._asked in ("", "damage") else "",
            was_closed=self._was_closed and returncode == 0,
        )
        self._inbox.put(self.ending)
        self.ended.set()

    def _reaped(self, damage: str) -> tuple[int, str]:
        """Wait for the process to end; return its exit code, and what was wrong with it."""
        try:
            return self._process.wait(_REAP_S), damage
        except TimeoutExpired:
            damage = damage or "it closed its pipe and went on"
            self.kill("damage")
        try:
            return self._process.wait(_REAP_S), damage
        except TimeoutExpired:  # it is inside the kernel, as at a dead disk: it ends when that does
            return _KILLED, damage


def put_down(process: Process) -> None:
    """End a process that nobody will hold, and close its pipes."""
    with suppress(OSError):
        process.kill()
    with suppress(TimeoutExpired):
        process.wait(_REAP_S)
    for pipe in (process.stdin, process.stdout, process.stderr):
        with suppress(OSError):
            if pipe is not None:
                pipe.close()
