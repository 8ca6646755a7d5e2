"""The sampler against a plain reading of the same rules."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from edgellm.core import Sampling
from edgellm.runtime.sampling import Sampler

VOCABULARIES = (1, 7, 300, 2000)


def kept_by_the_rules(logits, sampling, recent):
    """Sort everything, apply one step after the other, and say how near a limit was."""
    values = [float(v) for v in logits]
    for token in set(recent[len(recent) - min(len(recent), sampling.repeat_last_n) :]):
        penalty = np.float32(sampling.repeat_penalty)
        value = np.float32(values[token])
        values[token] = float(value / penalty if value > 0 else value * penalty)
    order = sorted(range(len(values)), key=lambda token: (-values[token], token))
    if sampling.top_k:
        order = order[: sampling.top_k]
    best = values[order[0]]
    weights = [math.exp(values[token] - best) for token in order]
    total, reached, nearness = math.fsum(weights), 0.0, math.inf
    if sampling.top_p < 1:
        for n_kept, weight in enumerate(weights, start=1):
            reached += weight
            nearness = min(nearness, abs(reached / total - sampling.top_p))
            if reached >= sampling.top_p * total:
                order = order[:n_kept]
                break
    kept = [token for token in order if math.exp(values[token] - best) >= sampling.min_p]
    for token in order:
        if sampling.min_p:
            nearness = min(nearness, abs(math.exp(values[token] - best) - sampling.min_p))
    return sorted(kept), {token: values[token] - best for token in kept}, nearness


@st.composite
def cases(draw):
    n_vocab = draw(st.sampled_from(VOCABULARIES))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    logits = (rng.standard_normal(n_vocab) * draw(st.sampled_from((0.3, 2, 10)))).astype(np.float32)
    if draw(st.booleans()):
        logits = np.round(logits)  # many ties
    sampling = Sampling(
        temperature=draw(st.sampled_from((0.1, 0.8, 3.0))),
        top_k=draw(st.sampled_from((0, 2, 40, 500))),
        top_p=draw(st.sampled_from((0.0, 0.3, 0.95, 1.0))),
        min_p=draw(st.sampled_from((0.0, 0.05, 0.5))),
        repeat_penalty=draw(st.sampled_from((1.0, 1.3))),
        repeat_last_n=draw(st.sampled_from((0, 5, 64))),
        seed=draw(st.integers(0, (1 << 64) - 1)),
    )
    recent = draw(st.lists(st.integers(0, n_vocab - 1), max_size=20))
    return logits, sampling, recent


@given(cases())
def test_picks_what_the_plain_rules_pick(case):
    """The fast path keeps the same tokens and draws the same one as sorting everything."""
    logits, sampling, recent = case
    kept, gaps, nearness = kept_by_the_rules(logits, sampling, recent)
    # Where a sum meets a limit within rounding, either side is right.
    assume(nearness > 1e-9)
    sampler = Sampler(sampling, len(logits))
    sampler.prime(recent)
    uniform = (np.random.PCG64(sampling.seed).random_raw() >> 11) / 2**53
    reached = np.cumsum([math.exp(gaps[token] / sampling.temperature) for token in kept])
    assume(np.min(np.abs(reached / reached[-1] - uniform)) > 1e-9)
    expected = kept[int(np.searchsorted(reached, uniform * reached[-1], side="right"))]
    before = logits.copy()
    assert expected == sampler.pick(logits)
    assert np.array_equal(before, logits)


@given(cases())
def test_the_same_seed_gives_the_same_tokens(case):
    """Two samplers with one seed agree token by token."""
    logits, sampling, recent = case
    first, second = (Sampler(sampling, len(logits)) for _ in range(2))
    for sampler in (first, second):
        sampler.prime(recent)
    for _ in range(3):
        token = first.pick(logits)
        assert token == second.pick(logits)
        first.accept(token)
        second.accept(token)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_are_drawn_as_often_as_they_are_probable(temperature):
    """Ten thousand draws of five tokens follow the softmax within five standard deviations."""
    logits = np.array([0.0, 1.0, -1.0, 2.0, 0.5], np.float32)
    sampling = Sampling(temperature=temperature, top_k=0, top_p=1, min_p=0, seed=7)
    sampler = Sampler(sampling, len(logits))
    n_draws = 10_000
    counts = np.bincount([sampler.pick(logits) for _ in range(n_draws)], minlength=len(logits))
    expected = np.exp(logits / temperature)
    expected /= expected.sum()
    deviation = np.sqrt(n_draws * expected * (1 - expected))
    assert (np.abs(counts - n_draws * expected) < 5 * deviation).all()
