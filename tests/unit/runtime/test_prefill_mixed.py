"""Prefiller on a memory whose rounding is of two settings: everything made on top of it says so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from edgellm.core import Tier
from edgellm.runtime.keeper import Held
from edgellm.runtime.live import Live, Prompt
from edgellm.runtime.prefill import Prefiller
from edgellm.runtime.storing import Storing
from edgellm.store.snapshots import Saved, SnapshotStore

TOKENS = tuple(97 + n % 26 for n in range(200))


def with_threads(engine: Any, n_threads: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let an engine say how many threads it has."""
    plain = engine.fingerprint()
    mixed = replace(plain, soft=(("n_threads", str(n_threads)),))
    monkeypatch.setattr(engine, "fingerprint", lambda: mixed)
    return engine


@pytest.fixture
def open_reader(engine_types, store, monkeypatch):
    """Return a function that opens an engine with so many threads, and a prefiller that keeps turns."""

    def open_one(n_threads: int, **options: Any) -> tuple[Any, Prefiller]:
        engine = engine_types["recording"]("yes", **options)
        engine.reserve(1000)
        storing = Storing(store, tier=Tier.EXACT)
        with_threads(engine, n_threads, monkeypatch)
        return engine, Prefiller(engine, storing, keeps_turns=True)

    return open_one


def prompt_of(tokens: tuple[int, ...], *turns: int) -> Prompt:
    """Make a prompt that is cut at 150 tokens."""
    return Prompt(bytes(tokens).decode(), tokens, (150,), (), turns)


def live_of(tokens: tuple[int, ...]) -> Live:
    """Say that the memory holds an answered prompt."""
    return Live(tokens, bytes(tokens).decode(), len(tokens), (150,))


def threads(unsaved: Any) -> str:
    """Return what a state says of its threads."""
    return dict(unsaved.fingerprint.soft)["n_threads"]


def test_a_whole_conversation_behind_a_mixed_prefix_is_mixed(open_reader, store) -> None:
    """Its first answer, the prompt after it, and all later ones."""
    _, first = open_reader(2)
    (unsaved,) = first.run(prompt_of(TOKENS), None).unsaved
    assert "2" == threads(unsaved)
    assert isinstance(store.save(unsaved.fingerprint, unsaved.tokens, unsaved.state), Saved)
    engine, reader = open_reader(1)
    assert "hit, rounding may differ" in reader.run(prompt_of(TOKENS), None).snapshot.reason
    said = [threads(reader.keep_answer(live_of(TOKENS)))]
    tokens = TOKENS
    for _ in range(2):
        before, tokens = tokens, (*tokens, *range(97, 117))
        filled = reader.run(prompt_of(tokens, len(tokens) - 5), live_of(before))
        assert "live" == filled.snapshot.code
        said += [*map(threads, filled.unsaved), threads(reader.keep_answer(live_of(tokens)))]
    assert ["mixed"] * 5 == said
    again = reader.run(prompt_of(TOKENS[:190], 160), live_of(tokens))
    assert ("live", ["mixed"]) == (again.snapshot.code, [threads(one) for one in again.unsaved])
    assert 0 < engine.position


def test_what_was_read_anew_is_plain(open_reader, store: SnapshotStore) -> None:
    """Nothing of the mixed memory is left."""
    _, first = open_reader(2)
    (unsaved,) = first.run(prompt_of(TOKENS), None).unsaved
    store.save(unsaved.fingerprint, unsaved.tokens, unsaved.state)
    _, reader = open_reader(1)
    reader.run(prompt_of(TOKENS), None)
    other = tuple(reversed(TOKENS))
    filled = reader.run(prompt_of(other), live_of(TOKENS))
    assert ["1"] == [threads(one) for one in filled.unsaved]
    assert "1" == threads(reader.keep_answer(live_of(other)))


def test_what_was_cut_back_is_as_rounded_as_before() -> None:
    """The rows before a cut rest on the tier of the snapshot they came from, wherever it ended."""
    held = Held()
    held.put(200, Tier.Q4, ("n_threads",))
    held.keep(100)
    assert (Tier.Q4, ("n_threads",)) == (held.tier, held.changed)
    held.put(150, Tier.Q8)
    held.keep(120)
    assert Tier.Q4 == held.tier
    held.keep(0)
    assert (Tier.EXACT, ()) == (held.tier, held.changed)
