"""The scripted engine keeps the promises of the engine protocol."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edgellm.engines.scripted import BOS, IM_END, IM_START, ScriptedEngine
from edgellm.errors import Cancelled, EngineFailed, PromptTooLong, SnapshotIncompatible
from edgellm.store.state import PartOutline, SectionOutline

if TYPE_CHECKING:
    from edgellm.store.state import KVState, Section

SYSTEM = "<|im_start|>system\nBe brief and kind.<|im_end|>\n"
QUESTION = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def ready(script="answer", **options: Any):
    engine = ScriptedEngine(script, **options)
    engine.reserve(256)
    return engine


def tokens(engine, text):
    return engine.tokenize(text, special=True, add_bos=True)


def greedy(engine, logits, n_tokens=32):
    """Answer greedily until the end token."""
    said = bytearray()
    for _ in range(n_tokens):
        token = int(logits[-1].argmax())
        if token == IM_END:
            break
        said.append(token)
        logits = engine.decode([token])
    return said.decode()


@pytest.mark.parametrize("memory", ["dense", "window", "hybrid", "recurrent"])
def test_the_greedy_answer_is_the_script(memory):
    """In ChatML, for every kind of memory."""
    engine = ready("Grüße!", memory=memory)
    assert "Grüße!" == greedy(engine, engine.decode(tokens(engine, SYSTEM + QUESTION)))


def test_each_assistant_turn_has_its_own_script():
    """The number of assistant headers in the memory chooses the turn; the last repeats."""
    engine = ready(["one", "two"])
    answers = [greedy(engine, engine.decode(tokens(engine, QUESTION))) for _ in range(3)]
    assert ["one", "two", "two"] == answers


def test_without_a_template_the_answer_follows_the_prompt():
    """Plain text is answered too, behind the last token of a call of several."""
    engine = ready("answer")
    assert "answer" == greedy(engine, engine.decode(engine.tokenize("x y", special=0, add_bos=1)))


def test_control_tokens_are_read_only_where_asked():
    """Their spelling in user text stays bytes."""
    engine = ready(add_bos=True)
    text = "<|im_start|>é<|im_end|>"
    assert [BOS, IM_START, 0xC3, 0xA9, IM_END] == tokens(engine, text)
    assert list(text.encode()) == engine.tokenize(text, special=False, add_bos=False)


@pytest.mark.parametrize("memory", ["dense", "window", "hybrid"])
def test_a_restored_memory_gives_the_same_bits(memory):
    """Capture at the boundary, decode on, restore elsewhere, decode on: equal to the last bit."""
    engine = ready(memory=memory)
    engine.decode(tokens(engine, SYSTEM))
    state = engine.capture()
    expected = engine.decode(tokens(engine, QUESTION), "all")
    other = ready(memory=memory)
    other.restore(state)
    assert len(tokens(engine, SYSTEM)) == other.position
    assert np.array_equal(expected, other.decode(tokens(engine, QUESTION), "all"))


@pytest.mark.parametrize("memory", ["dense", "window", "hybrid"])
def test_any_wrong_bit_in_the_memory_changes_the_logits(memory):
    """One flipped bit of any section shows in the next logits."""
    engine = ready(memory=memory)
    engine.decode(tokens(engine, SYSTEM))
    state = engine.capture()
    expected = engine.decode([65]).copy()
    for part in state.parts:
        for section in part.sections:
            section.rows[-2:][0, -1] ^= 1
            engine.restore(state)
            assert not np.array_equal(expected, engine.decode([65]))
            section.rows[-2:][0, -1] ^= 1
    engine.restore(state)
    assert np.array_equal(expected, engine.decode([65]))


def test_another_script_is_another_model():
    """A snapshot of another model has another fingerprint, and other numbers if forced in."""
    one, two = ready("one"), ready("two")
    for engine in (one, two):
        engine.decode(tokens(engine, SYSTEM))
    assert one.fingerprint().digest() != two.fingerprint().digest()
    expected = one.decode([65]).copy()
    one.restore(two.capture())
    assert not np.array_equal(expected, one.decode([65]))


def test_how_calls_are_cut_changes_bits_but_not_the_answer():
    """As in real engines, equal bits need equal calls."""
    whole, split = ready(), ready()
    ids = tokens(whole, SYSTEM + QUESTION)
    expected = whole.decode(ids)
    split.decode(ids[:7])
    found = split.decode(ids[7:])
    assert not np.array_equal(expected, found)
    assert greedy(whole, expected) == greedy(split, found)


def test_a_memory_that_moves_when_restored_gives_other_bits():
    """With `restore_moves` only a restore at the same place makes bits equal."""
    engine = ready(restore_moves=True)
    engine.decode(tokens(engine, SYSTEM))
    state = engine.capture()
    live = engine.decode([65]).copy()
    engine.restore(state)
    moved = engine.decode([65]).copy()
    engine.restore(state)
    assert not np.array_equal(live, moved)
    assert np.array_equal(moved, engine.decode([65]))


def test_a_dense_memory_can_be_truncated_to_any_length():
    """What remains is as if the rest had never been."""
    engine = ready()
    ids = tokens(engine, SYSTEM)
    engine.decode(ids)
    expected = engine.decode([65]).copy()
    engine.decode([66, 67])
    assert engine.truncate(len(ids))
    assert np.array_equal(expected, engine.decode([65]))


def test_a_restored_window_cannot_be_truncated():
    """The rows the shorter window would need are gone: False, and nothing changes."""
    engine = ready(memory="window", n_window=8)
    engine.decode(tokens(engine, SYSTEM))
    assert engine.truncate(20)
    engine.restore(engine.capture())
    assert not engine.truncate(12)
    assert 20 == engine.position
    assert engine.truncate(0)


@pytest.mark.parametrize("memory", ["dense", "window", "hybrid"])
def test_rows_written_where_they_land_are_restored(memory):
    """A state filled in place goes on with the same bits; other shapes have no place."""
    engine = ready(memory=memory)
    engine.decode(tokens(engine, SYSTEM))
    state = engine.capture()
    expected = engine.decode([65]).copy()
    shapes = tuple(
        PartOutline(
            part.kind,
            part.first,
            part.n_tokens,
            tuple(SectionOutline(s.layer, s.role, s.type, s.rows.shape) for s in part.sections),
        )
        for part in state.parts
    )
    landed = engine.landing(shapes)
    assert landed is not None
    for part, into in zip(state.parts, landed.parts, strict=True):
        for section, room in zip(part.sections, into.sections, strict=True):
            room.rows[...] = section.rows
    engine.restore(landed)
    assert np.array_equal(expected, engine.decode([65]))
    assert engine.landing(shapes[:-1]) is None
    assert engine.landing(()) is None


def test_a_hybrid_memory_is_kept_whole_or_emptied():
    """Its state stands at the last token, decoded or restored."""
    engine = ready(memory="hybrid")
    engine.decode([1, 2, 3])
    assert ["dense", "recurrent"] == [part.kind for part in engine.capture().parts]
    assert not engine.truncate(2)
    engine.restore(engine.capture())
    assert [False, True, True] == [engine.truncate(n) for n in (2, 3, 0)]


def test_a_recurrent_memory_refuses_snapshots_and_truncation():
    """It says why, and can only be emptied."""
    engine = ready(memory="recurrent")
    engine.decode([1, 2, 3])
    assert "recurrent memory" == engine.snapshot_block()
    with pytest.raises(SnapshotIncompatible):
        engine.capture()
    assert [False, True, True] == [engine.truncate(n) for n in (2, 3, 0)]


def damaged_states(state):
    """Give states that do not fit: counts, kinds, shapes and types changed one at a time."""
    part = state.parts[0]
    section = part.sections[0]
    change = dataclasses.replace

    def with_section(wrong: Section) -> KVState:
        sections = (wrong, *part.sections[1:])
        return change(state, parts=(change(part, sections=sections), *state.parts[1:]))

    yield change(state, n_tokens=state.n_tokens - 1)
    yield change(state, n_tokens=10_000)
    yield change(state, parts=())
    yield change(state, parts=(change(part, kind="opaque"), *state.parts[1:]))
    yield change(state, parts=(change(part, first=1), *state.parts[1:]))
    yield with_section(change(section, role="V"))
    yield with_section(change(section, type="f32"))
    yield with_section(change(section, rows=section.rows[:, :4]))


@pytest.mark.parametrize("memory", ["dense", "window", "hybrid"])
def test_a_state_that_does_not_fit_leaves_the_memory_empty(memory):
    """Each is refused, and nothing of it or of before remains."""
    engine = ready(memory=memory)
    engine.decode(tokens(engine, SYSTEM))
    for state in damaged_states(engine.capture()):
        engine.decode([1])
        with pytest.raises(SnapshotIncompatible):
            engine.restore(state)
        assert 0 == engine.position


def test_decode_checks_its_input_and_changes_nothing():
    """No tokens, foreign ids and too many tokens are refused with the memory as it was."""
    engine = ready()
    engine.decode([1, 2, 3])
    for wrong in ([], [-1], [259]):
        with pytest.raises(ValueError, match="token"):
            engine.decode(wrong)
    with pytest.raises(PromptTooLong):
        engine.decode([1] * 254)
    assert 3 == engine.position


def test_growing_the_context_clears_the_memory():
    """A smaller wish changes nothing."""
    engine = ready()
    engine.decode([1, 2])
    engine.reserve(10)
    assert (256, 2) == (engine.n_ctx, engine.position)
    engine.reserve(512)
    assert (512, 0) == (engine.n_ctx, engine.position)


def test_the_chosen_decode_call_fails_and_clears_the_memory():
    """The ones before and after work."""
    engine = ready(fail_at=2)
    engine.decode([1])
    with pytest.raises(EngineFailed):
        engine.decode([2])
    assert 0 == engine.position
    engine.decode([3])


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="Windows has no timers that signal")
def test_a_signal_handler_may_cancel_at_any_moment():
    """Also where the thread that it comes on is about to wait, or has just done so."""
    engine = ScriptedEngine("x", n_batch=1, delay_s=0.0002)
    engine.reserve(20_000)
    n_cancels = 0

    def cancel(*_: object) -> None:
        nonlocal n_cancels
        n_cancels += 1
        engine.cancel()

    before = signal.signal(signal.SIGALRM, cancel)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        while n_cancels < 1000:
            engine.resume()
            with contextlib.suppress(Cancelled):
                engine.decode([IM_START] * 5)
            engine.truncate(0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert n_cancels >= 1000


def test_cancel_stops_a_running_decode_and_keeps_whole_chunks():
    """From another thread, and until `resume`."""
    engine = ready(n_batch=4, delay_s=0.01)
    engine.decode([1] * 4)
    timer = threading.Timer(0.06, engine.cancel)
    timer.start()
    with pytest.raises(Cancelled):
        engine.decode([1] * 100)
    timer.join()
    assert 4 <= engine.position < 104
    assert 0 == engine.position % 4
    with pytest.raises(Cancelled):
        engine.decode([1])
    engine.resume()
    engine.decode([1])


def test_a_closed_engine_decodes_nothing():
    """Closing twice is allowed."""
    engine = ready()
    engine.close()
    engine.close()
    with pytest.raises(EngineFailed, match="closed"):
        engine.decode([1])
