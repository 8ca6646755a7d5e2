"""How a prefix is kept: a table of cases, and what holds for any facts there can be."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm.core import Tier
from edgellm.policy.snapshots import BYTES_OF_EXACT, SnapshotFacts, choose, coarsest

LOSSES = {Tier.Q8: 0.0024, Tier.Q6: 0.0015, Tier.Q5: 0.004, Tier.Q4: 0.014}
# A thousand tokens of a small model on a laptop: 23 MB, 10 s to read, 20 ms to restore.
FACTS = SnapshotFacts(
    n_tokens=1000,
    state_bytes=23_000_000,
    prefill_tokens_per_s=100,
    write_bytes_per_s=500e6,
    read_bytes_per_s=1e9,
    free_bytes=10**11,
    losses=LOSSES,
)

CASES = {
    "nothing measured": (SnapshotFacts(1000, 23_000_000), Tier.EXACT, False, True, "exact"),
    "a laptop": (FACTS, Tier.EXACT, False, True, "exact"),
    "a memory card": (
        replace(FACTS, read_bytes_per_s=20e6),
        *(Tier.EXACT, True, True, "byte planes: the disk is slow"),
    ),
    "loss allowed": (
        replace(FACTS, loss_allowed=0.003),
        *(Tier.Q6, False, True, "q6: 0.0015 nats of 0.003 allowed"),
    ),
    "much loss allowed": (
        replace(FACTS, loss_allowed=0.1),
        *(Tier.Q4, False, True, "q4: 0.014 nats of 0.1 allowed"),
    ),
    "too little loss allowed": (
        replace(FACTS, loss_allowed=0.0001),
        *(Tier.EXACT, False, True, "exact: no tier fits the loss allowed"),
    ),
    "no room": (
        replace(FACTS, free_bytes=1_000_000),
        *(Tier.EXACT, False, False, "23.0 MB do not fit 1.0 MB of free space"),
    ),
    "a tiny model": (
        replace(FACTS, prefill_tokens_per_s=50_000, read_bytes_per_s=500e6),
        *(Tier.EXACT, False, False, "a snapshot costs 62 ms a start, the prefill 20 ms"),
    ),
    "a disk that only reads fast": (
        replace(FACTS, prefill_tokens_per_s=10_000, write_bytes_per_s=10e6),
        *(Tier.EXACT, False, False, "a snapshot costs 603 ms a start, the prefill 100 ms"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_table(case: str) -> None:
    """What is chosen, and the words of the reason."""
    facts, tier, lossless, keep, reason = CASES[case]
    choice = choose(facts)
    assert (tier, lossless, keep, reason) == (
        *(choice.tier, choice.lossless, choice.keep, choice.reason),
    )


speeds = st.none() | st.floats(allow_nan=True, allow_infinity=True)
facts_of_any_kind = st.builds(
    SnapshotFacts,
    n_tokens=st.integers(0, 1 << 31),
    state_bytes=st.integers(0, 1 << 50),
    prefill_tokens_per_s=speeds,
    write_bytes_per_s=speeds,
    read_bytes_per_s=speeds,
    free_bytes=st.none() | st.integers(-(1 << 40), 1 << 60),
    loss_allowed=st.floats(allow_nan=True, allow_infinity=True),
    losses=st.dictionaries(st.sampled_from(list(Tier)), st.floats(allow_nan=True)),
)


@given(facts_of_any_kind)
def test_every_fact_has_a_decision(facts: SnapshotFacts) -> None:
    """Whatever was measured: a tier that is kept, a reason of one line, and never loss unasked."""
    choice = choose(facts)
    assert choice.tier in BYTES_OF_EXACT
    assert choice.reason
    assert "\n" not in choice.reason
    if choice.tier is not Tier.EXACT:
        assert facts.losses[choice.tier] <= facts.loss_allowed
        assert not choice.lossless
    if not facts.loss_allowed > 0:
        assert Tier.EXACT is choice.tier


@given(
    st.dictionaries(st.sampled_from(list(LOSSES)), st.floats(0, 1)),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_more_loss_allowed_never_takes_more_bytes(losses, one: float, other: float) -> None:
    """And what is chosen is the smallest that fits."""
    less, more = sorted((one, other))
    assert BYTES_OF_EXACT[coarsest(losses, more)] <= BYTES_OF_EXACT[coarsest(losses, less)]
    chosen = coarsest(losses, more)
    smaller = [tier for tier in losses if BYTES_OF_EXACT[tier] < BYTES_OF_EXACT[chosen]]
    assert all(losses[tier] > more or more == 0 for tier in smaller)


def test_less_space_and_slower_disks_never_help() -> None:
    """What is not kept is not kept with less room or a slower disk either."""
    kept = [
        choose(replace(FACTS, free_bytes=free, write_bytes_per_s=speed)).keep
        for free in (10**12, 10**8, 10**7)
        for speed in (1e9, 1e6, 1e3)
    ]
    assert kept == [True, True, False, True, True, False, False, False, False]
