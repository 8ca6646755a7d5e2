"""The same tokens cut elsewhere: never each other's snapshots, because the bits are others."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from edgellm.core import Tier
from edgellm.engines import scripted_memory
from edgellm.runtime.live import Live, Prompt, common_prefix

N_TOKENS = 320
WAYS = ((290,), (130, 290), (140, 290), (130, 200, 290), (40, 290))
TOKENS = tuple(97 + n % 26 for n in range(N_TOKENS))


@pytest.fixture(autouse=True)
def _wide_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the engines rows of 64 channels: packing makes narrower ones no smaller."""
    monkeypatch.setattr(scripted_memory, "N_CHANNELS", 64)


def prompt_of(cuts: tuple[int, ...]) -> Prompt:
    """Make the one prompt, cut one way."""
    return Prompt(bytes(TOKENS).decode(), TOKENS, cuts)


@pytest.fixture
def read(engine_types, prefiller):
    """Return a function that reads the prompt cut one way in a session of its own, and saves."""

    def read_one(cuts: tuple[int, ...], store: Any, **options: Any) -> tuple[Any, Any]:
        tier = options.pop("tier", Tier.EXACT)
        engine = engine_types["recording"]("yes", **options)
        engine.reserve(1000)
        reader = prefiller(engine, store, tier=tier)
        filled = reader.run(prompt_of(cuts), None)
        if filled.unsaved:
            assert reader._storing.writer.submit(filled.unsaved, done=filled.release)
            assert reader._storing.writer.settle(30)
        return filled, engine

    return read_one


@pytest.mark.parametrize(("stored", "asked"), [*itertools.permutations(WAYS, 2)])
@pytest.mark.parametrize("memory", ["dense", "window"])
def test_only_what_was_cut_alike_is_used(
    read, store, stored: tuple[int, ...], asked: tuple[int, ...], memory: str
) -> None:
    """In both directions: up to the last cut that both share; off, cold and warm are equal."""
    off, engine = read(asked, None, memory=memory)
    read(stored, store, memory=memory)
    n_shared = stored[: common_prefix(stored, asked)][-1:] or (0,)
    first, _ = read(asked, store, memory=memory)
    assert (n_shared[0] if n_shared[0] >= 128 else 0) == first.reused_tokens
    warm, again = read(asked, store, memory=memory)
    assert (290, "hit", "hit") == (warm.reused_tokens, warm.snapshot.reason, warm.snapshot.code)
    assert engine.decoded[-1:] == again.decoded
    for found in (first, warm):
        assert off.logits.tobytes() == found.logits.tobytes()
    assert first.snapshot.key == warm.snapshot.key
    other, _ = read(stored, store, memory=memory)
    assert "hit" == other.snapshot.reason
    assert other.logits.tobytes() != warm.logits.tobytes()  # the engine does see where it was cut


@pytest.mark.parametrize("tier", [Tier.Q8, Tier.Q4])
def test_rounded_ones_are_told_apart_too(read, store, tier: Tier) -> None:
    """Cold and warm are equal, whatever else is stored."""
    cold, _ = read((130, 290), store, tier=tier)
    read((140, 290), store, tier=tier)
    read((290,), store, tier=tier)
    warm, _ = read((130, 290), store, tier=tier)
    assert "hit" == warm.snapshot.reason
    assert cold.logits.tobytes() == warm.logits.tobytes()


def test_live_memory_that_was_cut_elsewhere_gives_way_to_the_store(
    read, store, engine_types, prefiller
) -> None:
    """One session asks both ways: what is live is of no use, what was kept before is."""
    read((130, 290), store)
    engine = engine_types["recording"]("yes")
    engine.reserve(1000)
    reader = prefiller(engine, store)
    reader.run(prompt_of((290,)), None).release()
    live = Live(TOKENS, bytes(TOKENS).decode(), N_TOKENS, (290,))
    other = Prompt(bytes(TOKENS).decode(), (*TOKENS[:-1], 65), (130, 290))
    found = reader.run(other, live)
    assert (290, "hit") == (found.reused_tokens, found.snapshot.reason)


def test_one_process_does_not_wait_for_another_that_cuts_elsewhere(
    engine_types, prefiller, store
) -> None:
    """What the other is about to store would be of no use."""
    readers = []
    for cuts in ((130, 290), (140, 290)):
        engine = engine_types["recording"]("yes")
        engine.reserve(1000)
        readers.append(prefiller(engine, store).run(prompt_of(cuts), None))
    for filled in readers:
        assert filled.release is not None
        filled.release()
