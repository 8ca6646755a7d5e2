"""Room: how many tokens the context must hold, and growing it without losing what is live.

A fixed size stays. Otherwise the context starts with some thousand tokens and at least doubles when a
prompt needs more, so that a long conversation is carried over a few times only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgellm.errors import PromptTooLong, SnapshotIncompatible
from edgellm.policy.fitting import ANSWER_ROOM, MIN_AUTO_CTX

if TYPE_CHECKING:
    from edgellm.engines.base import Engine
    from edgellm.runtime.live import Live


class Room:
    """The context of one engine.

    Args:
        engine: its context is made here.
        n_ctx: a fixed size in tokens; None takes min(the model's, max(4096, prompt + 1024)).
    """

    def __init__(self, engine: Engine, n_ctx: int | None) -> None:
        self._engine = engine
        self._fixed = n_ctx

    @property
    def n_ctx(self) -> int:
        """Return how many tokens prompt and answer may have together.

        An engine may round a size up; the user's number stands, or the model's own limit.
        """
        return self._fixed or min(self._engine.n_ctx, self._engine.model.n_ctx_train)

    def open(self) -> None:
        """Make the context that the first request needs at least, so that it need not wait for it.

        Raises:
            DoesNotFit: the memory for it cannot be had.
        """
        self._engine.reserve(self._fixed or self._auto(0))

    def wanted(self, n_prompt: int) -> int:
        """Return the size for a prompt of `n_prompt` tokens and its answer.

        Raises:
            PromptTooLong: there is no room for an answer.
        """
        wanted = self._fixed or self._auto(n_prompt)
        if n_prompt >= wanted:
            raise PromptTooLong(
                f"the prompt has {n_prompt} tokens, the context holds {wanted} "
                "and the answer needs some",
                hint="shorten it or use a larger --ctx" if self._fixed else "shorten it",
            )
        return wanted

    def _auto(self, n_prompt: int) -> int:
        wanted = max(MIN_AUTO_CTX, n_prompt + ANSWER_ROOM)
        if wanted > self._engine.n_ctx and self._engine.position:
            wanted = max(wanted, 2 * self._engine.n_ctx)
        return min(self._engine.model.n_ctx_train, wanted)

    def make(self, n_ctx: int, live: Live | None) -> Live | None:
        """Make the context hold `n_ctx` tokens; return `live` if the memory still holds it.

        Raises:
            DoesNotFit: the memory for it cannot be had.
        """
        if n_ctx <= self._engine.n_ctx:
            return live
        if live is None or self._engine.snapshot_block():
            self._engine.reserve(n_ctx)
            return None
        try:
            state = self._engine.capture()
            self._engine.reserve(n_ctx)
            self._engine.restore(state)
        except (SnapshotIncompatible, MemoryError):
            self._engine.reserve(n_ctx)
            return None
        return live
