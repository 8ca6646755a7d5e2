"""The decode loop: sample, hand out, decode, until something ends the answer.

A token is handed out before it is decoded, so the last one of an answer is never in the engine's
memory, and neither is an end token: `Outcome.n_decoded` says how many are.

An answer that broke off is gone on with by its journal, the tokens that were chosen: they are decoded
again in the calls that made them, one each, and the sampler draws for each as it did, so that what
follows is what would have followed.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

from edgellm.errors import Cancelled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from edgellm.core import FinishReason
    from edgellm.engines.base import Engine
    from edgellm.runtime.sampling import Sampler
    from edgellm.runtime.text import TextJoiner


@dataclass(frozen=True, slots=True)
class Piece:
    """One step of an answer.

    Attributes:
        token: the token sampled, or None for text that was held back until the end.
        text: what became safe to show; may be "".
        is_replayed: whether the token stood in the journal, so that its text was shown before.
    """

    token: int | None
    text: str
    is_replayed: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an answer ended.

    Attributes:
        finish_reason: `stop` (end token or stop string), `length` (limit or full context),
            `cancelled`.
        tokens: the answer's tokens, without an end token.
        n_decoded: how many of them, from the first, are in the engine's memory.
        decode_s: time in the engine.
        choose_s: time for sampling, joining text and looking for stop strings.
    """

    finish_reason: FinishReason
    tokens: tuple[int, ...]
    n_decoded: int
    decode_s: float
    choose_s: float


class Decoding:
    """One answer being made: iterate over it once, then read `outcome`.

    Args:
        engine: its memory holds the prompt.
        logits: shape (n_vocab,), of the prompt's last token.
        sampler: chooses tokens; it was primed with the prompt.
        joiner: makes text of them.
        max_tokens: end with `length` after so many; None has no limit.
        n_ctx: end with `length` when the memory holds so many tokens.
        on_first: called once, after the first piece with text was handed out, at the latest when
            the iteration ends, however it ends.
        cancelled: asked before each token; True ends the answer, as does an engine that was told to
            stop.
        journal: the tokens that the answer begins with, whatever the sampler would choose.

    Attributes:
        n_otherwise: how many tokens of the journal the sampler would not have chosen here, which
            are none where the engine computes as the one did that made it.
    """

    def __init__(
        self,
        engine: Engine,
        logits: NDArray[np.float32],
        sampler: Sampler,
        joiner: TextJoiner,
        *,
        max_tokens: int | None = None,
        n_ctx: int,
        on_first: Callable[[], None] | None = None,
        cancelled: Callable[[], bool] = lambda: False,
        journal: Sequence[int] = (),
    ) -> None:
        self._engine = engine
        self._logits = logits
        self._sampler = sampler
        self._joiner = joiner
        self._max_tokens = max_tokens
        self._n_ctx = n_ctx
        self._on_first = on_first
        self._cancelled = cancelled
        self._journal = journal
        self.n_otherwise = 0
        self._vocab = engine.vocab()
        self._tokens: list[int] = []
        self._n_decoded = 0
        self._decode_s = 0.0
        self._choose_s = 0.0
        self._finish: FinishReason | None = None

    @property
    def outcome(self) -> Outcome:
        """Return how the answer ended.

        An answer whose iteration was given up, or failed, counts as cancelled.
        """
        return Outcome(
            finish_reason=self._finish or "cancelled",
            tokens=tuple(self._tokens),
            n_decoded=self._n_decoded,
            decode_s=self._decode_s,
            choose_s=self._choose_s,
        )

    def __iter__(self) -> Iterator[Piece]:
        """Make the answer.

        Raises:
            EngineFailed: the engine failed, or its logits are no numbers.
        """
        try:
            while self._finish is None:
                piece = self._choose()
                if piece is not None:
                    yield piece
                    if piece.text and not piece.is_replayed:
                        self._after_first()
                self._advance()
            tail = self._joiner.flush()
            if tail:
                yield Piece(None, tail)
        finally:
            self._after_first()

    def _choose(self) -> Piece | None:
        """Sample one token; None when the answer ends without it."""
        if self._cancelled():
            self._finish = "cancelled"
            return None
        started_s = perf_counter()
        is_replayed = len(self._tokens) < len(self._journal)
        token = self._sampler.pick(self._logits)
        if is_replayed:
            picked, token = token, self._journal[len(self._tokens)]
            self.n_otherwise += picked != token
        if token in self._vocab.end_ids:
            self._finish = "stop"
            return None
        self._sampler.accept(token)
        self._tokens.append(token)
        text = self._joiner.feed(self._vocab.piece(token))
        self._choose_s += perf_counter() - started_s
        if self._joiner.stopped:
            self._finish = "stop"
        elif len(self._tokens) == self._max_tokens or self._engine.position >= self._n_ctx:
            self._finish = "length"
        return Piece(token, text, is_replayed)

    def _advance(self) -> None:
        """Decode the last token, unless the answer has ended."""
        if self._finish is not None:
            return
        started_s = perf_counter()
        try:
            self._logits = self._engine.decode(self._tokens[-1:])[0]
        except Cancelled:
            self._finish = "cancelled"
            return
        finally:
            self._decode_s += perf_counter() - started_s
        self._n_decoded += 1

    def _after_first(self) -> None:
        callback, self._on_first = self._on_first, None
        if callback is not None:
            callback()
