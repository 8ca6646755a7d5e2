"""Prefiller over several cuts: which are restored, which are kept, and what each leans on."""

from __future__ import annotations

from typing import Any

import pytest

from edgellm.core import Tier
from edgellm.runtime.live import Live, Prompt
from edgellm.runtime.prefill import Prefilled
from edgellm.store.snapshots import Hit, Saved, SnapshotStore
from edgellm.store.state import KVState

CUTS = (130, 200, 290)
N_TOKENS = 320
MEMORIES = ("dense", "window")


pytestmark = pytest.mark.usefixtures("wide_rows")


def prompt_of(cuts: tuple[int, ...] = CUTS, changed_from: int = 1000, last: int = 65) -> Prompt:
    """Make a prompt whose tokens are others from some place on, and behind the last cut."""
    tokens = [97 + n % 26 for n in range(N_TOKENS)]
    tokens[changed_from:] = [48 + n % 10 for n in range(len(tokens[changed_from:]))]
    tokens[cuts[-1] :] = [last] * (N_TOKENS - cuts[-1])
    return Prompt(bytes(tokens).decode(), tuple(tokens), cuts)


def keep(store: SnapshotStore, reader: Any, filled: Prefilled) -> list[Saved]:
    """Save what a run left to be saved, as the session does."""
    writer = reader._storing.writer
    n_before = len(writer.outcomes)
    if filled.unsaved:
        assert writer.submit(filled.unsaved, done=filled.release)
    assert writer.settle(30)
    saved = writer.outcomes[n_before:]
    assert all(isinstance(outcome, Saved) for outcome in saved), saved
    return list(saved)


def calls(engine) -> list[tuple[Any, ...]]:
    """Return what the engine was asked for: the call and where it began."""
    return [entry[:2] for entry in engine.log]


def test_segments_are_cut_at_every_cut_always(open_engine, prefiller) -> None:
    """Also where nothing is kept."""
    engine = open_engine()
    prefiller(engine, None).run(prompt_of(), None)
    assert [("decode", n) for n in (0, *CUTS)] == calls(engine)


def test_rows_that_stay_are_copied_out_once(open_engine, prefiller, store) -> None:
    """One capture at the last cut; the shorter prefixes are its first rows, to the bit."""
    engine = open_engine()
    filled = prefiller(engine, store).run(prompt_of(), None)
    assert [*(("decode", n) for n in (0, 130, 200)), ("capture", 290), ("decode", 290)] == (
        calls(engine)
    )
    assert list(CUTS) == [len(one.tokens) for one in filled.unsaved]
    other = open_engine()
    other.decode(prompt_of().tokens[:130])
    expected, found = other.capture(), filled.unsaved[0].state
    assert isinstance(found, KVState)
    for part, same in zip(expected.parts, found.parts, strict=True):
        for section, head in zip(part.sections, same.sections, strict=True):
            assert section.rows.tobytes() == head.rows.tobytes()


def test_windows_are_copied_out_at_every_cut(open_engine, prefiller, store) -> None:
    """Later rows push earlier ones out."""
    engine = open_engine(memory="window")
    prefiller(engine, store).run(prompt_of(), None)
    expected = [call for n, cut in ((0, 130), (130, 200), (200, 290)) for call in (n, cut)]
    assert [*expected, 290] == [entry[1] for entry in engine.log]


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("tier", [Tier.EXACT, Tier.Q8, Tier.Q4])
@pytest.mark.parametrize("moves", [False, True])
def test_from_every_cut_on_the_bits_are_those_of_a_cold_run(
    open_engine, prefiller, store, memory: str, tier: Tier, moves: bool
) -> None:
    """Whatever of the chain is stored: the same calls on the same bits, and what is missing is kept."""
    options = {"memory": memory, "restore_moves": moves}
    engine = open_engine(**options)
    reader = prefiller(engine, store, tier=tier)
    cold = reader.run(prompt_of(), None)
    assert "miss: not stored; being stored" == cold.snapshot.reason
    saved = keep(store, reader, cold)
    assert 3 == len(saved)
    for n_left in (3, 2, 1, 0):
        for one in saved[n_left:]:
            one.path.unlink(missing_ok=True)
        other = open_engine(**options)
        warm = prefiller(other, store, tier=tier).run(prompt_of(), None)
        if warm.release is not None:
            warm.release()  # nobody writes it here
        n_reused = CUTS[n_left - 1] if n_left else 0
        assert n_reused == warm.reused_tokens
        assert list(CUTS[n_left:]) == [len(one.tokens) for one in warm.unsaved]
        assert engine.decoded[n_left:] == other.decoded
        assert cold.logits.tobytes() == warm.logits.tobytes()
        part = f": {n_reused} of 290 tokens; being stored"
        expected = {3: "hit", 0: "miss: not stored; being stored"}.get(n_left, f"hit{part}")
        assert expected == warm.snapshot.reason
        assert ("hit" if n_left else "not_stored") == warm.snapshot.code


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("tier", [Tier.EXACT, Tier.Q4])
def test_a_document_that_changed_leaves_those_before_it(
    open_engine, prefiller, store, memory: str, tier: Tier
) -> None:
    """The chain goes on from the last one that is equal, and both branches are found later."""
    reader = prefiller(open_engine(memory=memory), store, tier=tier)
    keep(store, reader, reader.run(prompt_of(), None))
    changed = prompt_of(changed_from=210)
    other = prefiller(open_engine(memory=memory), store, tier=tier)
    branch = other.run(changed, None)
    assert 200 == branch.reused_tokens
    assert [290] == [len(one.tokens) for one in branch.unsaved]
    (saved,) = keep(store, other, branch)
    parents = {info.n_tokens: info.parent for info in store.entries() if info.path == saved.path}
    assert 200 == parents[290].n_tokens
    for prompt in (prompt_of(), changed):
        warm = prefiller(open_engine(memory=memory), store, tier=tier).run(prompt, None)
        off = prefiller(open_engine(memory=memory), None).run(prompt, None)
        assert 290 == warm.reused_tokens
        assert (tier is Tier.EXACT) == (off.logits.tobytes() == warm.logits.tobytes())


