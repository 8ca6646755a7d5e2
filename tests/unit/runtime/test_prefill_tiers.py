"""Prefiller with a tier that rounds: the cold run goes on from the rounded memory, as warm runs do."""

from __future__ import annotations

import numpy as np
import pytest

from edgellm.core import Tier
from edgellm.engines import scripted_memory
from edgellm.errors import SnapshotIncompatible
from edgellm.runtime.live import Live, Prompt
from edgellm.runtime.prefill import Prefilled
from edgellm.store.snapshots import Saved
from edgellm.store.state import KVState, PackedState

N_PREFIX = 150
ROUNDED = (Tier.Q8, Tier.Q6, Tier.Q5, Tier.Q4)


pytestmark = pytest.mark.usefixtures("wide_rows")


def prompt_of(n_tokens: int, n_prefix: int = N_PREFIX, last: int = 65) -> Prompt:
    """Make a prompt of which only the part behind the prefix depends on `last`."""
    tokens = [97 + n % 26 for n in range(n_prefix)] + [last] * (n_tokens - n_prefix)
    return Prompt(bytes(tokens).decode(), tuple(tokens), (n_prefix,) if n_prefix else ())


def keep(store, filled: Prefilled) -> None:
    """Save what a run left to be saved."""
    (unsaved,) = filled.unsaved
    assert isinstance(store.save(unsaved.fingerprint, unsaved.tokens, unsaved.state), Saved)


def calls(engine) -> list[str]:
    """Return what the engine was asked for, in order."""
    return [entry[0] for entry in engine.log]


@pytest.mark.parametrize("memory", ["dense", "window"])
@pytest.mark.parametrize("tier", ROUNDED)
def test_cold_and_warm_agree(prefiller, open_engine, store, tier: Tier, memory: str) -> None:
    """The rounded state is packed once: restored at the boundary, and handed over to be saved."""
    engine = open_engine(memory=memory)
    cold = prefiller(engine, store, tier=tier).run(prompt_of(180), None)
    assert ["decode", "capture", "restore", "decode"] == calls(engine)
    assert isinstance(cold.unsaved[0].state, PackedState)
    assert (tier.value, "miss: not stored; being stored") == (
        *(cold.snapshot.tier, cold.snapshot.reason),
    )
    keep(store, cold)
    other = open_engine(memory=memory)
    warm = prefiller(other, store, tier=tier).run(prompt_of(180), None)
    assert ["restore", "decode"] == calls(other)
    assert (tier.value, "hit", 150) == (
        *(warm.snapshot.tier, warm.snapshot.reason, warm.reused_tokens),
    )
    assert cold.logits.tobytes() == warm.logits.tobytes()


def test_rounding_shows(prefiller, open_engine, store) -> None:
    """The check above has teeth: an exact run gives other logits, and so does each other tier."""
    seen = {
        prefiller(open_engine(), store, tier=tier).run(prompt_of(180), None).logits.tobytes()
        for tier in (Tier.EXACT, *ROUNDED)
    }
    assert len(seen) == 5


@pytest.mark.parametrize("moves", [False, True])
def test_exact_is_as_it_was(prefiller, open_engine, store, moves: bool) -> None:
    """Nothing is packed, and nothing restored but where the engine needs it."""
    engine = open_engine(restore_moves=moves)
    filled = prefiller(engine, store).run(prompt_of(180), None)
    assert ["decode", "capture", *["restore"] * moves, "decode"] == calls(engine)
    assert isinstance(filled.unsaved[0].state, KVState)
    assert "exact" == filled.snapshot.tier


def test_an_engine_that_moves_is_restored_once(prefiller, open_engine, store) -> None:
    """The rounded memory lies as a warm run's does."""
    engine = open_engine(restore_moves=True)
    prefiller(engine, store, tier=Tier.Q4).run(prompt_of(180), None)
    assert ["decode", "capture", "restore", "decode"] == calls(engine)


