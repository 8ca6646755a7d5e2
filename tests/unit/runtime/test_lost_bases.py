"""Turns on a tier that rounds, where one was not stored: those after it are kept all the same."""

from __future__ import annotations

from typing import Any

import pytest

from edgellm.core import Done, Tier, Warn
from edgellm.errors import SnapshotIncompatible
from edgellm.runtime.live import Prompt
from edgellm.runtime.prefill import Prefiller
from edgellm.runtime.session import SessionOptions
from edgellm.runtime.storing import Storing
from edgellm.store.snapshots import Saved, Skipped

ANSWERS = tuple(f"This is answer number {n}." for n in range(50))
Q8_TURNS = SessionOptions(snapshot=Tier.Q8, snapshot_turns=True)


@pytest.fixture(autouse=True)
def _wide_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the engines rows of 64 channels: packing makes narrower ones no smaller."""
    monkeypatch.setattr("edgellm.engines.scripted_memory.N_CHANNELS", 64)


def told(session: Any, request: Any) -> tuple[Done, list[str]]:
    """Return the answer and what the user was warned of."""
    events = list(session.stream(request))
    assert session._writer.settle(30)
    return events[-1], [event.message for event in events if isinstance(event, Warn)]


@pytest.mark.parametrize("memory", ["dense", "window"])
@pytest.mark.parametrize("n_lost", [1, 3])
def test_one_that_was_not_stored_is_passed_over(
    start, ask, store, monkeypatch, memory: str, n_lost: int
) -> None:
    """Later ones lean on the one before it; the user is told once, and another session goes on."""
    session, engine = start(ANSWERS, options=Q8_TURNS, store=store, memory=memory)
    turns: list[str] = []
    warned: list[str] = []
    save, left = type(store).save, [n_lost]

    def lose(*given: Any, **how: Any) -> Any:
        left[0] -= 1
        return save(*given, **how) if left[0] < 0 else Skipped("lost", failed=True)

    for n in range(6):
        turns.append(f"Question {n}?")
        if n == 2:
            monkeypatch.setattr(type(store), "save", lose)
        done, said = told(session, ask(*turns))
        warned += said
        turns.append(done.text)
    outcomes = session._writer.outcomes[-4:]
    assert all(isinstance(outcome, Saved) for outcome in outcomes), outcomes
    hint = "a part of the conversation was not stored: what follows is kept "
    assert 1 == len([said for said in warned if said.startswith(hint)]), warned
    n_held = engine.position
    session.close()
    other, fresh = start(ANSWERS, options=Q8_TURNS, store=store, memory=memory)
    turns.append("And now?")
    again, _ = told(other, ask(*turns))
    assert ("hit", n_held) == (again.snapshot.code, again.usage.reused_tokens)
    assert n_held == fresh.decoded[0][0]


def test_a_conversation_longer_than_a_chain_is_kept_whole_now_and_then(start, ask, store) -> None:
    """No turn is lost because there were too many before it."""
    session, engine = start(ANSWERS, options=Q8_TURNS, store=store)
    turns: list[str] = []
    for n in range(24):
        turns.append(f"Question {n}?")
        done, said = told(session, ask(*turns))
        assert [] == said
        turns.append(done.text)
    assert all(isinstance(outcome, Saved) for outcome in session._writer.outcomes)
    n_held = engine.position
    session.close()
    other, _ = start(ANSWERS, options=Q8_TURNS, store=store)
    again, _ = told(other, ask(*turns, "And now?"))
    assert n_held == again.usage.reused_tokens


def test_a_memory_that_was_read_again_is_kept_whole(engine_types, store, monkeypatch) -> None:
    """Its rows are not those of the snapshot that was there before."""
    tokens = tuple(97 + n % 26 for n in range(300))
    prompt = Prompt(bytes(tokens).decode(), tokens, (140, 200, 260))
    engine = engine_types["recording"]("yes")
    engine.reserve(1000)
    storing = Storing(store, tier=Tier.Q8)
    restore, n_restores = engine.restore, [0]

    def fail_once(state: Any) -> None:
        n_restores[0] += 1
        if n_restores[0] == 2:
            engine.truncate(0)
            raise SnapshotIncompatible("no")
        restore(state)

    monkeypatch.setattr(engine, "restore", fail_once)
    filled = Prefiller(engine, storing).run(prompt, None)
    assert [(140, ""), (260, "")] == [(len(one.tokens), one.base_key) for one in filled.unsaved]
    assert 1 == len(storing.notes)
    storing.writer.submit(filled.unsaved, done=filled.release)
    assert storing.writer.close(30)
    assert all(isinstance(outcome, Saved) for outcome in storing.writer.outcomes)
    other = engine_types["recording"]("yes")
    other.reserve(1000)
    warm = Prefiller(other, Storing(store, tier=Tier.Q8)).run(prompt, None)
    assert 260 == warm.reused_tokens
    assert filled.logits.tobytes() == warm.logits.tobytes()