def test_a_chain_takes_little_more_than_its_longest(open_engine, prefiller, store) -> None:
    """Each file holds what the one before has not."""
    reader = prefiller(open_engine(), store)
    saved = keep(store, reader, reader.run(prompt_of(), None))
    alone = SnapshotStore(store.root.parent / "alone")
    other = prefiller(open_engine(), alone)
    (whole,) = keep(alone, other, other.run(prompt_of((290,)), None))
    assert sum(one.n_bytes for one in saved) < whole.n_bytes + 3 * 4096


@pytest.mark.parametrize("kind", ["recording", "whole"])
@pytest.mark.parametrize("memory", MEMORIES)
def test_live_memory_goes_back_to_the_longest_cut_it_shares(
    open_engine, prefiller, store, kind: str, memory: str
) -> None:
    """Unless a longer one is stored, or it cannot be cut back: then the store has it."""
    engine = open_engine(kind, memory=memory)
    reader = prefiller(engine, store)
    first = prompt_of()
    keep(store, reader, reader.run(first, None))
    live = Live(first.tokens, first.text, N_TOKENS, CUTS)
    changed = prompt_of(changed_from=210)
    branch = reader.run(changed, live)
    assert 200 == branch.reused_tokens
    code = "live" if kind == "recording" else "hit"
    assert code == branch.snapshot.code
    keep(store, reader, branch)
    live = Live(changed.tokens, changed.text, N_TOKENS, CUTS)
    back = reader.run(first, live)  # 290 tokens are stored, 200 live
    assert (290, "hit", "hit") == (*(back.reused_tokens, back.snapshot.reason, back.snapshot.code),)
    fresh = prefiller(open_engine(memory=memory), None).run(first, None)
    assert fresh.logits.tobytes() == back.logits.tobytes()


def test_what_live_memory_holds_is_leant_on(open_engine, prefiller, store) -> None:
    """The longer prefix is a delta on the one that this session saved before."""
    engine = open_engine()
    reader = prefiller(engine, store)
    first = prompt_of()
    keep(store, reader, reader.run(first, None))
    branch = reader.run(prompt_of(changed_from=210), Live(first.tokens, first.text, N_TOKENS, CUTS))
    assert "live: same prefix, 200 of 290 tokens; being stored" == branch.snapshot.reason
    (saved,) = keep(store, reader, branch)
    found = store.lookup(branch.unsaved[0].fingerprint, branch.unsaved[0].tokens, cuts=CUTS)
    assert isinstance(found, Hit)
    assert (200, saved.anchor) == (found.info.parent.n_tokens, found.anchor)


def test_short_cuts_are_not_kept(open_engine, prefiller, store) -> None:
    """They are cuts all the same."""
    engine = open_engine()
    filled = prefiller(engine, store).run(prompt_of((40, 100, 290)), None)
    assert [290] == [len(one.tokens) for one in filled.unsaved]
    assert [0, 40, 100, 290, 290] == [entry[1] for entry in engine.log]


@pytest.mark.parametrize("soft", [7, 64])
def test_what_rests_on_other_rounding_says_so(open_engine, prefiller, store, soft: int) -> None:
    """A chain begun with another batch size is never taken for one of this batch size alone."""
    reader = prefiller(open_engine(n_batch=512), store)
    saved = keep(store, reader, reader.run(prompt_of(), None))
    saved[2].path.unlink()
    other = prefiller(open_engine(n_batch=soft), store)
    keep(store, other, other.run(prompt_of(), None))
    warm = prefiller(open_engine(n_batch=soft), store).run(prompt_of(), None)
    assert f"n_batch: mixed, now {soft}" in warm.snapshot.reason
