"""The worker's side: open a model as it is told, then answer one call after the other.

The main thread works, another one reads orders, so that a cancel is heard while the engine computes.
When the orders end, so does the process: the program is gone.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

from edgellm.core import Done, Mode, Tier, Token, event_to_wire
from edgellm.engines.base import EngineSettings
from edgellm.errors import Cancelled, EdgeLLMError, EngineUnavailable
from edgellm.runtime.session import SessionOptions
from edgellm.runtime.worker import messages
from edgellm.runtime.worker.frames import Raw, TokenMade, encode_token, read_frame
from edgellm.runtime.worker.hardening import enforced
from edgellm.runtime.worker.messages import (
    Broke,
    Cancel,
    Close,
    Open,
    Opened,
    Raised,
    StepMade,
    Stream,
    TierAnswer,
    Warm,
    Warmed,
    to_wire,
)
from edgellm.runtime.worker.raising import error_to_wire
from edgellm.runtime.worker.tier import FramedTier

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import IO, Any

    from edgellm.runtime.local import LocalSession
    from edgellm.runtime.session import Step
    from edgellm.runtime.worker.frames import Sender
    from edgellm.runtime.worker.life import Life
    from edgellm.store.snapshots import SnapshotStore
    from edgellm.wire import Wire

BROKE_CODE: Final = 70
"""Exit code where this process could not go on, and said why in a last frame or on stderr."""
_GONE_CODE: Final = 1

Job = tuple[Stream, "Iterator[Step]"] | Warm | Close


class Worker:
    """Serves one program.

    Args:
        orders: where frames come from.
        sender: where they go.
        life: says what is being done.
    """

    def __init__(self, orders: IO[bytes], sender: Sender, life: Life) -> None:
        self._orders = orders
        self._sender = sender
        self._life = life
        self._tier = FramedTier(sender)
        self._session: LocalSession | None = None
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        self._newest_call = 0
        self._cancelled_call = 0
        self._clock_s: float | None = None

    def refuse(self, version: str) -> int:
        """Say that the program runs in another version of Python; return the exit code."""
        error = EngineUnavailable(
            f"the process for the model runs in Python {sys.version_info.major}."
            f"{sys.version_info.minor}, and the program in {version}",
            hint='open the model with isolation="none"',
        )
        self._send(Raised(0, error_to_wire(error)))
        return 0

    def run(self) -> int:
        """Serve until the program has had enough; return the exit code."""
        try:
            return self._served()
        except BrokenPipeError:  # nobody reads what is sent
            return _GONE_CODE
        except MemoryError as err:
            self._sender.send(to_wire(Broke(f"MemoryError: {err}" if str(err) else "MemoryError")))
            return BROKE_CODE

    def _served(self) -> int:
        order = self._next()
        if not isinstance(order, Open):
            return _GONE_CODE
        secrets = {raw.tag: raw.content for raw in self._raws(order.has_key + order.has_secret)}
        threading.Thread(target=self._hear, name="edgellm-orders", daemon=True).start()
        try:
            session = self._open(order, secrets)
        except EdgeLLMError as err:
            self._send(Raised(0, error_to_wire(err)))
            return 0
        self._session = session
        self._send(Opened(session.model, session.facts(), enforced()))
        while True:
            job = self._jobs.get()
            if isinstance(job, Close):
                session.close()
                return 0
            self._answer(session, job)

    def _open(self, order: Open, secrets: Mapping[int, bytes]) -> LocalSession:
        if order.folder:
            with suppress(OSError):
                os.chdir(order.folder)
        known = set(sys.path)
        sys.path.extend(folder for folder in order.sys_path if folder not in known)
        from time import perf_counter

        from edgellm.engines.llamacpp.library import tell_errors
        from edgellm.runtime.local import LocalSession
        from edgellm.runtime.worker.watched import WatchedEngine

        tell_errors(_to_stderr)
        started_s = perf_counter()
        options = _options(order)
        store = self._open_store(order, secrets)
        engine = WatchedEngine(Path(order.path), options.engine, self._life)
        session = LocalSession(engine, options, store=store, clock=self._clock)
        session.room.open()
        session.load_ms = (perf_counter() - started_s) * 1000
        return session

    def _open_store(self, order: Open, secrets: Mapping[int, bytes]) -> SnapshotStore | None:
        """Open the store as `runtime.storing` does, with what the program found out for it."""
        from edgellm.paths import snapshots_dir
        from edgellm.store.keys import StoreKey
        from edgellm.store.read_through import ReadThroughStore
        from edgellm.store.remote import Seals
        from edgellm.store.snapshots import SnapshotStore

        if Tier(order.snapshot) is Tier.OFF:
            return None
        root, cap_bytes = snapshots_dir(), order.snapshot_cap_bytes
        secret = secrets.get(messages.TAG_KEY)
        key = None if secret is None else StoreKey(secret)
        if order.share_max_bytes is None:
            return SnapshotStore(root, key=key, cap_bytes=cap_bytes)
        return ReadThroughStore(
            root,
            self._tier,
            Seals(secrets.get(messages.TAG_SECRET, b"")),
            refusal=lambda: order.refusal,
            max_bytes=order.share_max_bytes,
            writes_back=order.writes_back,
            key=key,
            cap_bytes=cap_bytes,
        )

    def _clock(self) -> datetime:
        """Return the time that templates see: the program's, for an answer that is gone on with."""
        now_s = self._clock_s
        return datetime.now() if now_s is None else datetime.fromtimestamp(now_s)  # noqa: DTZ005, DTZ006  # local, as written

    def _answer(self, session: LocalSession, job: tuple[Stream, Iterator[Step]] | Warm) -> None:
        """Work on a call, and let its error be its end."""
        call = job.call if isinstance(job, Warm) else job[0].call
        self._life.call = call
        try:
            if isinstance(job, Warm):
                if call == self._cancelled_call:
                    raise Cancelled("the warming was stopped")
                use = session.warm(job.messages, job.tools)
                self._life.phase = "snapshot"
                self._send(Warmed(call, use, session.facts()))
            else:
                self._clock_s = job[0].clock_s
                self._stream(session, *job)
        except EdgeLLMError as err:
            self._send(Raised(call, error_to_wire(err)))

    def _stream(self, session: LocalSession, order: Stream, steps: Iterator[Step]) -> None:
        """Send an answer step by step.

        Text that no token of the journal stands for goes with the end, in one frame: an answer that
        is gone on with would show it a second time.
        """
        held: list[dict[str, Any]] = []
        is_ending = False
        for step in steps:
            self._life.phase = step.phase
            frame = None if held or is_ending else _token_frame(order.call, step)
            if frame is not None:
                self._sender.put(frame)
                continue
            event = step.event
            if event is not None:
                held.append(event_to_wire(event))
            is_ending = is_ending or (isinstance(event, Token) and not step.ids)
            is_done = isinstance(event, Done)
            if is_ending and not is_done:
                continue
            facts = session.facts() if is_done else None
            self._send(StepMade(order.call, step.phase, tuple(held), step.ids, facts))
            held = []

    def _hear(self) -> None:
        """Read orders until they end, and end the process with them."""
        try:
            while (order := self._next()) is not None:
                self._take(order)
        finally:  # also where the program sent nonsense
            os._exit(_GONE_CODE)

    def _take(self, order: Wire | Raw | TokenMade) -> None:
        session = self._session
        if isinstance(order, Raw):
            self._tier.came(order)
        elif isinstance(order, TierAnswer):
            self._tier.answered(order)
        elif isinstance(order, Cancel):
            self._cancel(order.call)
        elif isinstance(order, Stream) and session is not None:
            self._newest_call = order.call
            # Made here, so that a cancel behind it counts.
            self._jobs.put((order, session.steps(order.request, order.journal)))
        elif isinstance(order, Warm):
            self._newest_call = order.call
            self._jobs.put(order)
        elif isinstance(order, Close):
            if session is not None:
                session.cancel()
            self._jobs.put(order)

    def _cancel(self, call: int) -> None:
        """End a call, which may not have come yet; not the one after it, where it came too late."""
        if call >= self._newest_call:
            self._cancelled_call = call
            if self._session is not None:
                self._session.cancel()

    def _next(self) -> Wire | Raw | TokenMade | None:
        frame = read_frame(self._orders)
        return messages.from_wire(frame) if isinstance(frame, dict) else frame

    def _raws(self, n: int) -> Iterator[Raw]:
        for _ in range(n):
            frame = read_frame(self._orders)
            if isinstance(frame, Raw):
                yield frame

    def _send(self, message: Wire) -> None:
        self._sender.send(to_wire(message))


