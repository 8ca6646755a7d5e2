"""Packing a state: what is rounded and how far, what stays exact, and that it comes out the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgellm.core import Tier
from edgellm.errors import SnapshotCorrupt
from edgellm.store.format.codec import pack_state, unpack_state
from edgellm.store.format.runs import run_of
from edgellm.store.state import KVState, PackedSection, PackedState, Part, Section

TIERS = (Tier.Q8, Tier.Q6, Tier.Q5, Tier.Q4)
STEPS = {Tier.Q8: 254, Tier.Q6: 63, Tier.Q5: 31, Tier.Q4: 15}
N, WIDTH = 200, 128


def numbers(seed: int, n: int = N, width: int = WIDTH) -> np.ndarray:
    """Return f16 bits of numbers as caches hold them: channels and tokens of different sizes."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, width)) * rng.uniform(0.1, 9, width) + rng.normal(size=width)
    return (rows * rng.uniform(0.5, 2, (n, 1))).astype(np.float16).view(np.uint16)


def make(key: np.ndarray, value: np.ndarray, first: int = 0, kind: str = "f16") -> KVState:
    """Return a state of one layer."""
    n = key.shape[0]
    part_kind = "window" if first else "dense"
    sections = (Section(0, "K", kind, key), Section(0, "V", kind, value))
    return KVState(first + n, (Part(part_kind, first, n, sections),))


def floats(rows: np.ndarray) -> np.ndarray:
    """Return f16 bits as numbers."""
    return rows.view(np.float16).astype(np.float64)


def packed_runs(packed: PackedState) -> list[np.ndarray]:
    """Return the runs of a state whose sections were all packed."""
    sections = [section for part in packed.parts for section in part.sections]
    assert all(isinstance(section, PackedSection) for section in sections)
    return [section.run for section in sections]


@pytest.mark.parametrize("tier", TIERS)
def test_values_come_back_within_their_step(tier: Tier):
    """K is off by half a step of its channel at most, V by half a step of its token."""
    state = make(numbers(1), numbers(2))
    packed = pack_state(state, tier)
    assert isinstance(packed, PackedState)
    restored = unpack_state(packed)
    for section, back, axis in zip(
        state.parts[0].sections, restored.parts[0].sections, (0, 1), strict=True
    ):
        before, after = floats(section.rows), floats(back.rows)
        reach = 2 * np.abs(before).max(axis, keepdims=True)
        error = np.abs(before - after)
        assert (error <= 0.51 * reach / STEPS[tier] + 2e-3 * np.abs(before)).all()
        assert error[4:].max() > 0
        assert back.rows.dtype == np.uint16
        assert back.rows.flags.c_contiguous


@pytest.mark.parametrize(("first", "n_exact"), [(0, 4), (1, 3), (3, 1), (4, 0), (90, 0)])
def test_the_first_four_positions_stay_exact(first: int, n_exact: int):
    """Positions are absolute: a window that starts later has none of them."""
    state = make(numbers(3), numbers(4), first)
    restored = unpack_state(pack_state(state, Tier.Q4))
    for section, back in zip(state.parts[0].sections, restored.parts[0].sections, strict=True):
        same = (section.rows == back.rows).all(axis=1)
        assert same[:n_exact].all()
        assert not same[n_exact:].all()
        assert not same[n_exact]


@pytest.mark.parametrize("tier", TIERS)
def test_sizes_follow_from_the_shape_alone(tier: Tier):
    """The run of other numbers is as long, as long as the rule says, and a third to half of f16."""
    lengths = {}
    for seed in (1, 5):
        runs = packed_runs(pack_state(make(numbers(seed), numbers(seed + 1)), tier))
        for role, run in zip("KV", runs, strict=True):
            lengths.setdefault(role, set()).add(run.size)
            assert run.size == run_of(tier, role, (N, WIDTH), 0).n_bytes
    assert all(len(sizes) == 1 for sizes in lengths.values())
    total = sum(sizes.pop() for sizes in lengths.values()) / (2 * 2 * N * WIDTH)
    limit = {Tier.Q8: 0.54, Tier.Q6: 0.45, Tier.Q5: 0.39, Tier.Q4: 0.36}[tier]  # 200 tokens only
    assert limit - 0.03 < total < limit


@pytest.mark.parametrize("tier", TIERS)
def test_transposed_and_read_only_views_pack_alike(tier: Tier):
    """An engine whose values are channel-major pays with time, not with other numbers."""
    key, value = numbers(6), numbers(7)
    turned = np.ascontiguousarray(value.T).T
    turned.flags.writeable = False
    wide = np.zeros((N, 2 * WIDTH), np.uint16)
    wide[:, ::2] = key
    plain = packed_runs(pack_state(make(key, value), tier))
    views = packed_runs(pack_state(make(wide[:, ::2], turned), tier))
    assert all(np.array_equal(a, b) for a, b in zip(plain, views, strict=True))


def test_unpacking_twice_gives_the_same_bits_in_other_memory(snapshot_files: Any):
    """What is packed is not changed by being read."""
    packed = pack_state(make(numbers(8), numbers(9)), Tier.Q5)
    first, second = unpack_state(packed), unpack_state(packed)
    assert snapshot_files.same(first, second)
    first.parts[0].sections[0].rows[:] = 0
    assert snapshot_files.same(second, unpack_state(packed))


def test_packing_changes_nothing_in_its_input(snapshot_files: Any):
    """The captured state may be in use elsewhere."""
    state = make(numbers(10), numbers(11))
    copies = make(numbers(10), numbers(11))
    pack_state(state, Tier.Q4)
    assert snapshot_files.same(copies, state)


