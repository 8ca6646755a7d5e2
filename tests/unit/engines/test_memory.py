"""Memories of every kind in a real engine: cut, restored where something else was, refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgellm.engines.base import Engine
from edgellm.errors import Cancelled, SnapshotIncompatible
from edgellm.store.state import KVState, Part, PartOutline, Section, SectionOutline

KINDS = (
    "llama",
    "deepseek2",
    "gemma3",
    "mamba",
    "rwkv7",
    "lfm2",
    "lfm2-swa",
    "falcon-h1",
    "qwen35",
    "deepseek32",
    "minimax-m3",
    "dots3note",
    "qwen4exp",
    "deepseek4",
)
CAN_BE_CUT = ("llama", "qwen3moe", "deepseek2", "deepseek32", "minimax-m3")
WINDOWS = ("gemma3", "dots3note")
HOLDS_ONE_PLACE = tuple(kind for kind in KINDS if kind not in CAN_BE_CUT and kind not in WINDOWS)


def after(engine: Engine, ids: list[int]) -> bytes:
    """The logits of every token of `ids`, as bytes."""
    return engine.decode(ids, "all").tobytes()


def in_pieces(engine: Engine, ids: list[int], cuts: tuple[int, ...]) -> None:
    """Decode with a call for each piece: other calls round otherwise."""
    start = 0
    for cut in cuts:
        if ids[start:cut]:
            engine.decode(ids[start:cut])
        start = cut


def captured(engine: Engine, ids: list[int]) -> KVState:
    """The state after these tokens; the memory is empty before and after."""
    engine.truncate(0)
    engine.decode(ids)
    state = engine.capture()
    engine.truncate(0)
    return state


@pytest.mark.parametrize("flash_attention", ["on", "off"])
@pytest.mark.parametrize("name", CAN_BE_CUT)
def test_a_cut_memory_is_as_if_never_longer(open_tiny, tokens, name, flash_attention):
    """Live or restored, cut back and decoded anew, the logits are those of a run that stopped there."""
    engine = open_tiny(name, flash_attention=flash_attention)
    cuts = (64, 100, 127, 128)
    in_pieces(engine, tokens(128), cuts)
    state = engine.capture()
    for at in (127, 100, 64):
        engine.truncate(0)
        in_pieces(engine, tokens(at), cuts)
        expected = after(engine, tokens(9, 1))
        engine.restore(state)
        assert engine.truncate(at)
        assert after(engine, tokens(9, 1)) == expected
        assert engine.truncate(at)
        assert after(engine, tokens(9, 1)) == expected


@pytest.mark.parametrize("flash_attention", ["on", "off"])
@pytest.mark.parametrize("name", WINDOWS)
def test_a_window_is_cut_while_it_forgot_nothing(open_tiny, tokens, name, flash_attention):
    """A live window that is still whole can be cut to any length, with the bits of a shorter run."""
    engine, shorter = (open_tiny(name, flash_attention=flash_attention) for _ in range(2))
    cuts = (20, 64, 100, 128, 250)
    in_pieces(engine, tokens(250), cuts)
    for at in (128, 100, 64, 20):
        assert engine.truncate(at)
        shorter.truncate(0)
        in_pieces(shorter, tokens(at), cuts)
        assert engine.capture().n_tokens == at
        assert after(engine, tokens(9, 1)) == after(shorter, tokens(9, 1))


@pytest.mark.parametrize("flash_attention", ["on", "off"])
@pytest.mark.parametrize("name", WINDOWS)
def test_a_restored_window_is_cut_back_to_where_it_was(open_tiny, tokens, name, flash_attention):
    """Of a restored window only the last rows are there: what is before them is refused."""
    engine, other = (open_tiny(name, flash_attention=flash_attention) for _ in range(2))
    state = captured(engine, tokens(200))
    engine.restore(state)
    other.restore(state)
    expected = after(other, tokens(40, 1))
    assert after(engine, tokens(40, 1)) == expected
    assert engine.truncate(200)
    assert after(engine, tokens(40, 1)) == expected
    other.restore(state)
    assert other.truncate(199)
    assert [engine.truncate(at) for at in (198, 190, 100, 1)] == [False] * 4
    assert engine.position == 240


@pytest.mark.parametrize("name", WINDOWS)
def test_a_window_whose_ring_came_round_is_not_cut(open_tiny, tokens, name):
    """Where old cells were written over, a cut memory would differ from one that never went on."""
    engine = open_tiny(name)
    for _ in range(5):
        engine.decode(tokens(60))
    assert not engine.truncate(299)
    assert not engine.truncate(150)
    assert engine.position == 300
    assert engine.truncate(300)
    assert engine.truncate(0)
    assert engine.position == 0


@pytest.mark.parametrize("name", HOLDS_ONE_PLACE)
def test_what_became_of_all_tokens_is_not_cut(open_tiny, tokens, name):
    """A recurrent state stands at its last token: only that length or nothing is true of it."""
    engine = open_tiny(name)
    state = captured(engine, tokens(100))
    engine.restore(state)
    for _ in range(2):
        assert not engine.truncate(engine.position - 1)
        assert not engine.truncate(5)
        assert engine.truncate(engine.position)
        engine.decode(tokens(4))
    assert engine.position == 108
    assert engine.truncate(0)
    fresh = open_tiny(name)
    assert after(engine, tokens(60)) == after(fresh, tokens(60))


def test_the_copy_back_is_needed(open_tiny, tokens):
    """Without flash attention a live memory goes on with other bits than the restored one."""
    engine = open_tiny("deepseek4", flash_attention="off")
    assert engine.restore_moves
    engine.decode(tokens(200))
    state = engine.capture()
    live = after(engine, tokens(16, 1))
    engine.restore(state)
    moved = after(engine, tokens(16, 1))
    engine.restore(state)
    assert after(engine, tokens(16, 1)) == moved
    assert live != moved


@pytest.mark.parametrize("name", KINDS)
def test_a_stopped_chunk_leaves_nothing_behind(open_tiny, tokens, monkeypatch, name):
    """What was decoded before a stop is there or nothing is, and the answer is that of no stop."""
    engine, other = open_tiny(name), open_tiny(name)
    engine.decode(tokens(100))
    decode = engine._context.decode

    def stopped(*args: Any, **options: Any) -> int:
        engine.cancel()
        return decode(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(engine._context, "decode", stopped)
        with pytest.raises(Cancelled):
            engine.decode(tokens(50, 1))
    engine.resume()
    assert engine.position == (0 if name in HOLDS_ONE_PLACE else 100)
    for each in (engine, other):
        if not each.position:
            each.decode(tokens(100))
    assert after(engine, tokens(50, 1)) == after(other, tokens(50, 1))


def damaged(state: KVState, other: KVState) -> list[KVState]:
    """States that no engine of this kind wrote: cut, longer, foreign, with parts mixed up."""
    parts = state.parts
    last = parts[-1]
    cut = tuple(replace(s, rows=s.rows[:, : s.rows.shape[1] // 2]) for s in last.sections)
    long = tuple(replace(s, rows=np.concatenate([s.rows, s.rows], 1)) for s in last.sections)
    fewer = last.sections[:-1]
    made = [
        KVState(state.n_tokens, (*parts[:-1], replace(last, sections=sections)))
        for sections in (cut, long, fewer)
    ]
    first = parts[-2] if len(parts) > 1 else last  # before the last, so that the last one fits
    narrow = tuple(replace(s, rows=s.rows[:, :-2]) for s in first.sections)
    made.append(
        KVState(
            state.n_tokens,
            tuple(replace(p, sections=narrow) if p is first else p for p in parts),
        )
    )
    made.append(KVState(state.n_tokens + 1, parts))
    made.append(KVState(state.n_tokens, parts[:-1]))
    made.append(other)
    if last.kind == "opaque":
        blob = last.sections[0].rows
        tails = (blob[:, :-100], np.concatenate([blob, blob[:, :64]], 1), blob[:, ::-1])
        made += [
            KVState(state.n_tokens, (replace(last, sections=(Section(0, "blob", "u8", t),)),))
            for t in tails
        ]
    return made


@pytest.mark.parametrize(
    "n", [pytest.param(20), pytest.param(500, marks=pytest.mark.full)], ids=str
)
@pytest.mark.parametrize("flash_attention", ["on", "off"])
@pytest.mark.parametrize("name", KINDS)
def test_failed_restores_leave_nothing_behind(open_tiny, tokens, name, flash_attention, n):
    """After damaged and foreign states, all refused, a cold prompt gives the bits of a fresh engine."""
    engine = open_tiny(name, flash_attention=flash_attention)
    prompt = tokens(90)
    expected = after(engine, prompt)
    states = damaged(
        captured(engine, tokens(70, 1)),
        captured(open_tiny("jamba" if name != "jamba" else "llama"), tokens(70, 1)),
    )
    for i in range(n):
        if i % 3 == 0:
            engine.decode(tokens(50, i))
        with pytest.raises(SnapshotIncompatible):
            engine.restore(states[i % len(states)])
        assert engine.position == 0
    assert after(engine, prompt) == expected


def outline(state: KVState) -> tuple[PartOutline, ...]:
    """The shapes of a state, as a file's header gives them."""
    return tuple(
        PartOutline(
            part.kind,
            part.first,
            part.n_tokens,
            tuple(
                SectionOutline(s.layer, s.role, s.type, (s.rows.shape[0], s.rows.shape[1]))
                for s in part.sections
            ),
        )
        for part in state.parts
    )