def test_a_finer_file_is_used_and_named(prefiller, open_engine, store) -> None:
    """`tier` says what the answer rests on, not what was asked for."""
    keep(store, prefiller(open_engine(), store).run(prompt_of(180), None))
    use = prefiller(open_engine(), store, tier=Tier.Q4).run(prompt_of(180), None).snapshot
    assert ("exact", "hit") == (use.tier, use.reason)


def test_a_coarser_file_is_not_used_but_replaced(prefiller, open_engine, store) -> None:
    """Somebody who asks for exact bits decodes them, and the finer file takes the place."""
    keep(store, prefiller(open_engine(), store, tier=Tier.Q4).run(prompt_of(180), None))
    filled = prefiller(open_engine(), store).run(prompt_of(180), None)
    assert ("exact", "miss: kept as q4, exact is asked; being stored") == (
        *(filled.snapshot.tier, filled.snapshot.reason),
    )
    keep(store, filled)
    assert [Tier.EXACT] == [entry.tier for entry in store.entries()]


def test_live_memory_keeps_its_tier(prefiller, open_engine, store) -> None:
    """What goes on from a rounded prefix says so; what was never rounded does not."""
    engine = open_engine()
    reader = prefiller(engine, store, tier=Tier.Q5)
    first = prompt_of(180)
    keep(store, reader.run(first, None))
    live = Live(first.tokens, first.text, 180, (N_PREFIX,))
    back = reader.run(prompt_of(170, last=66), live)
    assert ("q5", "live: same prefix") == (back.snapshot.tier, back.snapshot.reason)
    other = open_engine()
    warm = prefiller(other, store, tier=Tier.Q5).run(prompt_of(170, last=66), None)
    assert back.logits.tobytes() == warm.logits.tobytes()
    short = reader.run(prompt_of(110, n_prefix=100, last=67), None)
    assert "not kept: 100 tokens are fewer than 128" == short.snapshot.reason
    assert "exact" == short.snapshot.tier


def test_what_cannot_be_packed_is_kept_exact(prefiller, open_engine, store, monkeypatch) -> None:
    """Rows too narrow to gain anything are saved as they are, under the name that is true of them."""
    monkeypatch.setattr(scripted_memory, "N_CHANNELS", 8)
    engine = open_engine()
    filled = prefiller(engine, store, tier=Tier.Q4).run(prompt_of(180), None)
    assert ["decode", "capture", "decode"] == calls(engine)
    assert "exact" == filled.snapshot.tier
    keep(store, filled)
    warm = prefiller(open_engine(), store, tier=Tier.Q4).run(prompt_of(180), None)
    assert ("exact", "hit") == (warm.snapshot.tier, warm.snapshot.reason)
    assert np.array_equal(filled.logits, warm.logits)


def test_without_a_store_nothing_is_rounded(prefiller, open_engine) -> None:
    """Off is off."""
    engine = open_engine()
    filled = prefiller(engine, None, tier=Tier.Q4).run(prompt_of(180), None)
    assert ["decode", "decode"] == calls(engine)
    assert "off" == filled.snapshot.tier


@pytest.mark.parametrize("error", [MemoryError(), SnapshotIncompatible("no")])
def test_a_rounded_state_that_does_not_go_back_in_is_decoded_again(
    prefiller, open_engine, store, error, monkeypatch
) -> None:
    """The answer goes on from the exact memory, and nothing is kept."""
    engine = open_engine()

    def refuse(_) -> None:
        engine.truncate(0)
        raise error

    monkeypatch.setattr(engine, "restore", refuse)
    filled = prefiller(engine, store, tier=Tier.Q4).run(prompt_of(180), None)
    assert ("exact", "miss: not stored; cannot be kept", ()) == (
        *(filled.snapshot.tier, filled.snapshot.reason, filled.unsaved),
    )
    assert [0, 0, N_PREFIX] == [entry[1] for entry in engine.log if entry[0] == "decode"]