def with_bits(bits: int) -> np.ndarray:
    """Return good numbers but for one."""
    rows = numbers(12)
    rows[100, 60] = bits
    return rows


NOT_PACKED = {
    "bf16": make(numbers(1), numbers(2), kind="bf16"),
    "f32": make(numbers(1).astype(np.uint32), numbers(2).astype(np.uint32), kind="f32"),
    "q8_0": make(np.zeros((N, 68), np.uint8), np.zeros((N, 68), np.uint8), kind="q8_0"),
    "infinite": make(with_bits(0x7C00), with_bits(0xFC00)),
    "nan": make(with_bits(0x7E00), with_bits(0xFFFF)),
    "no_values": KVState(N, (Part("dense", 0, N, (Section(0, "K", "f16", numbers(1)),)),)),
    "opaque": KVState(
        9, (Part("opaque", 0, 9, (Section(0, "blob", "u8", np.zeros((1, 999), np.uint8)),)),)
    ),
    "only_sinks": make(numbers(1, 4), numbers(2, 4)),
    "narrow": make(numbers(1, width=8), numbers(2, width=8)),
}


@pytest.mark.parametrize("case", sorted(NOT_PACKED))
@pytest.mark.parametrize("tier", [Tier.Q8, Tier.Q4])
def test_what_cannot_be_packed_stays_as_it_is(case: str, tier: Tier):
    """Nothing to round leaves an exact state, which is kept under that name."""
    assert pack_state(NOT_PACKED[case], tier) is NOT_PACKED[case]


def test_exact_keeps_the_state_itself():
    """No copy, no rounding."""
    state = make(numbers(1), numbers(2))
    assert pack_state(state, Tier.EXACT) is state


def test_one_odd_section_stays_exact_among_packed_ones():
    """Each section is judged by itself, and its rows are not copied."""
    state = make(with_bits(0x7C00), numbers(2))
    packed = pack_state(state, Tier.Q6)
    assert isinstance(packed, PackedState)
    key, value = packed.parts[0].sections
    assert key is state.parts[0].sections[0]
    assert isinstance(value, PackedSection)
    assert unpack_state(packed).parts[0].sections[0] is key


def test_the_largest_numbers_do_not_become_infinite():
    """Where the end of a grid would leave f16, the section stays exact or comes back finite."""
    top = np.full((N, WIDTH), 0x7BFF, np.uint16)
    top[::2] = 0xFBFF
    for tier in TIERS:
        restored = unpack_state_of(pack_state(make(top, top.copy()), tier))
        for section in restored.parts[0].sections:
            assert np.isfinite(floats(section.rows)).all()


def unpack_state_of(kept: KVState | PackedState) -> KVState:
    """Return the state a reader would get."""
    return unpack_state(kept) if isinstance(kept, PackedState) else kept


@pytest.mark.parametrize("piece", ["scale", "minimum"])
@pytest.mark.parametrize("bits", [0x7C00, 0xFC00, 0x7E00, 0x7BFF, 0xFBFF])
def test_a_scale_that_could_mean_infinity_is_damage(piece: str, bits: int):
    """A file made to deceive gives no NaN to an engine, whatever its codes are."""
    packed = pack_state(make(numbers(1), numbers(2)), Tier.Q4)
    section = packed.parts[0].sections[1]
    run = run_of(Tier.Q4, "V", section.shape, 0)
    getattr(run, piece).halves(section.run)[-1, -1] = bits
    if piece == "minimum" and bits in {0x7BFF, 0xFBFF}:
        # Finite alone; with the largest scale beside it, it is not.
        run.scale.halves(section.run)[-1, -1] = 0x7000 if bits == 0x7BFF else 0xF000
    with pytest.raises(SnapshotCorrupt, match="layer 0 V: a scale stands for"):
        unpack_state(packed)


def test_an_exact_row_of_a_packed_section_is_finite():
    """Nothing that packing would have refused comes out of it."""
    packed = pack_state(make(numbers(1), numbers(2)), Tier.Q4)
    section = packed.parts[0].sections[0]
    run_of(Tier.Q4, "K", section.shape, 0).exact.halves(section.run)[3, 1] = 0xFC00
    with pytest.raises(SnapshotCorrupt, match="layer 0 K: a number in it is not finite"):
        unpack_state(packed)


def test_padding_between_the_pieces_must_be_zero():
    """Not a byte of a run is without meaning."""
    key = numbers(1, width=33)  # rows of 66 bytes leave gaps
    packed = pack_state(make(key, key.copy()), Tier.Q4)
    assert isinstance(packed, PackedState)
    for section in packed.parts[0].sections:
        run = run_of(Tier.Q4, section.role, section.shape, 0)
        gaps = [gap for gap in run.paddings(section.run) if gap.size]
        assert gaps
        for gap in gaps:
            gap[-1] = 1
            with pytest.raises(SnapshotCorrupt, match="padding in it is not zero"):
                unpack_state(packed)
            gap[-1] = 0
    unpack_state(packed)


def test_a_run_of_another_length_is_damage():
    """Places are computed, so a run that is too short is noticed before it is read."""
    section = pack_state(make(numbers(1), numbers(2)), Tier.Q4).parts[0].sections[0]
    short = PackedSection(0, "K", "f16", section.shape, section.run[:-1])
    part = pack_state(make(numbers(1), numbers(2)), Tier.Q4).parts[0]
    damaged = PackedState(N, (type(part)(part.kind, 0, N, (short,)),), Tier.Q4)
    with pytest.raises(SnapshotCorrupt, match="bytes cannot be a packed section"):
        unpack_state(damaged)
