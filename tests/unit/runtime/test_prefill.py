"""Prefiller: which calls bring a prompt into memory, and what is said about it."""

from __future__ import annotations

import pytest

from edgellm.engines.scripted import CHATML
from edgellm.errors import Cancelled, EngineFailed
from edgellm.runtime.live import Live, Prompt

N_PREFIX = 150


@pytest.fixture
def engine(engine_types):
    """Give an engine with room for 1000 tokens."""
    engine = engine_types["recording"]("yes")
    engine.reserve(1000)
    return engine


def prompt_of(n_tokens: int, n_prefix: int = N_PREFIX, last: int = 65) -> Prompt:
    """Make a prompt of which only the part behind the prefix depends on `last`."""
    tokens = [97 + n % 26 for n in range(n_prefix)] + [last] * (n_tokens - n_prefix)
    return Prompt(bytes(tokens).decode(), tuple(tokens), (n_prefix,) if n_prefix else ())


def live_in(engine, prompt: Prompt) -> Live:
    """Describe a memory that holds exactly a prompt."""
    assert engine.position == len(prompt.tokens)
    return Live(prompt.tokens, prompt.text, len(prompt.tokens), prompt.cuts)


def cuts(engine) -> list[tuple[int, int]]:
    """Return start and length of each call of `decode`."""
    return [(start, len(tokens)) for start, tokens, _ in engine.decoded]


def test_two_segments_cut_at_the_boundary(prefiller, engine) -> None:
    """Without a store as well: that is what makes off, cold and warm alike."""
    filled = prefiller(engine, None).run(prompt_of(180), None)
    assert [(0, 150), (150, 30)] == cuts(engine)
    assert (0, ()) == (filled.reused_tokens, filled.unsaved)
    assert ("off", "", "off: asked") == (
        *(filled.snapshot.tier, filled.snapshot.key, filled.snapshot.reason),
    )
    assert filled.logits.tobytes() == engine.decoded[-1][2]
    assert (259,) == filled.logits.shape


def test_one_segment_without_a_prefix(prefiller, engine, store) -> None:
    """Nothing is stable, so nothing can be kept."""
    filled = prefiller(engine, store).run(prompt_of(180, 0), None)
    assert [(0, 180)] == cuts(engine)
    assert ("no stable prefix", ()) == (filled.snapshot.reason, filled.unsaved)


@pytest.mark.parametrize(("n_prefix", "is_kept"), [(127, False), (128, True)])
def test_the_shortest_prefix_that_is_kept(
    prefiller, engine, store, n_prefix: int, is_kept: bool
) -> None:
    """128 tokens by default; a shorter one is neither looked up nor captured."""
    filled = prefiller(engine, store).run(prompt_of(180, n_prefix), None)
    assert is_kept == bool(filled.unsaved) == bool(filled.snapshot.key)
    assert is_kept == any(entry[0] == "capture" for entry in engine.log)
    if not is_kept:
        assert "not kept: 127 tokens are fewer than 128" == filled.snapshot.reason


def test_what_is_to_be_saved_is_the_state_of_the_prefix(prefiller, engine, store) -> None:
    """Captured at the boundary, under the fingerprint and the tokens it belongs to."""
    prompt = prompt_of(180)
    filled = prefiller(engine, store).run(prompt, None)
    (unsaved,) = filled.unsaved
    assert prompt.tokens[:N_PREFIX] == unsaved.tokens
    assert (N_PREFIX, engine.fingerprint()) == (unsaved.state.n_tokens, unsaved.fingerprint)
    assert store.key(unsaved.fingerprint, unsaved.tokens) == filled.snapshot.key
    assert ["decode", "capture", "decode"] == [entry[0] for entry in engine.log]
    assert [] == list(store.entries())  # nothing is written here


def test_a_stored_prefix_is_restored(prefiller, engine, store) -> None:
    """Another question finds it; only what is behind the prefix is decoded."""
    reader = prefiller(engine, store)
    cold = reader.run(prompt_of(180), None)
    (unsaved,) = cold.unsaved
    store.save(unsaved.fingerprint, unsaved.tokens, unsaved.state)
    engine.log.clear()
    warm = reader.run(prompt_of(170, last=66), None)
    assert [("restore", 150), ("decode", 150)] == [entry[:2] for entry in engine.log]
    assert (150, "hit", ()) == (warm.reused_tokens, warm.snapshot.reason, warm.unsaved)
    assert warm.restore_s > 0