def _token_frame(call: int, step: Step) -> bytes | None:
    """Return the short form of a step that is one token, as most are; None for others."""
    event = step.event
    if step.phase != "decode" or len(step.ids) != 1:
        return None
    if event is None:
        return encode_token(TokenMade(call, step.ids[0], None, ""))
    if not isinstance(event, Token) or event.route != "local":
        return None
    return encode_token(TokenMade(call, step.ids[0], event.seq, event.text))


def _options(order: Open) -> SessionOptions:
    engine = EngineSettings(
        n_batch=order.n_batch,
        n_threads=order.n_threads,
        n_gpu_layers=order.n_gpu_layers,
        kv_type=order.kv_type,
        flash_attention=order.flash_attention,
        repack=order.repack,
        adapters=tuple(zip(order.adapter_paths, order.adapter_scales, strict=True)),
    )
    return SessionOptions(
        engine=engine,
        n_ctx=order.n_ctx,
        snapshot=Tier(order.snapshot),
        snapshot_loss=order.snapshot_loss,
        snapshot_turns=order.snapshot_turns,
        snapshot_cap_bytes=order.snapshot_cap_bytes,
        chat_template=order.chat_template,
        mode=Mode(order.mode),
    )


def _to_stderr(line: str) -> None:
    """Write a line of the engine's: it is still there when this process is not."""
    with suppress(OSError):
        os.write(2, line.encode("utf-8", "replace") + b"\n")
