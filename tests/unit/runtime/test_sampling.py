"""What the sampler promises at its edges."""

from __future__ import annotations

import numpy as np
import pytest

from edgellm.core import Sampling
from edgellm.errors import EngineFailed
from edgellm.runtime.sampling import Sampler

SETTINGS = [
    Sampling(temperature=0),
    Sampling(seed=1),
    Sampling(seed=1, top_k=0),
    Sampling(seed=1, top_k=0, top_p=1, min_p=0),
    Sampling(seed=1, top_k=1000),
]


def test_temperature_zero_takes_the_largest_with_the_lowest_id():
    """Greedy is the largest logit, and of equal ones the first."""
    logits = np.array([1, 5, 5, 2], np.float32)
    assert 1 == Sampler(Sampling(temperature=0), 4).pick(logits)


@pytest.mark.parametrize("sampling", SETTINGS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("n_vocab", [5, 4096])
def test_logits_that_are_no_numbers_are_an_engine_failure(sampling, bad, n_vocab):
    """One NaN or an infinite best logit is refused under every setting."""
    logits = np.zeros(n_vocab, np.float32)
    logits[n_vocab // 2] = bad
    with pytest.raises(EngineFailed, match="no numbers"):
        Sampler(sampling, n_vocab).pick(logits)


@pytest.mark.parametrize("sampling", SETTINGS)
def test_tokens_that_are_masked_out_are_never_picked(sampling):
    """A logit of minus infinity takes a token out."""
    logits = np.full(4096, -np.inf, np.float32)
    logits[[7, 4000]] = 1.0
    sampler = Sampler(sampling, len(logits))
    assert {sampler.pick(logits) for _ in range(20)} <= {7, 4000}


@pytest.mark.parametrize("sampling", SETTINGS)
def test_no_token_at_all_is_an_engine_failure(sampling):
    """Logits that are all minus infinity leave nothing to pick."""
    with pytest.raises(EngineFailed):
        Sampler(sampling, 100).pick(np.full(100, -np.inf, np.float32))


def test_logits_of_another_length_are_a_mistake_of_the_caller():
    """A row of logits has the vocabulary's length."""
    with pytest.raises(ValueError, match="shape"):
        Sampler(Sampling(), 5).pick(np.zeros((1, 5), np.float32))


def test_a_seed_is_drawn_and_named():
    """Without a seed one is drawn, with which the same tokens come again."""
    logits = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    first = Sampler(Sampling(temperature=2), len(logits))
    again = Sampler(Sampling(temperature=2, seed=first.seed), len(logits))
    assert [first.pick(logits) for _ in range(9)] == [again.pick(logits) for _ in range(9)]
    assert first.seed != Sampler(Sampling(), 5).seed


def test_a_very_small_temperature_is_greedy_without_a_warning():
    """Gaps divided by almost nothing overflow in silence, to no chance at all."""
    logits = np.array([1, 3, 2], np.float32)
    sampling = Sampling(temperature=5e-324, top_k=0, min_p=0, top_p=1, seed=0)
    assert 1 == Sampler(sampling, 3).pick(logits)


def test_the_penalty_looks_at_prompt_and_answer_but_only_so_far_back():
    """A repeated token loses, until `repeat_last_n` others have come."""
    logits = np.array([2.0, 1.9, 0, -1], np.float32)
    sampler = Sampler(Sampling(temperature=0, repeat_penalty=1.5, repeat_last_n=2), 4)
    sampler.prime([0])
    assert 1 == sampler.pick(logits)
    sampler.accept(3)
    sampler.accept(3)
    assert 0 == sampler.pick(logits)


def test_the_penalty_pushes_negative_logits_further_down():
    """Dividing a negative logit would reward it."""
    logits = np.array([-1.0, -1.2], np.float32)
    sampler = Sampler(Sampling(temperature=0, repeat_penalty=2), 2)
    sampler.prime([0])
    assert 1 == sampler.pick(logits)
