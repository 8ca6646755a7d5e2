"""The shared tier over frames: the worker, which opens no socket, asks; the program speaks to the place.

Whether anything may be exchanged is decided on the program's side, at each request.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

from edgellm.errors import FetchError
from edgellm.runtime.worker.frames import FrameError, encode_json, encode_raw
from edgellm.runtime.worker.messages import FIRST_TIER_TAG, TierAnswer, TierCall, to_wire
from edgellm.runtime.worker.threads import start_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from edgellm.runtime.worker.frames import Raw, Sender
    from edgellm.store.shared.remote import RemoteTier

WAIT_S: Final = 30.0
"""How long the worker waits for the program; the place itself has limits far below."""


class Gathering:
    """Bytes that come in raw frames under one tag, up to a length that was announced.

    Args:
        n_bytes: how many will come.
        cap_bytes: the most that may come.

    Raises:
        FrameError: more are announced than may come.
    """

    def __init__(self, n_bytes: int, cap_bytes: int) -> None:
        if not 0 <= n_bytes <= cap_bytes:
            raise FrameError(f"{n_bytes} raw bytes are announced, at most {cap_bytes} may come")
        self.content = bytearray()
        self._n_bytes = n_bytes

    @property
    def is_whole(self) -> bool:
        """Return whether all of it is there."""
        return len(self.content) == self._n_bytes

    def add(self, piece: bytes) -> None:
        """Take a piece.

        Raises:
            FrameError: it is more than was announced.
        """
        if len(self.content) + len(piece) > self._n_bytes:
            raise FrameError(f"more than the announced {self._n_bytes} raw bytes came")
        self.content += piece


class FramedTier:
    """A `RemoteTier` whose requests another process serves; used by any thread of the worker."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._lock = threading.Lock()
        self._next_tag = FIRST_TIER_TAG
        self._waiting: dict[int, tuple[Future[TierAnswer | bytes], int]] = {}
        self._gathering: dict[int, Gathering] = {}

    def size(self, name: str) -> int | None:
        """Return the length of a value in bytes, or None without one."""
        answer = self._ask("size", name)
        return answer.size if isinstance(answer, TierAnswer) else None

    def read(self, name: str, start: int, n_bytes: int) -> bytes:
        """Return a piece of a value; shorter where it ends."""
        answer = self._ask("read", name, start=start, n_bytes=n_bytes)
        return answer if isinstance(answer, bytes) else b""

    def write(self, name: str, pieces: Sequence[bytes | bytearray]) -> None:
        """Keep a value."""
        self._ask("write", name, pieces=pieces)

    def close(self) -> None:
        """Do nothing: the connection is the program's."""

    def _ask(
        self,
        op: str,
        name: str,
        *,
        start: int = 0,
        n_bytes: int = 0,
        pieces: Sequence[bytes | bytearray] = (),
    ) -> TierAnswer | bytes:
        future: Future[TierAnswer | bytes] = Future()
        with self._lock:
            tag, self._next_tag = self._next_tag, self._next_tag + 1
            self._waiting[tag] = (future, n_bytes)
        sent = n_bytes or sum(map(len, pieces))
        call = TierCall(tag, op, name, start, sent)  # type: ignore[arg-type]  # one of three words
        try:
            self._sender.send(to_wire(call))
            for piece in pieces:
                for frame in encode_raw(tag, piece):
                    self._sender.put(frame)
            return future.result(WAIT_S)
        except FutureTimeoutError as err:
            raise FetchError(f"the shared tier gave no answer in {WAIT_S:g} s") from err
        finally:
            with self._lock:
                self._waiting.pop(tag, None)
                self._gathering.pop(tag, None)

    def answered(self, answer: TierAnswer) -> None:
        """Take an answer that came; called by the thread that reads frames.

        Raises:
            FrameError: it announces more than was asked for.
        """
        with self._lock:
            future, cap_bytes = self._waiting.get(answer.tag, (None, 0))
        if future is None:  # it was waited for long enough
            return
        if answer.error is not None:
            future.set_exception(FetchError(answer.error))
        elif answer.n_bytes:
            self._gathering[answer.tag] = Gathering(answer.n_bytes, cap_bytes)
        else:
            future.set_result(answer)

    def came(self, raw: Raw) -> None:
        """Take raw bytes that came.

        Raises:
            FrameError: they are more than was announced.
        """
        with self._lock:
            gathering = self._gathering.get(raw.tag)
            future, _ = self._waiting.get(raw.tag, (None, 0))
        if gathering is None or future is None:
            return
        gathering.add(raw.content)
        if gathering.is_whole:
            future.set_result(bytes(gathering.content))


class TierServer:
    """Does with the place what a worker asks for, in a thread of its own: a place may be slow.

    Args:
        place: the shared tier; closed at the end.
        refusal: asked before each exchange: why it may not be, or "".
        max_bytes: the longest value.
        put: sends a frame to the worker.
    """

    def __init__(
        self,
        place: RemoteTier,
        *,
        refusal: Callable[[], str],
        max_bytes: int,
        put: Callable[[bytes], None],
    ) -> None:
        self._place = place
        self._refusal = refusal
        self._max_bytes = max_bytes
        self._put = put
        self._coming: dict[int, tuple[TierCall, Gathering]] = {}
        self._asked: SimpleQueue[tuple[TierCall, bytearray] | None] = SimpleQueue()
        start_thread(self._run, "edgellm-tier")

    def called(self, call: TierCall) -> None:
        """Take a request that came.

        Raises:
            FrameError: it is about more bytes than may be exchanged.
        """
        gathering = Gathering(call.n_bytes, self._max_bytes)
        if call.op == "write" and call.n_bytes:
            self._coming[call.tag] = (call, gathering)
        else:
            self._asked.put((call, gathering.content))

    def came(self, raw: Raw) -> None:
        """Take raw bytes that came.

        Raises:
            FrameError: nobody announced them.
        """
        call, gathering = self._coming.get(raw.tag, (None, None))
        if call is None or gathering is None:
            raise FrameError("raw bytes came that nobody announced")
        gathering.add(raw.content)
        if gathering.is_whole:
            del self._coming[raw.tag]
            self._asked.put((call, gathering.content))

    def close(self) -> None:
        """Stop serving, and give the connection back."""
        self._asked.put(None)

    def _run(self) -> None:
        while (asked := self._asked.get()) is not None:
            for frame in self._served(*asked):
                self._put(frame)
        self._place.close()

    def _served(self, call: TierCall, content: bytearray) -> list[bytes]:
        try:
            answer, piece = self._done(call, content)
        except FetchError as err:
            answer, piece = TierAnswer(call.tag, error=str(err)), b""
        return [encode_json(to_wire(answer)), *encode_raw(call.tag, piece)]

    def _done(self, call: TierCall, content: bytearray) -> tuple[TierAnswer, bytes]:
        if refused := self._refusal():
            raise FetchError(f"nothing may be exchanged: {refused}")
        if call.op == "size":
            return TierAnswer(call.tag, size=self._place.size(call.name)), b""
        if call.op == "write":
            self._place.write(call.name, [content])
            return TierAnswer(call.tag), b""
        piece = self._place.read(call.name, call.start, call.n_bytes)
        return TierAnswer(call.tag, n_bytes=len(piece)), piece
