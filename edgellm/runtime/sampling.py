"""Choosing the next token, the same way for every engine.

The steps and their order are those of llama.cpp's default chain: penalties, top-k, top-p, min-p,
temperature, draw. With a seed the choice is a pure function of the logits and the tokens before.

Only a few tokens can survive the steps, so they are found by one pass over the logits: the rest of
the work does not depend on the vocabulary.
"""

from __future__ import annotations

import math
import secrets
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from edgellm.errors import EngineFailed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from edgellm.core import Sampling

_GROUPS_PER_TOKEN = 16
_REACHES = (-4.0, -8.0, -16.0, -32.0)
_ROUNDING = 1e-9
_SEED_BITS = 32  # a seed that is drawn should be easy to type again
_DOUBLE_BITS = 53


class Sampler:
    """Picks tokens by a `Sampling`.

    Args:
        sampling: what to do; without a seed a random one is drawn.
        n_vocab: length of the logits.

    Attributes:
        seed: the seed in use.
    """

    def __init__(self, sampling: Sampling, n_vocab: int) -> None:
        self.seed = secrets.randbits(_SEED_BITS) if sampling.seed is None else sampling.seed
        self._sampling = sampling
        self._n_vocab = n_vocab
        # The raw stream of PCG64 is fixed for ever; what Generator makes of it may change.
        self._random = np.random.PCG64(self.seed)
        self._recent: deque[int] = deque(maxlen=min(sampling.repeat_last_n, n_vocab * 64))
        self._min_gap = math.log(sampling.min_p) if sampling.min_p > 0 else -math.inf

    def prime(self, tokens: Iterable[int]) -> None:
        """Let the repetition penalty see the tokens of the prompt."""
        self._recent.extend(tokens)

    def accept(self, token: int) -> None:
        """Let the repetition penalty see a token of the answer."""
        self._recent.append(token)

    def pick(self, logits: NDArray[np.float32]) -> int:
        """Return the next token; the logits are not changed.

        Of equal logits the one with the lowest id counts as larger.

        Args:
            logits: shape (n_vocab,).

        Raises:
            EngineFailed: the largest logit is NaN or infinite.
        """
        if logits.shape != (self._n_vocab,):
            raise ValueError(f"logits have shape {logits.shape}, expected ({self._n_vocab},)")
        logits = self._penalised(logits)
        if self._sampling.temperature == 0 or self._sampling.top_k == 1:
            best = int(logits.argmax())
            _check_finite(float(logits[best]))
            return best
        tokens, values = self._candidates(logits)
        return self._draw(tokens, values)

    def _penalised(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Make recent tokens less likely: positive logits divided, negative multiplied, once."""
        penalty = self._sampling.repeat_penalty
        if penalty == 1 or not self._recent:
            return logits
        recent = np.fromiter(set(self._recent), np.intp)
        logits = logits.copy()
        values = logits[recent]
        logits[recent] = np.where(values > 0, values / penalty, values * penalty)
        return logits

    def _candidates(
        self, logits: NDArray[np.float32]
    ) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        """Apply top-k, top-p and min-p; return ids and logits minus the largest."""
        top_k, top_p = self._sampling.top_k, self._sampling.top_p
        if 0 < top_k < self._n_vocab:
            tokens, values = _top_k(logits, top_k)
            mass = float(np.exp(values).sum())
        else:
            tokens, values, mass = self._unlimited(logits)
        if top_p < 1:
            order = np.argsort(-values, kind="stable")
            tokens, values = tokens[order], values[order]
            # The first position where the sum reaches top_p of all is the last one kept.
            n_kept = int(np.searchsorted(np.exp(values).cumsum(), top_p * mass)) + 1
            tokens, values = tokens[:n_kept], values[:n_kept]
        if self._min_gap > -math.inf:
            kept = values >= self._min_gap
            tokens, values = tokens[kept], values[kept]
        return tokens, values

    def _unlimited(
        self, logits: NDArray[np.float32]
    ) -> tuple[NDArray[np.intp], NDArray[np.float64], float]:
        """Return what can pass top-p and min-p, with the mass of the whole vocabulary."""
        best = float(logits.max())
        _check_finite(best)
        values = logits.astype(np.float64) - best
        if self._sampling.top_p == 1 and self._min_gap == -math.inf:
            return np.arange(len(values)), values, math.nan  # nothing asks for the mass
        weights = np.exp(values)
        mass = float(weights.sum())
        gap = self._min_gap
        if self._sampling.top_p < 1:
            # Sorting is dear: go only as far below the best as top-p needs, rounding included.
            needed = min(self._sampling.top_p + _ROUNDING, 1.0) * mass
            reach = next((r for r in _REACHES if weights[values >= r].sum() >= needed), -math.inf)
            gap = max(gap, reach)
        tokens = np.flatnonzero(values >= gap)
        return tokens, values[tokens], mass

    def _draw(self, tokens: NDArray[np.intp], values: NDArray[np.float64]) -> int:
        """Divide by the temperature and draw: inverse of the cumulative sum, in order of id."""
        if len(tokens) < self._n_vocab or self._sampling.top_p < 1:  # else in order already
            order = np.argsort(tokens)
            tokens, values = tokens[order], values[order]
        with np.errstate(over="ignore", under="ignore"):
            reached = np.exp(values / self._sampling.temperature).cumsum()
        uniform = (self._random.random_raw() >> (64 - _DOUBLE_BITS)) * 2.0**-_DOUBLE_BITS
        at = int(np.searchsorted(reached, uniform * reached[-1], side="right"))
        return int(tokens[min(at, len(tokens) - 1)])


def _top_k(logits: NDArray[np.float32], k: int) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Return the ids of the k largest logits, and these minus the largest.

    The k-th largest of many groups' maxima cannot be above the k-th largest logit: what is below it
    is out, and few remain to be sorted.
    """
    n_groups = _GROUPS_PER_TOKEN * k
    group = len(logits) // n_groups
    sample = (
        logits[: group * n_groups].reshape(group, n_groups).max(axis=0) if group > 1 else logits
    )
    threshold = np.partition(sample, len(sample) - k)[len(sample) - k]
    # Not `>=`: with a NaN for threshold all are kept, and the check below finds it.
    tokens = np.flatnonzero(~(logits < threshold))
    values = logits[tokens].astype(np.float64)
    best = float(values.max())
    _check_finite(best)
    if len(tokens) > k:
        order = np.argsort(-values, kind="stable")[:k]
        tokens, values = tokens[order], values[order]
    return tokens, values - best


def _check_finite(best: float) -> None:
    if not math.isfinite(best):
        raise EngineFailed(
            f"the engine's logits are no numbers: the largest is {best}",
            hint="the model file or its memory is damaged; check the file, or run --snapshot off",
        )