def test_live_memory_comes_before_the_disk(prefiller, engine, store) -> None:
    """What continues decodes what is new; what shares the prefix goes back to it."""
    reader = prefiller(engine, store)
    first = prompt_of(180)
    reader.run(first, None)
    longer = prompt_of(200)
    filled = reader.run(longer, live_in(engine, first))
    assert (180, "live: continues the conversation") == (
        *(filled.reused_tokens, filled.snapshot.reason),
    )
    filled = reader.run(prompt_of(190, last=66), live_in(engine, longer))
    assert (150, "live: same prefix") == (filled.reused_tokens, filled.snapshot.reason)
    assert [(180, 20), (150, 40)] == cuts(engine)[2:]


def test_live_memory_with_snapshots_off_says_that_they_are(prefiller, engine) -> None:
    """The reason is about the store; the tokens kept are in the usage."""
    reader = prefiller(engine, None, off_reason="recurrent memory")
    first = prompt_of(180)
    reader.run(first, None)
    filled = reader.run(prompt_of(200), live_in(engine, first))
    assert (180, "off: recurrent memory") == (filled.reused_tokens, filled.snapshot.reason)


def test_memory_that_cannot_be_cut_comes_from_the_disk(prefiller, engine_types, store) -> None:
    """A window that was rolled on falls back to the snapshot, and without one to decoding."""
    engine = engine_types["whole"]("yes")
    engine.reserve(1000)
    for kept in (store, None):
        reader = prefiller(engine, kept)
        first = prompt_of(180)
        filled = reader.run(first, None)
        if filled.unsaved:
            (unsaved,) = filled.unsaved
            store.save(unsaved.fingerprint, unsaved.tokens, unsaved.state)
        engine.log.clear()
        other = reader.run(prompt_of(190, last=66), live_in(engine, first))
        if kept is not None:
            assert ("hit", [(150, 40)]) == (other.snapshot.reason, cuts(engine))
        else:
            assert (0, [(0, 150), (150, 40)]) == (other.reused_tokens, cuts(engine))


@pytest.mark.parametrize("error", [EngineFailed, Cancelled])
def test_errors_of_the_engine_come_through(prefiller, engine, store, error) -> None:
    """The caller decides what becomes of the answer."""
    if error is Cancelled:
        engine.cancel()
    else:
        engine._fail_at = 2
    with pytest.raises(error):
        prefiller(engine, store).run(prompt_of(180), None)


def test_no_room_for_a_copy_is_no_failure(prefiller, engine_types, store) -> None:
    """A state too large to be copied is not kept; the answer goes on."""

    class Full(engine_types["recording"]):
        def capture(self) -> object:
            raise MemoryError

    engine = Full("yes", chat_template=CHATML)
    engine.reserve(1000)
    filled = prefiller(engine, store).run(prompt_of(180), None)
    assert "miss: not stored; cannot be kept" == filled.snapshot.reason
    assert [(0, 150), (150, 30)] == cuts(engine)


def test_a_state_for_which_there_is_no_memory_is_a_miss(
    prefiller, engine, engine_types, store, monkeypatch
) -> None:
    """The prompt is read; the file stays."""
    first = prefiller(engine, store).run(prompt_of(180), None)
    (unsaved,) = first.unsaved
    store.save(unsaved.fingerprint, unsaved.tokens, unsaved.state)
    other = engine_types["recording"]("yes")
    other.reserve(1000)

    def refuse(_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(other, "restore", refuse)
    filled = prefiller(other, store).run(prompt_of(180), None)
    assert filled.snapshot.reason.startswith("miss: not enough memory to restore it")
    assert "restore_failed" == filled.snapshot.code
    assert first.logits.tobytes() == filled.logits.tobytes()
    assert 1 == len(list(store.entries()))
