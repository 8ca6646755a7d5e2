"""Divergence, agreement and perplexity."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm.evaluate.divergence import (
    compare,
    kl_divergence,
    negative_log_likelihood,
    top1_agreement,
    windows,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


class Table:
    """A source whose logits depend on the token alone."""

    def __init__(self, logits: NDArray[np.float32]) -> None:
        self.logits = logits
        self.calls: list[tuple[str, int]] = []

    def reserve(self, n_ctx: int) -> None:
        self.calls.append(("reserve", n_ctx))

    def truncate(self, n_tokens: int) -> bool:
        self.calls.append(("truncate", n_tokens))
        return True

    def decode(
        self, tokens: Sequence[int], logits: Literal["last", "all"] = "last"
    ) -> NDArray[np.float32]:
        self.calls.append((logits, len(tokens)))
        rows = self.logits[np.asarray(tokens)]
        return rows if logits == "all" else rows[-1:]


def test_known_value() -> None:
    """KL of (1/2, 1/2) from (1/4, 3/4) is log 2 - log 3 / 2."""
    p = np.log(np.array([[0.5, 0.5]], np.float32))
    q = np.log(np.array([[0.25, 0.75]], np.float32))
    assert kl_divergence(p, q)[0] == pytest.approx(math.log(2) - math.log(3) / 2, rel=1e-6)


@given(st.integers(0, 2**32 - 1), st.floats(-1e4, 1e4))
def test_shift_changes_nothing_and_it_is_never_negative(seed: int, shift: float) -> None:
    """Logits are defined up to a constant; KL is zero for equals, positive else."""
    rng = np.random.default_rng(seed)
    p = rng.normal(0, 5, (3, 50)).astype(np.float32)
    q = rng.normal(0, 5, (3, 50)).astype(np.float32)
    assert (kl_divergence(p, q) >= -1e-12).all()
    assert np.abs(kl_divergence(p, p)).max() == 0
    shifted = kl_divergence(p.astype(np.float64) + shift, q)  # type: ignore[arg-type]
    assert shifted == pytest.approx(kl_divergence(p, q), rel=1e-6, abs=1e-9)


def test_large_logits_do_not_overflow() -> None:
    """float64 with the maximum taken out first: no infinity, no NaN."""
    p = np.array([[1e4, -1e4, 0]], np.float32)
    q = np.array([[-1e4, 1e4, 0]], np.float32)
    assert kl_divergence(p, q)[0] == pytest.approx(2e4)


def test_likelihood_of_a_uniform_guess() -> None:
    """Over n tokens without a preference the perplexity is n."""
    cost = negative_log_likelihood(np.zeros((5, 7), np.float32), [0, 1, 2, 3, 6])
    assert np.exp(cost) == pytest.approx(7)


def test_top1() -> None:
    """Rows whose largest logit is at the same place agree."""
    p = np.array([[1, 2], [3, 0]], np.float32)
    q = np.array([[0, 9], [0, 9]], np.float32)
    assert top1_agreement(p, q).tolist() == [True, False]


def test_compare_scores_the_second_half_from_an_empty_memory() -> None:
    """Each window starts anew; its first half is context."""
    rng = np.random.default_rng(0)
    reference = Table(rng.normal(0, 1, (20, 20)).astype(np.float32))
    other = Table(reference.logits + rng.normal(0, 0.1, (20, 20)).astype(np.float32))
    tokens = rng.integers(0, 20, 100).tolist()
    found = compare(reference, other, windows(tokens, 16))
    assert found.n_scored == 6 * 8
    assert reference.calls[:4] == [("reserve", 16), ("truncate", 0), ("last", 8), ("all", 8)]
    assert 0 < found.kl_median <= found.kl_p99 <= found.kl_max
    assert 0 < found.kl_mean < 0.1
    assert found.top1 > 0.8
    assert found.ppl_candidate != found.ppl_reference


def test_wrong_calls() -> None:
    """Shapes that do not belong together, too few tokens, no windows."""
    with pytest.raises(ValueError, match="shapes"):
        kl_divergence(np.zeros((1, 2), np.float32), np.zeros((1, 3), np.float32))
    with pytest.raises(ValueError, match="targets"):
        negative_log_likelihood(np.zeros((2, 2), np.float32), [0])
    with pytest.raises(ValueError, match="windows of"):
        windows([1, 2, 3], 4)
    table = Table(np.zeros((1, 1), np.float32))
    with pytest.raises(ValueError, match="no windows"):
        compare(table, table, [])
