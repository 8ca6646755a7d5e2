"""The size of the context: chosen, grown, full, and too small."""

from __future__ import annotations

import pytest

from edgellm.core import Failure, Tier, Warn
from edgellm.errors import PromptTooLong
from edgellm.runtime.room import Room
from edgellm.runtime.session import SessionOptions

OFF = SessionOptions(snapshot=Tier.OFF)


@pytest.mark.parametrize(
    ("n_ctx_train", "n_prompt", "n_ctx"),
    [
        (8192, 10, 4096),
        (8192, 3072, 4096),
        (8192, 3073, 4097),
        (8192, 7168, 8192),
        (8192, 8191, 8192),
        (2048, 10, 2048),
        (131072, 50_000, 51_024),
    ],
)
def test_automatic_size(start, n_ctx_train: int, n_prompt: int, n_ctx: int) -> None:
    """min(the model's, max(4096, prompt + 1024))."""
    _, engine = start(n_ctx_train=n_ctx_train)
    assert n_ctx == Room(engine, None).wanted(n_prompt)


def test_growing_at_least_doubles(start, ask) -> None:
    """So that a long conversation is not carried over with every turn."""
    session, _ = start(n_ctx_train=100_000)
    session.generate(ask("Why?"))
    assert [4096, 8192, 9024] == [session.room.wanted(n) for n in (3000, 3100, 8000)]
    assert 4096 == session.room.n_ctx


def test_the_first_prompt_gets_the_size_that_is_stated(start, ask, count) -> None:
    """A context made while the model loaded has nothing in it to be carried over."""
    session, engine = start(n_ctx_train=100_000)
    session.room.open()
    assert 4096 == engine.n_ctx
    request = ask("word " * 800)
    session.generate(request)
    assert count(request) + 1024 == engine.n_ctx


@pytest.mark.parametrize(("fixed", "n_prompt", "known"), [(None, 8192, 8192), (100, 100, 100)])
def test_a_prompt_that_fills_the_context_is_too_long(start, fixed, n_prompt, known) -> None:
    """The numbers are in the message, and the way out where there is one."""
    _, engine = start()
    with pytest.raises(PromptTooLong, match=f"{n_prompt} tokens, the context holds {known}") as err:
        Room(engine, fixed).wanted(n_prompt)
    assert ("--ctx" in err.value.hint) == (fixed is not None)


def test_a_prompt_too_long_is_a_failure_and_the_conversation_stays(start, ask) -> None:
    """It is refused before the memory is touched, so the next turn is as fast as ever."""
    session, engine = start(("One.", "Two."), options=SessionOptions(n_ctx=600))
    first = session.generate(ask("Why?"))
    n_calls = len(engine.decoded)
    (failure,) = session.stream(ask("Why?", "One.", "long " * 100))
    assert isinstance(failure, Failure)
    assert ("prompt_too_long", 2) == (failure.code, failure.exit)
    assert "600" in failure.message
    assert n_calls == len(engine.decoded)
    with pytest.raises(PromptTooLong):
        session.generate(ask("long " * 200))
    second = session.generate(ask("Why?", "One.", "And then?"))
    assert first.usage.prompt_tokens + 4 == second.usage.reused_tokens


def test_a_full_context_ends_the_answer(start, ask, count) -> None:
    """Finish reason `length`: nothing is shifted out, nothing is cut off in silence."""
    request = ask("Why?")
    n_ctx = count(request) + 10
    session, engine = start("word " * 100, options=SessionOptions(n_ctx=n_ctx))
    done = session.generate(request)
    assert ("length", n_ctx) == (done.finish_reason, engine.position)
    assert 11 == done.usage.completion_tokens  # the last one needs no room


def test_a_fixed_size_is_the_users_number(start, ask, count, engine_types) -> None:
    """Also in an engine that rounds it up."""

    class Rounding(engine_types["recording"]):
        def reserve(self, n_ctx: int) -> None:
            super().reserve(-(-n_ctx // 256) * 256)

    request = ask("Why?")
    n_ctx = count(request) + 10
    session, engine = start(
        "word " * 100, engine_type=Rounding, options=SessionOptions(n_ctx=n_ctx)
    )
    done = session.generate(request)
    assert engine.n_ctx > n_ctx
    assert ("length", n_ctx) == (done.finish_reason, engine.position)


def test_an_engine_that_rounds_up_stays_within_the_training(start, ask, engine_types) -> None:
    """Without a number of the user's the model's own context is the limit."""

    class Rounding(engine_types["recording"]):
        def reserve(self, n_ctx: int) -> None:
            super().reserve(-(-n_ctx // 256) * 256)

    session, engine = start("word " * 100, engine_type=Rounding, n_ctx_train=300)
    done = session.generate(ask("Why?", system=None))
    assert ("length", 512, 300) == (done.finish_reason, engine.n_ctx, engine.position)


@pytest.mark.parametrize("memory", ["dense", "window"])
@pytest.mark.parametrize("restore_moves", [False, True])
def test_growing_keeps_the_live_memory(start, ask, memory: str, restore_moves: bool) -> None:
    """The conversation is carried over, not read again; what comes behind it is right."""
    kind = {"memory": memory, "restore_moves": restore_moves}
    session, engine = start(("One.", "Two.", "Three."), options=OFF, **kind)
    first = session.generate(ask("Why?"))
    long = "And then? " * 320
    n_calls = len(engine.decoded)
    second = session.generate(ask("Why?", "One.", long))
    assert ("Two.", first.usage.prompt_tokens + 4) == (second.text, second.usage.reused_tokens)
    assert (8192, first.usage.prompt_tokens + 4) == (engine.n_ctx, engine.decoded[n_calls][0])
    assert "Three." == session.generate(ask("Why?", "One.", long, "Two.", "So?")).text
    n_calls = len(engine.decoded)
    session.generate(ask("Else?"))
    fresh_session, fresh = start(("One.", "Two.", "Three."), options=OFF, **kind)
    fresh_session.generate(ask("Else?"))
    assert fresh.decoded[1:] == [call for call in engine.decoded[n_calls:] if call[0] > 0]


def test_growing_a_memory_that_cannot_be_captured_reads_it_again(start, ask) -> None:
    """Slower, and the same answer."""
    session, engine = start(("One.", "Two."), memory="recurrent", options=OFF)
    session.generate(ask("Why?"))
    second = session.generate(ask("Why?", "One.", "And then? " * 320))
    assert ("Two.", 0, 8192) == (second.text, second.usage.reused_tokens, engine.n_ctx)


def test_growing_a_memory_that_is_refused_back_reads_it_again(start, ask, engine_types) -> None:
    """A restore that fails is no failure of the answer."""

    class Refusing(engine_types["recording"]):
        def restore(self, state) -> None:
            super().restore(type(state)(state.n_tokens, state.parts[:0]))

    session, _ = start(("One.", "Two."), engine_type=Refusing, options=OFF)
    session.generate(ask("Why?"))
    second = session.generate(ask("Why?", "One.", "And then? " * 320))
    assert ("Two.", 0) == (second.text, second.usage.reused_tokens)


def test_a_context_beyond_the_training_is_said_once(start, ask) -> None:
    """It is allowed, as some models take it; the user is told what to expect."""
    session, _ = start(n_ctx_train=512, options=SessionOptions(n_ctx=1024))
    events = [*session.stream(ask("Why?")), *session.stream(ask("How?"))]
    (said,) = [event.message for event in events if isinstance(event, Warn)]
    assert "1024 tokens is longer than the 512 the model was trained with" in said