@pytest.mark.parametrize(
    "settings",
    [{"flash_attention": "on"}, {"flash_attention": "off"}, {"kv_type": "q8_0"}],
    ids=str,
)
@pytest.mark.parametrize("name", KINDS)
def test_rows_written_where_they_land_are_restored(open_tiny, tokens, name, settings):
    """A state that was filled in place goes on with the bits of one that was built."""
    engine = open_tiny(name, **settings)
    state = captured(engine, tokens(77))
    engine.restore(state)
    expected = after(engine, tokens(9, 1))
    landed = engine.landing(outline(state))
    assert landed is not None
    for part, into in zip(state.parts, landed.parts, strict=True):
        for section, room in zip(part.sections, into.sections, strict=True):
            assert room.rows.flags.c_contiguous or settings == {"flash_attention": "off"}
            assert (room.layer, room.role, room.type) == (section.layer, section.role, section.type)
            room.rows[...] = section.rows
    engine.restore(landed)
    assert after(engine, tokens(9, 1)) == expected
    engine.restore(landed)
    assert after(engine, tokens(9, 1)) == expected


def test_nothing_lands_in_another_memory(open_tiny, tokens):
    """Shapes that are not this engine's have no place in it: the caller reads them elsewhere."""
    engine = open_tiny("llama")
    state = captured(engine, tokens(77))
    shapes = outline(state)
    assert engine.landing(()) is None
    assert engine.landing((replace(shapes[0], sections=shapes[0].sections[:-1]),)) is None
    assert engine.landing((replace(shapes[0], n_tokens=600),)) is None
    assert open_tiny("gemma3").landing(shapes) is None
    assert open_tiny("deepseek4").landing(shapes) is None


def test_a_part_of_another_kind_is_refused(open_tiny, tokens):
    """An opaque blob is no dense memory, even if it holds the very bytes."""
    engine = open_tiny("llama")
    rows = captured(engine, tokens(20)).parts[0].sections[0].rows.view(np.uint8).reshape(1, -1)
    opaque = KVState(20, (Part("opaque", 0, 20, (Section(0, "blob", "u8", rows),)),))
    with pytest.raises(SnapshotIncompatible, match="memories"):
        engine.restore(opaque)
