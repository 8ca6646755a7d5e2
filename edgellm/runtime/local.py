"""LocalSession: the engine in this process (`isolation="none"`), one request at a time."""

from __future__ import annotations

import threading
from contextlib import closing, contextmanager
from datetime import datetime
from time import perf_counter
from typing import TYPE_CHECKING

from edgellm.closing import Closing
from edgellm.core import Done, Failure, Tier
from edgellm.errors import EdgeLLMError, EngineFailed, UsageError
from edgellm.runtime.answering import Answering
from edgellm.runtime.notices import opening_warnings
from edgellm.runtime.prefill import MIN_SNAPSHOT_TOKENS, Prefiller
from edgellm.runtime.prompting import Prompting
from edgellm.runtime.room import Room
from edgellm.runtime.session import SessionFacts, SessionOptions, Step
from edgellm.runtime.storing import make_storing, open_store
from edgellm.runtime.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from pathlib import Path

    from edgellm.core import Event, Message, Request, SnapshotUse, Tools
    from edgellm.engines.base import Engine
    from edgellm.runtime.live import Live
    from edgellm.runtime.storing import Storing
    from edgellm.store.snapshots import SnapshotStore


def open_session(path: Path, options: SessionOptions) -> LocalSession:
    """Load a model with the engine that its file asks for.

    Raises:
        ModelNotFound, ModelCorrupt, ModelUnsupported: the file is refused.
        EngineUnavailable: no engine is installed.
        DoesNotFit, EngineFailed: the engine cannot load it.
        UsageError, TemplateError: an option or `EDGELLM_HOME` is wrong.
        KeyUnavailable, MissingExtra: snapshots are to be encrypted, and cannot be.
    """
    from edgellm.engines.llamacpp import LlamaCppEngine

    started = perf_counter()
    store = open_store(options)
    engine = LlamaCppEngine(path, options.engine)
    try:
        session = LocalSession(engine, options, store=store)
        session.room.open()
    except EdgeLLMError:
        engine.close()
        raise
    session.load_ms = (perf_counter() - started) * 1000
    return session


