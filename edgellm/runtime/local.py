"""LocalSession: the engine in this process (`isolation="none"`), one request at a time."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import datetime
from time import perf_counter
from typing import TYPE_CHECKING, Final

from edgellm.core import Done, Failure, Mode, Tier, Timings, Token, Usage, Warn
from edgellm.errors import Cancelled, EdgeLLMError, EngineFailed, UsageError
from edgellm.runtime.generate import Decoding
from edgellm.runtime.live import live_after
from edgellm.runtime.prefill import BEING_STORED, MIN_SNAPSHOT_TOKENS, Prefiller
from edgellm.runtime.prompting import Prompting
from edgellm.runtime.room import Room
from edgellm.runtime.sampling import Sampler
from edgellm.runtime.session import SessionFacts, SessionOptions
from edgellm.runtime.text import TextJoiner
from edgellm.store.background import SnapshotWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path
    from types import TracebackType

    from edgellm.core import Event, Request, SnapshotUse
    from edgellm.engines.base import Engine
    from edgellm.runtime.live import Live, Prompt
    from edgellm.runtime.prefill import Prefilled
    from edgellm.store.snapshots import SnapshotStore

SETTLE_S: Final = 0.05
"""How long the end of an answer, already shown, waits to say that its snapshot was not written."""


def open_session(path: Path, options: SessionOptions) -> LocalSession:
    """Load a model with the engine that its file asks for.

    Raises:
        ModelNotFound, ModelCorrupt, ModelUnsupported: the file is refused.
        EngineUnavailable: no engine is installed.
        DoesNotFit, EngineFailed: the engine cannot load it.
        UsageError, TemplateError: an option or `EDGELLM_HOME` is wrong.
    """
    from edgellm.engines.llamacpp import LlamaCppEngine
    from edgellm.paths import snapshots_dir
    from edgellm.store.snapshots import SnapshotStore

    started = perf_counter()
    store = SnapshotStore(snapshots_dir()) if options.snapshot is not Tier.OFF else None
    engine = LlamaCppEngine(path, options.engine)
    try:
        session = LocalSession(engine, options, store=store)
        session.room.open()
    except EdgeLLMError:
        engine.close()
        raise
    session.load_ms = (perf_counter() - started) * 1000
    return session


class LocalSession:
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
        self.load_ms = 0.0
        self._vocab = engine.vocab()
        block = engine.snapshot_block()
        kept = None if block or self.options.snapshot is Tier.OFF else store
        self._prefiller = Prefiller(
            engine,
            kept,
            tier=Tier.EXACT if self.options.snapshot is Tier.AUTO else self.options.snapshot,
            off_reason=block or "asked",
            min_tokens=min_snapshot_tokens,
        )
        self._writer = SnapshotWriter(kept) if kept else None
        self._prompting = Prompting(
            engine, self.options.chat_template, clock=clock, keeps_prefixes=kept is not None
        )
        self._warnings = self._opening_warnings(block)
        self._said_lost = False
        self.room = Room(engine, self.options.n_ctx)
        self._live: Live | None = None
        self._n_cancels = 0
        self._answering = False
        self._closed = False
        # Held while the engine works, not while an answer waits for its reader. Reentrant: garbage
        # collection may close an answer that was given up, anywhere.
        self._working = threading.RLock()

    def _opening_warnings(self, block: str) -> list[str]:
        """Return what is said once, with the first answer."""
        said = list(self.model.warnings)
        if block and self.options.snapshot is not Tier.OFF:
            said.append(f"prefix snapshots are off: {block}")
        trained = self.model.n_ctx_train
        if self.options.n_ctx and self.options.n_ctx > trained:
            said.append(
                f"a context of {self.options.n_ctx} tokens is longer than the {trained} the model "
                "was trained with: answers may lose their thread there"
            )
        if self.options.mode in (Mode.PREFER_LOCAL, Mode.PREFER_CLOUD):
            said.append(
                f"mode {self.options.mode.value}: no endpoint is set up, answers stay local"
            )
        return said

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
        )

    def stream(self, request: Request) -> Iterator[Event]:
        """Answer a request piece by piece; `cancel` counts from this call on."""
        return _with_failure(self._steps(self._answer(request, self._n_cancels)))

    def generate(self, request: Request) -> Done:
        """Answer a request whole."""
        for event in self._steps(self._answer(request, self._n_cancels)):
            if isinstance(event, Done):
                return event
        raise EngineFailed("the answer ended without a result")

    def _steps(self, answer: Generator[Event, None, None]) -> Iterator[Event]:
        """Make an answer event by event, so that `close` in another thread finds the engine idle."""
        event: Event | None = None
        try:
            while not isinstance(event, Done):
                with self._working:
                    if self._closed:
                        raise EngineFailed("the session is closed")
                    event = next(answer)
                yield event
        finally:
            with self._working:
                answer.close()

    def _answer(self, request: Request, n_cancels: int) -> Generator[Event, None, None]:
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
            yield from self._events(request, lambda: self._n_cancels != n_cancels)
        finally:
            self._answering = False

    def _events(self, request: Request, cancelled: Callable[[], bool]) -> Iterator[Event]:
        started = perf_counter()
        sampler = Sampler(request.sampling, self._vocab.n_tokens)
        prompt = self._prompting.prompt(request.messages, self._live)
        yield from self._told()
        n_ctx = self.room.wanted(len(prompt.tokens))
        # Until here a request could be refused without loss; from here on nothing is known of the
        # memory until the answer has ended in order.
        live, self._live = self._live, None
        try:
            filled = self._prefiller.run(prompt, self.room.make(n_ctx, live))
        except Cancelled:
            self.engine.truncate(0)
            usage = Usage(prompt_tokens=len(prompt.tokens))
            yield Done("", "cancelled", usage=usage, seed=sampler.seed)
            return
        yield from self._decode(request, prompt, filled, sampler, started, cancelled)

    def _told(self) -> Iterator[Warn]:
        """Give what there is to warn of, also that a snapshot could not be written, once."""
        if self._writer is not None and self._writer.failure and not self._said_lost:
            self._said_lost = True
            self._warnings.append(f"the prefix snapshot was not kept: {self._writer.failure}")
        for said in (self._prompting.notes, self._warnings):
            while said:
                yield Warn(said.pop(0))

    def _snapshot_use(self, filled: Prefilled, *, taken: bool) -> SnapshotUse:
        """Say what the store did, as far as it is known when the answer ends."""
        use, writer = filled.snapshot, self._writer
        if filled.unsaved is None or writer is None:
            return use
        # A disk that refuses does so at once, and a program of one answer asks only here.
        if taken and not (writer.settle(SETTLE_S) and writer.failed_last):
            return use
        return replace(use, reason=use.reason.removesuffix(BEING_STORED) + "not kept")

    def _decode(
        self,
        request: Request,
        prompt: Prompt,
        filled: Prefilled,
        sampler: Sampler,
        started: float,
        cancelled: Callable[[], bool],
    ) -> Iterator[Event]:
        sampler.prime(prompt.tokens)
        unsaved, writer = filled.unsaved, self._writer

        taken = False

        def save() -> None:
            nonlocal taken
            if unsaved is not None and writer is not None:
                taken = writer.submit(unsaved.fingerprint, unsaved.tokens, unsaved.state)

        decoding = Decoding(
            self.engine,
            filled.logits,
            sampler,
            TextJoiner(request.stop),
            max_tokens=request.max_tokens,
            n_ctx=self.room.n_ctx,
            on_first=save,
            cancelled=cancelled,
        )
        texts: list[str] = []
        ttft_s = 0.0
        try:
            for piece in decoding:
                ttft_s = ttft_s or perf_counter() - started
                if piece.text:
                    texts.append(piece.text)
                    yield Token(len(texts) - 1, piece.text)
        finally:
            outcome = decoding.outcome
            self._live = self._live_after(prompt, outcome.tokens, outcome.n_decoded)
        use = self._snapshot_use(filled, taken=taken)
        yield from self._told()
        yield Done(
            text="".join(texts),
            finish_reason=outcome.finish_reason,
            usage=Usage(len(prompt.tokens), filled.reused_tokens, len(outcome.tokens)),
            timings=Timings(
                load_ms=self.load_ms,
                restore_ms=filled.restore_s * 1000,
                prefill_ms=filled.prefill_s * 1000,
                ttft_ms=(ttft_s or perf_counter() - started) * 1000,
                decode_tokens_per_s=(
                    outcome.n_decoded / outcome.decode_s if outcome.decode_s else 0.0
                ),
            ),
            snapshot=use,
            seed=sampler.seed,
        )

    def _live_after(self, prompt: Prompt, answer: tuple[int, ...], n_decoded: int) -> Live | None:
        """Describe the memory, or None when the engine does not hold what was decoded."""
        live = live_after(prompt, answer, n_decoded, self._vocab.piece)
        return live if self.engine.position == len(live.tokens) else None

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
            self.engine.close()

    def __enter__(self) -> LocalSession:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _with_failure(events: Iterator[Event]) -> Iterator[Event]:
    """Let an error be the last event of a stream."""
    try:
        yield from events
    except EdgeLLMError as err:
        yield Failure(err.code, str(err), err.exit_code)
