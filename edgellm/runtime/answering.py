"""Answering: one request after the other over one engine's memory, and what is kept of it.

Between two requests `live` says what is in the memory. From the moment a prompt is read until its
answer has ended in order, nothing is known of it.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from edgellm.core import Done, Message, Timings, Token, Usage
from edgellm.errors import Cancelled, EngineFailed, UsageError
from edgellm.runtime.generate import Decoding
from edgellm.runtime.live import Live, live_after
from edgellm.runtime.notices import Notices
from edgellm.runtime.sampling import Sampler
from edgellm.runtime.saving import Saving
from edgellm.runtime.session import Step
from edgellm.runtime.text import TextJoiner, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from edgellm.core import Request, SnapshotUse, Tools
    from edgellm.engines.base import Engine
    from edgellm.runtime.generate import Outcome, Piece
    from edgellm.runtime.live import Prompt
    from edgellm.runtime.prefill import Prefilled, Prefiller
    from edgellm.runtime.prompting import Prompting
    from edgellm.runtime.room import Room
    from edgellm.runtime.storing import Storing
    from edgellm.runtime.turns import Turns


class Answering:
    """Makes the answers of one session.

    Args:
        engine: whose memory it is.
        prompting: makes prompts.
        prefiller: brings them into the memory.
        room: the context.
        storing: where prefixes are kept, or None.
        turns: finds conversations that were kept, or None.
        warnings: what the user is to be told with the first answer.

    Attributes:
        live: what the memory holds, or None when that is not known.
        load_ms: for the figures.
    """

    def __init__(
        self,
        engine: Engine,
        prompting: Prompting,
        prefiller: Prefiller,
        room: Room,
        *,
        storing: Storing | None,
        turns: Turns | None = None,
        warnings: list[str],
    ) -> None:
        self._engine = engine
        self._prompting = prompting
        self._prefiller = prefiller
        self._room = room
        self._storing = storing
        self._writer = storing.writer if storing else None
        self._turns = turns
        self._vocab = engine.vocab()
        self._notices = Notices(prompting, storing, warnings)
        self.live: Live | None = None
        self.load_ms = 0.0

    def steps(
        self, request: Request, cancelled: Callable[[], bool], journal: Sequence[int] = ()
    ) -> Iterator[Step]:
        """Answer a request, or go on with an answer whose tokens so far are in the journal.

        Raises:
            EdgeLLMError: of the prompt, the context or the engine.
        """
        started = perf_counter()
        if self._storing is not None:
            self._storing.look_at(request.messages)
        sampler = Sampler(request.sampling, self._vocab.n_tokens)
        if any(not 0 <= token < self._vocab.n_tokens for token in journal):
            raise UsageError("the journal has tokens that this model does not")
        prompt = self._prompt(request)
        yield from self._notices.told()
        n_prompt = len(prompt.tokens)
        n_ctx = self._room.wanted(n_prompt)
        if n_ctx > self._engine.n_ctx:
            yield Step(None, phase="context", prompt_tokens=n_prompt)
        yield Step(None, phase="prefill", prompt_tokens=n_prompt)
        # Until here a request could be refused without loss.
        live, self.live = self.live, None
        try:
            filled = self._prefiller.run(prompt, self._room.make(n_ctx, live), cancelled)
        except Cancelled:
            self._engine.truncate(0)
            usage = Usage(n_prompt, 0, len(journal))
            text = text_of(map(self._vocab.piece, journal), request.stop)
            yield Step(Done(text, "cancelled", usage=usage, seed=sampler.seed))
            return
        yield from self._decode(request, prompt, filled, sampler, started, cancelled, journal)

    def _prompt(self, request: Request) -> Prompt:
        if self._turns is None:
            return self._prompting.prompt(request.messages, self.live, request.tools)
        if not self._engine.n_ctx:
            self._room.open()  # only then the engine knows under which fingerprint to look
        return self._prompting.prompt(
            request.messages, self.live, request.tools, recall=self._turns.recall
        )

    def warm(
        self, messages: Sequence[Message], tools: Tools, cancelled: Callable[[], bool]
    ) -> SnapshotUse:
        """Read the prefix of these messages, and wait until the disk has it.

        Raises:
            EdgeLLMError: of the prompt, the context or the engine; also `Cancelled`.
        """
        if self._storing is not None:
            self._storing.look_at(messages)
        if not any(message.role != "system" for message in messages):
            messages = [*messages, Message("user", "?")]  # it is behind the prefix
        prompt = self._prompting.prompt(messages, None, tools)
        if not prompt.n_prefix:
            return self._prefiller.use("no stable prefix", "no_prefix")
        n_ctx = self._room.wanted(len(prompt.tokens))
        live, self.live = self.live, None
        self._room.make(n_ctx, live)
        filled = self._prefiller.run_prefix(prompt, cancelled)
        prefix = prompt.tokens[: prompt.n_prefix]
        self.live = Live(prefix, None, len(prefix), prompt.cuts)
        saving = Saving(filled, self._writer, prompt.n_prefix)
        saving.begin()
        return saving.waited()

    def _decode(
        self,
        request: Request,
        prompt: Prompt,
        filled: Prefilled,
        sampler: Sampler,
        started: float,
        cancelled: Callable[[], bool],
        journal: Sequence[int],
    ) -> Iterator[Step]:
        saving = Saving(filled, self._writer, prompt.n_prefix)
        texts: list[str] = []
        ttft_s = 0.0
        tail = None
        try:
            decoding = self._decoding(request, prompt, filled, sampler, saving, cancelled, journal)
            try:
                for piece in decoding:
                    if not piece.is_replayed:
                        ttft_s = ttft_s or perf_counter() - started
                    step = _step(piece, texts)
                    if piece.token is None:
                        tail = step
                    else:
                        yield step
            finally:
                outcome = decoding.outcome
                self.live = self._live_after(prompt, outcome.tokens, outcome.n_decoded)
        finally:
            saving.end()
        if self._turns is not None:
            yield Step(None, phase="snapshot")
        self._keep_answer()
        use = saving.use()
        self._record(use, prompt, filled)
        if tail is not None:  # no token in a journal stands for it, so nothing may come between
            yield tail
        yield from self._notices.told()
        done = Done(
            text="".join(texts),
            finish_reason=outcome.finish_reason,
            usage=Usage(len(prompt.tokens), filled.reused_tokens, len(outcome.tokens)),
            timings=self._timings(filled, ttft_s or perf_counter() - started, outcome),
            snapshot=use,
            seed=sampler.seed,
            degraded=decoding.n_otherwise > 0,
        )
        yield Step(done, phase="snapshot")

    def _decoding(
        self,
        request: Request,
        prompt: Prompt,
        filled: Prefilled,
        sampler: Sampler,
        saving: Saving,
        cancelled: Callable[[], bool],
        journal: Sequence[int],
    ) -> Decoding:
        if filled.logits is None:
            raise EngineFailed("nothing of the prompt was decoded")
        sampler.prime(prompt.tokens)
        return Decoding(
            self._engine,
            filled.logits,
            sampler,
            TextJoiner(request.stop),
            max_tokens=request.max_tokens,
            n_ctx=self._room.n_ctx,
            on_first=saving.begin,
            cancelled=cancelled,
            journal=journal,
        )

    def _timings(self, filled: Prefilled, ttft_s: float, outcome: Outcome) -> Timings:
        per_s = outcome.n_decoded / outcome.decode_s if outcome.decode_s else 0.0
        return Timings(
            load_ms=self.load_ms,
            restore_ms=filled.restore_s * 1000,
            prefill_ms=filled.prefill_s * 1000,
            ttft_ms=ttft_s * 1000,
            decode_tokens_per_s=per_s,
        )

    def _record(self, use: SnapshotUse, prompt: Prompt, filled: Prefilled) -> None:
        """Write down what the snapshots did, and how fast disk and model were."""
        if self._storing is not None:
            self._storing.speeds.record(
                use.code,
                reused_tokens=filled.reused_tokens,
                read=(len(prompt.tokens) - filled.reused_tokens, filled.decode_s),
                restored=(filled.restored_bytes, filled.disk_s),
            )

    def _keep_answer(self) -> None:
        """Keep the memory after an answer, where turns are kept."""
        if self.live is None:
            return
        unsaved = self._prefiller.keep_answer(self.live)
        if self._engine.position != len(self.live.tokens):
            self.live = None
        elif unsaved is not None and self._writer is not None:
            self._writer.submit([unsaved], may_wait=True)

    def _live_after(self, prompt: Prompt, answer: tuple[int, ...], n_decoded: int) -> Live | None:
        """Describe the memory, or None when the engine does not hold what was decoded."""
        live = live_after(prompt, answer, n_decoded, self._vocab.piece)
        return live if self._engine.position == len(live.tokens) else None


def _step(piece: Piece, texts: list[str]) -> Step:
    """Return a piece as a step, with an event where it has text that nobody saw yet."""
    if piece.text:
        texts.append(piece.text)
    ids = () if piece.token is None or piece.is_replayed else (piece.token,)
    if not piece.text or piece.is_replayed:
        return Step(None, ids)
    return Step(Token(len(texts) - 1, piece.text), ids)