class LocalSession(Closing):
    """A `Session` over an engine in this process.

    Args:
        engine: loaded; the session closes it.
        options: how to answer.
        store: where snapshots lie; None turns them off.
        clock: the time that templates see.
        min_snapshot_tokens: the shortest prefix that is kept.
    """

    def __init__(
        self,
        engine: Engine,
        options: SessionOptions | None = None,
        *,
        store: SnapshotStore | None = None,
        clock: Callable[[], datetime] = datetime.now,
        min_snapshot_tokens: int = MIN_SNAPSHOT_TOKENS,
    ) -> None:
        self.engine = engine
        self.model = engine.model
        self.options = options or SessionOptions()
        self.room = Room(engine, self.options.n_ctx)
        block = engine.snapshot_block() or ("" if store is None else store.off)
        kept = None if block or self.options.snapshot is Tier.OFF else store
        self._store = kept
        self._prompting = Prompting(
            engine,
            self.options.chat_template,
            clock=clock,
            keeps_prefixes=kept is not None,
            keeps_turns=self.options.snapshot_turns,
        )
        storing = None if kept is None else make_storing(kept, self.options)
        self._writer = None if storing is None else storing.writer
        self._answers = self._open_answers(storing, block, min_snapshot_tokens)
        self._n_cancels = 0
        self._answering = False
        self._closed = False
        # Held while the engine works, not while an answer waits for its reader. Reentrant: garbage
        # collection may close an answer that was given up, anywhere.
        self._working = threading.RLock()

    def _open_answers(self, storing: Storing | None, block: str, min_tokens: int) -> Answering:
        """Put together what makes the answers; `block` says why nothing is kept, or ""."""
        keeps_turns = self.options.snapshot_turns
        prefiller = Prefiller(
            self.engine,
            storing,
            off_reason=block or "asked",
            min_tokens=min_tokens,
            keeps_turns=keeps_turns,
        )
        turns = Turns(self.engine, storing.store) if keeps_turns and storing is not None else None
        return Answering(
            self.engine,
            self._prompting,
            prefiller,
            self.room,
            storing=storing,
            turns=turns,
            warnings=opening_warnings(
                self.model, self.options, block, "" if storing is None else storing.store.trouble
            ),
        )

    @property
    def live(self) -> Live | None:
        """Return what the engine's memory holds, or None when that is not known."""
        return self._answers.live

    @property
    def load_ms(self) -> float:
        """Return the time to open the model, for the figures of each answer."""
        return self._answers.load_ms

    @load_ms.setter
    def load_ms(self, value: float) -> None:
        self._answers.load_ms = value

    def facts(self) -> SessionFacts:
        """Return the resolved settings."""
        from edgellm.kernels import isa

        facts = self.engine.facts()
        return SessionFacts(
            engine=facts.name,
            n_ctx=self.engine.n_ctx,
            n_batch=facts.n_batch,
            n_threads=facts.n_threads,
            n_gpu_layers=facts.n_gpu_layers,
            kv_type=facts.kv_type,
            flash_attention=facts.flash_attention,
            kernels=isa(),
            load_ms=self.load_ms,
            shared="" if self._store is None else self._store.exchanged,
        )

    def stream(self, request: Request) -> Iterator[Event]:
        """Answer a request piece by piece; `cancel` counts from this call on."""
        return _with_failure(self.steps(request))

    def steps(self, request: Request, journal: Sequence[int] = ()) -> Generator[Step, None, None]:
        """Answer step by step; errors are raised, and `cancel` counts from this call on.

        Args:
            request: with a seed, where the steps are to be taken again.
            journal: tokens chosen before, in another process: the answer goes on behind them.
        """
        return self._steps(self._answer(request, self._n_cancels, journal))

    def generate(self, request: Request) -> Done:
        """Answer a request whole."""
        for step in self.steps(request):
            if isinstance(step.event, Done):
                return step.event
        raise EngineFailed("the answer ended without a result")

    def warm(self, messages: Sequence[Message], tools: Tools = ()) -> SnapshotUse:
        """Read the prefix of a conversation and wait until the disk has it; see `Session.warm`."""
        n_cancels = self._n_cancels
        with self._working:
            if self._closed:
                raise EngineFailed("the session is closed")
            with self._one_at_a_time(n_cancels):
                return self._answers.warm(messages, tools, lambda: self._n_cancels != n_cancels)

    def _steps(self, answer: Generator[Step, None, None]) -> Generator[Step, None, None]:
        """Make an answer step by step, so that `close` in another thread finds the engine idle."""
        step = Step(None)
        try:
            while not isinstance(step.event, Done):
                with self._working:
                    if self._closed:
                        raise EngineFailed("the session is closed")
                    step = next(answer)
                yield step
        finally:
            with self._working:
                answer.close()

    def _answer(
        self, request: Request, n_cancels: int, journal: Sequence[int]
    ) -> Generator[Step, None, None]:
        with self._one_at_a_time(n_cancels):
            yield from self._answers.steps(request, lambda: self._n_cancels != n_cancels, journal)

    @contextmanager
    def _one_at_a_time(self, n_cancels: int) -> Iterator[None]:
        """Let one answer be made, unless it was cancelled before it began."""
        if self._answering:
            raise UsageError(
                "this session is making another answer",
                hint="read that one to its end or close its iterator first",
            )
        self._answering = True
        try:
            self.engine.resume()
            if self._n_cancels != n_cancels:
                self.engine.cancel()  # it came before the first event was asked for
            yield
        finally:
            self._answering = False

    def cancel(self) -> None:
        """End the answer asked for last; callable from any thread and from a signal handler."""
        self._n_cancels += 1
        self.engine.cancel()

    def close(self) -> None:
        """Cancel what is running, wait for snapshots at most two seconds, then free the model."""
        self.cancel()
        with self._working:
            if self._closed:
                return
            self._closed = True
            if self._writer is not None:
                self._writer.close()
            if self._store is not None:
                self._store.close()
            self.engine.close()


def _with_failure(steps: Generator[Step, None, None]) -> Iterator[Event]:
    """Give the events among some steps, and let an error be the last one."""
    try:
        with closing(steps):
            for step in steps:
                if step.event is not None:
                    yield step.event
    except EdgeLLMError as err:
        yield Failure(err.code, str(err), err.exit_code)
