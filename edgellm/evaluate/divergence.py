"""KL divergence, top-1 agreement and perplexity of two sources of logits on the same tokens.

All sums are float64. Logits come as float32 rows over the whole vocabulary; rows are worked on in
small groups, so that a large vocabulary does not multiply memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

_GROUP_ELEMENTS = 1 << 21


class Source(Protocol):
    """What is compared: the part of an engine that evaluation needs."""

    def reserve(self, n_ctx: int) -> None:
        """Make room for `n_ctx` tokens; growing clears the memory."""

    def truncate(self, n_tokens: int) -> bool:
        """Forget all but the first `n_tokens`."""

    def decode(
        self, tokens: Sequence[int], logits: Literal["last", "all"] = "last"
    ) -> NDArray[np.float32]:
        """Append tokens; logits of shape (n, n_vocab) for `all`, valid until the next call."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """What was found on `n_scored` positions; divergences in nats.

    Attributes:
        n_scored: positions compared.
        kl_mean: mean KL(reference || candidate).
        kl_median: its median.
        kl_p99: its 99th percentile.
        kl_max: its maximum.
        top1: share of positions whose most likely token is the same.
        ppl_reference: perplexity of the reference on the tokens that follow.
        ppl_candidate: perplexity of the candidate on them.
    """

    n_scored: int
    kl_mean: float
    kl_median: float
    kl_p99: float
    kl_max: float
    top1: float
    ppl_reference: float
    ppl_candidate: float


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return log-probabilities in float64, shape as given, last axis the vocabulary."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=-1, keepdims=True))
    return wide


def kl_divergence(
    p_logits: NDArray[np.float32], q_logits: NDArray[np.float32]
) -> NDArray[np.float64]:
    """Return KL(p || q) of each row, in nats.

    Args:
        p_logits: the reference, shape (n, n_vocab), finite.
        q_logits: the candidate, the same shape.

    Returns:
        Shape (n,); never below zero by more than rounding.

    Raises:
        ValueError: the shapes differ, or there are not two dimensions.
    """
    _same_shape(p_logits, q_logits)
    out = np.empty(len(p_logits), np.float64)
    for rows in _groups(p_logits.shape):
        log_p, log_q = log_softmax(p_logits[rows]), log_softmax(q_logits[rows])
        out[rows] = (np.exp(log_p) * (log_p - log_q)).sum(axis=-1)
    return out


def top1_agreement(
    p_logits: NDArray[np.float32], q_logits: NDArray[np.float32]
) -> NDArray[np.bool_]:
    """Return for each row whether both have the same most likely token."""
    _same_shape(p_logits, q_logits)
    same: NDArray[np.bool_] = p_logits.argmax(axis=-1) == q_logits.argmax(axis=-1)
    return same


def negative_log_likelihood(
    logits: NDArray[np.float32], targets: Sequence[int]
) -> NDArray[np.float64]:
    """Return -log p(target) of each row, in nats.

    Args:
        logits: shape (n, n_vocab).
        targets: the n tokens that follow.

    Raises:
        ValueError: the counts differ.
    """
    if len(targets) != len(logits):
        raise ValueError(f"{len(logits)} rows of logits, {len(targets)} targets")
    out = np.empty(len(logits), np.float64)
    ids = np.asarray(targets, np.intp)
    for rows in _groups(logits.shape):
        part = log_softmax(logits[rows])
        out[rows] = -part[np.arange(len(part)), ids[rows]]
    return out


def windows(tokens: Sequence[int], n_window: int) -> list[Sequence[int]]:
    """Cut tokens into whole windows; what is left over at the end is not used.

    Raises:
        ValueError: a window of fewer than four tokens, or fewer tokens than one window.
    """
    if n_window < 4 or len(tokens) < n_window:
        raise ValueError(f"{len(tokens)} tokens in windows of {n_window}")
    return [
        tokens[start : start + n_window] for start in range(0, len(tokens) - n_window + 1, n_window)
    ]


def compare(reference: Source, candidate: Source, parts: Iterable[Sequence[int]]) -> Divergence:
    """Run both sources over the same windows side by side and compare the second half of each.

    The first half is context: its positions have seen too little text to say much. Nothing is
    stored but the figures.

    Args:
        reference: what is taken for right.
        candidate: what is judged.
        parts: token windows, such as `windows` gives; each starts from an empty memory.

    Raises:
        ValueError: no windows.
    """
    scores: list[NDArray[np.float64]] = []
    for part in parts:
        half = len(part) // 2
        p, q = _second_half(reference, part, half), _second_half(candidate, part, half)
        scores.append(_scores(p, q, np.asarray(part[half + 1 :], np.intp)))
    if not scores:
        raise ValueError("no windows to compare on")
    kl, agree, cost_p, cost_q = np.concatenate(scores, axis=1)
    return Divergence(
        n_scored=len(kl),
        kl_mean=float(kl.mean()),
        kl_median=float(np.median(kl)),
        kl_p99=float(np.percentile(kl, 99)),
        kl_max=float(kl.max()),
        top1=float(agree.mean()),
        ppl_reference=math.exp(np.nanmean(cost_p)),
        ppl_candidate=math.exp(np.nanmean(cost_q)),
    )


def _scores(
    p: NDArray[np.float32], q: NDArray[np.float32], targets: NDArray[np.intp]
) -> NDArray[np.float64]:
    """Return KL, agreement and both costs of each row; the last row has no target: its cost is NaN."""
    _same_shape(p, q)
    out = np.full((4, len(p)), np.nan)
    out[1] = top1_agreement(p, q)
    for rows in _groups(p.shape):
        log_p, log_q = log_softmax(p[rows]), log_softmax(q[rows])
        wanted = targets[rows]
        places = np.arange(len(wanted))
        out[2, rows][: len(wanted)] = -log_p[places, wanted]
        out[3, rows][: len(wanted)] = -log_q[places, wanted]
        log_q -= log_p
        np.exp(log_p, out=log_p)
        out[0, rows] = -np.einsum("ij,ij->i", log_p, log_q)
    return out


def _second_half(source: Source, part: Sequence[int], half: int) -> NDArray[np.float32]:
    source.reserve(len(part))
    source.truncate(0)
    source.decode(part[:half])
    return source.decode(part[half:], "all").copy()


def _groups(shape: tuple[int, ...]) -> Iterator[slice]:
    step = max(1, _GROUP_ELEMENTS // max(1, shape[-1]))
    for start in range(0, shape[0], step):
        yield slice(start, start + step)


def _same_shape(p: NDArray[np.float32], q: NDArray[np.float32]) -> None:
    if p.shape != q.shape or p.ndim != 2:
        raise ValueError(f"logits of shapes {p.shape} and {q.shape}")
