"""Choosing the next token, the same way for every engine.

The steps and their order are those of llama.cpp's default chain: penalties, top-k, top-p, min-p,
temperature, draw. With a seed the choice is a pure function of the logits and the tokens before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    from numpy.typing import NDArray

    from edgellm.core import Sampling


class Sampler:
    """Picks tokens by a `Sampling`.

    Args:
        sampling: what to do; without a seed a random one is drawn.
        n_vocab: length of the logits.

    Attributes:
        seed: the seed in use.
    """

    seed: int

    def __init__(self, sampling: Sampling, n_vocab: int) -> None:
        raise NotImplementedError

    def prime(self, tokens: Iterable[int]) -> None:
        """Let the repetition penalty see the tokens of the prompt."""

    def accept(self, token: int) -> None:
        """Let the repetition penalty see a token of the answer."""

    def pick(self, logits: NDArray[np.float32]) -> int:
        """Return the next token; the logits are not changed.

        Args:
            logits: shape (n_vocab,).

        Raises:
            EngineFailed: the largest logit is NaN or infinite.
        """
        raise NotImplementedError
