"""ScriptedEngine: a deterministic engine without a model, for tests of programs that use edgellm.

One token per byte, a ChatML template, and greedy answers that are the script. Its memory is real:
logits are computed from the key and value rows alone, so a wrong restore shows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

MemoryKind = Literal["dense", "window", "recurrent"]


class ScriptedEngine:
    """An engine whose greedy answer is a script.

    Args:
        script: the answer, or the answers of one turn after the other (the last one repeats).
        memory: `dense`, `window` (dense and sliding-window parts), or `recurrent`, which refuses
            snapshots and truncation.
        n_window: tokens a window part sees.
        n_batch: tokens per chunk of a `decode` call.
        n_ctx_train: context length the model states.
        chat_template: Jinja source, or None for a model without one.
        add_bos: whether the vocabulary wants a beginning-of-sequence token.
        fail_at: the N-th decode call, from 1, fails.
        delay_s: time each token takes.
    """

    def __init__(
        self,
        script: str | Sequence[str] = "",
        *,
        memory: MemoryKind = "dense",
        n_window: int = 16,
        n_batch: int = 512,
        n_ctx_train: int = 8192,
        chat_template: str | None = "",
        add_bos: bool = False,
        fail_at: int | None = None,
        delay_s: float = 0.0,
    ) -> None:
        raise NotImplementedError
