"""The decode loop, on the scripted engine."""

from __future__ import annotations

from typing import Any

import pytest

from edgellm.core import Sampling
from edgellm.engines.scripted import ScriptedEngine
from edgellm.errors import EngineFailed
from edgellm.runtime.generate import Decoding
from edgellm.runtime.sampling import Sampler
from edgellm.runtime.text import TextJoiner

PROMPT = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def start(engine, *, stop=(), n_ctx=200, **options: Any):
    """Decode the prompt and set up its answer."""
    engine.reserve(n_ctx)
    logits = engine.decode(engine.tokenize(PROMPT, special=True, add_bos=True))[-1]
    sampler = Sampler(Sampling(temperature=0), engine.vocab().n_tokens)
    return Decoding(engine, logits, sampler, TextJoiner(stop), n_ctx=n_ctx, **options)


def text_of(decoding):
    return "".join(piece.text for piece in decoding)


def test_the_answer_ends_at_the_end_token():
    """The script comes out, and neither the end token nor the last one is decoded for nothing."""
    engine = ScriptedEngine("Grüße 값 👋")
    decoding = start(engine)
    n_prompt = engine.position
    assert "Grüße 값 👋" == text_of(decoding)
    outcome = decoding.outcome
    assert "stop" == outcome.finish_reason
    assert "Grüße 값 👋".encode() == bytes(outcome.tokens)
    assert len(outcome.tokens) == outcome.n_decoded == engine.position - n_prompt


def test_every_token_gives_a_piece_and_text_only_whole_characters():
    """A character of several bytes is the text of its last token."""
    pieces = list(start(ScriptedEngine("é!")))
    assert [(0xC3, ""), (0xA9, "é"), (0x21, "!")] == [(p.token, p.text) for p in pieces]


def test_a_stop_string_ends_the_answer_before_itself():
    """The stop string is no part of the text, though its tokens are in the outcome."""
    engine = ScriptedEngine("one ### two")
    decoding = start(engine, stop=("###",))
    n_prompt = engine.position
    assert "one " == text_of(decoding)
    assert ("stop", b"one ###") == (decoding.outcome.finish_reason, bytes(decoding.outcome.tokens))
    assert 6 == decoding.outcome.n_decoded == engine.position - n_prompt


def test_text_that_was_held_back_comes_when_the_answer_ends():
    """Half a stop string at the end is shown, in a piece without a token."""
    pieces = list(start(ScriptedEngine("a##"), stop=("###",)))
    assert (None, "##") == (pieces[-1].token, pieces[-1].text)


def test_max_tokens_ends_with_length():
    """So many tokens and no more; the last is handed out but not decoded."""
    engine = ScriptedEngine("abcdef")
    decoding = start(engine, max_tokens=3)
    n_prompt = engine.position
    assert "abc" == text_of(decoding)
    assert ("length", 2) == (decoding.outcome.finish_reason, decoding.outcome.n_decoded)
    assert 2 == engine.position - n_prompt


def test_a_full_context_ends_with_length():
    """Nothing is shifted or cut: the answer ends when no token can be added."""
    engine = ScriptedEngine("x" * 500)
    decoding = start(engine, n_ctx=60)
    n_prompt = engine.position
    assert "x" * (60 - n_prompt + 1) == text_of(decoding)
    assert ("length", 60) == (decoding.outcome.finish_reason, engine.position)


def test_cancelling_between_tokens_ends_with_cancelled():
    """What was handed out stays in the outcome."""
    seen = []
    decoding = start(ScriptedEngine("abcdef"), cancelled=lambda: len(seen) == 2)
    seen.extend(piece.text for piece in decoding)
    assert (["a", "b"], "cancelled") == (seen, decoding.outcome.finish_reason)


def test_cancelling_a_running_decode_ends_with_cancelled():
    """An engine that is told to stop leaves its memory as it was and the answer cancelled."""
    engine = ScriptedEngine("abcdef")
    decoding = start(engine)
    pieces = iter(decoding)
    next(pieces)
    engine.cancel()
    assert [] == list(pieces)
    assert ("cancelled", (0x61,)) == (decoding.outcome.finish_reason, decoding.outcome.tokens)
    assert 0 == decoding.outcome.n_decoded


def test_giving_up_the_iteration_counts_as_cancelled():
    """A consumer that goes away leaves an outcome that says what is in the memory."""
    engine = ScriptedEngine("abcdef")
    decoding = start(engine)
    n_prompt = engine.position
    pieces = iter(decoding)
    assert ["a", "b", "c"] == [next(pieces).text for _ in range(3)]
    pieces.close()
    assert "cancelled" == decoding.outcome.finish_reason
    assert 2 == decoding.outcome.n_decoded == engine.position - n_prompt


def test_an_engine_that_fails_raises():
    """The failure is the caller's to see, and `on_first` was called all the same."""
    calls = []
    decoding = start(ScriptedEngine("abc", fail_at=2), on_first=lambda: calls.append(1))
    with pytest.raises(EngineFailed):
        list(decoding)
    assert [1] == calls


def test_on_first_comes_after_the_first_text_was_handed_out():
    """It is called once, not before the consumer has the first piece with text."""
    order = []
    decoding = start(ScriptedEngine("é!"), on_first=lambda: order.append("first"))
    order.extend(piece.text for piece in decoding)
    assert ["", "é", "first", "!"] == order


def test_on_first_is_called_for_an_empty_answer_too():
    """A model that says nothing still lets its snapshot be written."""
    calls = []
    assert [] == list(start(ScriptedEngine(""), on_first=lambda: calls.append(1)))
    assert [1] == calls


def test_time_is_split_between_engine_and_choosing():
    """Time in the engine is counted apart from time for sampling and text."""
    decoding = start(ScriptedEngine("abc", delay_s=0.005))
    list(decoding)
    assert decoding.outcome.decode_s >= 0.015
    assert 0 < decoding.outcome.choose_s < decoding.outcome.decode_s
