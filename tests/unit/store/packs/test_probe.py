"""Probes: near numbers agree, others do not."""

from __future__ import annotations

import re

import numpy as np
import pytest

from edgellm.errors import SnapshotCorrupt, SnapshotError
from edgellm.store.format.fields import Fields
from edgellm.store.packs.probe import MAX_DIVERGENCE, N_TOP, Probe, compare, read_probe, take_probe

RNG = np.random.default_rng(11)
LOGITS = RNG.normal(0, 4, 5000).astype(np.float32)
HEX = re.compile("[0-9a-f]*")


def test_the_same_numbers_agree():
    """What is said again is no divergence at all."""
    verdict = compare(take_probe(3, LOGITS), LOGITS)
    assert verdict.agrees
    assert verdict.divergence < 1e-9
    assert verdict.same_top


def test_rounding_agrees():
    """Numbers as another count of threads makes them agree."""
    noise = RNG.normal(0, 0.2, LOGITS.size).astype(np.float32)
    assert compare(take_probe(3, LOGITS), LOGITS + noise).agrees


@pytest.mark.parametrize(
    "other",
    [
        RNG.normal(0, 4, LOGITS.size).astype(np.float32),
        np.full(LOGITS.size, np.nan, np.float32),
        np.where(LOGITS == LOGITS.max(), -9, LOGITS).astype(np.float32),
        LOGITS[:100],
        np.zeros(LOGITS.size, np.float32),
    ],
)
def test_other_numbers_do_not(other: np.ndarray):
    """Another distribution, no numbers, another best token, another vocabulary: no agreement."""
    verdict = compare(take_probe(3, LOGITS), other)
    assert not verdict.agrees
    assert verdict.divergence > MAX_DIVERGENCE or not verdict.same_top


def test_a_small_vocabulary():
    """Fewer tokens than a probe holds are all kept, and nothing is left over."""
    probe = take_probe(0, LOGITS[:10])
    assert 10 == len(probe.ids)
    assert compare(probe, LOGITS[:10]).agrees


def test_numbers_that_are_none_are_not_shipped():
    """A memory that makes no numbers is refused before it is signed."""
    with pytest.raises(ValueError, match="not finite"):
        take_probe(0, np.array([1, np.inf], np.float32))


def test_a_probe_survives_json():
    """Every bit comes back."""
    probe = take_probe(3, LOGITS)
    assert N_TOP == len(probe.ids)
    assert probe == read_probe(Fields("probe", probe.to_json()), HEX)


@pytest.mark.parametrize(
    "changes",
    [
        {"ids": ""},
        {"ids": "00"},
        {"ids": "00000000" * 65},
        {"logits": "0000c07f" * 64},
        {"log_sum": "0" * 15},
        {"log_sum": "000000000000f0ff"},
        {"token": -1},
        {"more": 1},
    ],
)
def test_odd_probes_are_refused(changes: dict[str, object]):
    """Wrong lengths, numbers that are none, members that nobody knows."""
    values = take_probe(3, LOGITS).to_json() | changes
    with pytest.raises(SnapshotError):
        read_probe(Fields("probe", values), HEX)


def test_logits_stand_in_order():
    """The likeliest token is first, and nothing is likelier than all together."""
    probe = take_probe(3, LOGITS)
    for odd in (
        Probe(3, probe.log_sum, probe.ids, probe.logits[::-1]),
        Probe(3, -100.0, probe.ids, probe.logits),
    ):
        with pytest.raises(SnapshotCorrupt, match="order"):
            read_probe(Fields("probe", odd.to_json()), HEX)
