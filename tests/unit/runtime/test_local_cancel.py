"""What ends an answer early: cancel, a reader who leaves, an engine that fails, a second request."""

from __future__ import annotations

import threading
import time

import pytest

from edgellm.core import Done, Event, Failure, Tier, Token
from edgellm.errors import EngineFailed, UsageError
from edgellm.runtime.session import SessionOptions

OFF = SessionOptions(snapshot=Tier.OFF)
ANSWER = "Yes, so it is."


@pytest.fixture
def fresh(start, ask):
    """Return the calls that a session makes for a first request, and its answer."""
    session, engine = start(options=OFF)
    done = session.generate(ask("Why?"))
    return engine.decoded, done.text


def check_usable(session, engine, ask, fresh) -> None:
    """Answer a request as a fresh session does, bit for bit behind the boundary."""
    n_calls = len(engine.decoded)
    done = session.generate(ask("Why?"))
    assert ("stop", fresh[1]) == (done.finish_reason, done.text)
    assert fresh[0][1:] == [call for call in engine.decoded[n_calls:] if call[0] > 0]


def test_cancel_before_the_first_event(start, ask, fresh) -> None:
    """It counts from the call of `stream` on, though nothing has been read yet."""
    session, engine = start()
    stream = session.stream(ask("Why?"))
    session.cancel()
    (done,) = stream
    assert ("cancelled", "", []) == (done.finish_reason, done.text, engine.decoded)
    check_usable(session, engine, ask, fresh)


def test_cancel_between_answers_is_of_no_consequence(start, ask, fresh) -> None:
    """There is nothing to end, and the next answer was not meant."""
    session, engine = start()
    session.cancel()
    check_usable(session, engine, ask, fresh)
    session.cancel()
    check_usable(session, engine, ask, fresh)


def test_cancel_while_the_prompt_is_read(start, ask, fresh) -> None:
    """The engine stops within a chunk; the answer is empty and cancelled."""
    session, engine = start(delay_s=0.002, n_batch=8)
    timer = threading.Timer(0.05, session.cancel)
    timer.start()
    started = time.monotonic()
    (done,) = session.stream(ask("Why?"))
    assert time.monotonic() - started < 0.4
    assert ("cancelled", "") == (done.finish_reason, done.text)
    assert done.usage.prompt_tokens > 200
    assert 0 == done.usage.completion_tokens == engine.position
    timer.join()
    engine._delay_s, engine._n_batch = 0, 512
    check_usable(session, engine, ask, fresh)


def test_cancel_while_a_later_prompt_is_read(start, ask, fresh) -> None:
    """Nothing is taken to be in memory of the conversation that was."""
    session, engine = start()
    session.generate(ask("Why?"))
    stream = session.stream(ask("Why?", ANSWER, "And then?"))
    session.cancel()
    (done,) = stream
    assert ("cancelled", 0) == (done.finish_reason, engine.position)
    check_usable(session, engine, ask, fresh)


@pytest.mark.parametrize("n_read", [1, 2, 5])
def test_cancel_while_tokens_come(start, ask, fresh, n_read: int) -> None:
    """What was said stays said, with the figures of an answer."""
    session, engine = start()
    stream = session.stream(ask("Why?"))
    said = [next(stream).text for _ in range(n_read)]
    session.cancel()
    (done,) = stream
    assert ("cancelled", ANSWER[:n_read]) == (done.finish_reason, done.text)
    assert (n_read, ANSWER[:n_read]) == (done.usage.completion_tokens, "".join(said))
    check_usable(session, engine, ask, fresh)


def test_cancel_from_another_thread(start, ask, fresh) -> None:
    """`generate` comes back with what there is."""
    session, engine = start(delay_s=0.0005)
    engine._turns = [b"word " * 2000]
    timer = threading.Timer(0.3, session.cancel)
    timer.start()
    done = session.generate(ask("Why?"))
    timer.join()
    assert "cancelled" == done.finish_reason
    assert 0 < len(done.text) == done.usage.completion_tokens < 2000
    engine._turns, engine._delay_s = [ANSWER.encode()], 0
    check_usable(session, engine, ask, fresh)


@pytest.mark.parametrize("n_read", [0, 1, 4, 14])
def test_a_reader_who_leaves_stops_the_answer(start, ask, store, fresh, n_read: int) -> None:
    """Closing the iterator is enough; the snapshot of the prefix is written all the same."""
    session, engine = start(store=store)
    stream = session.stream(ask("Why?"))
    for _ in range(n_read):
        next(stream)
    n_calls = len(engine.decoded)
    stream.close()
    assert n_calls == len(engine.decoded)
    check_usable(session, engine, ask, fresh)
    session.close()
    assert 1 == len(list(store.entries()))


@pytest.mark.parametrize("fail_at", [1, 2, 3, 7])
def test_an_engine_that_fails_is_the_last_event(start, ask, fresh, fail_at: int) -> None:
    """While the prompt is read or later: one `Failure`, after the tokens there were."""
    session, engine = start(fail_at=fail_at)
    *tokens, failure = session.stream(ask("Why?"))
    assert {Token} >= {type(event) for event in tokens}
    assert max(0, fail_at - 2) == len(tokens)
    assert isinstance(failure, Failure)
    assert ("engine_failed", 1) == (failure.code, failure.exit)
    assert "told to" in failure.message
    check_usable(session, engine, ask, fresh)


@pytest.mark.parametrize("fail_at", [1, 2, 3])
def test_generate_raises_what_stream_says(start, ask, fresh, fail_at: int) -> None:
    """The error itself, with its type."""
    session, engine = start(fail_at=fail_at)
    with pytest.raises(EngineFailed, match="told to"):
        session.generate(ask("Why?"))
    check_usable(session, engine, ask, fresh)


def test_a_failure_in_a_conversation_loses_only_time(start, ask) -> None:
    """The memory is gone, so the next turn reads the whole conversation again."""
    session, _ = start(("One.", "Two."), fail_at=8)
    session.generate(ask("Why?"))
    (*_, failure) = session.stream(ask("Why?", "One.", "And then?"))
    assert isinstance(failure, Failure)
    done = session.generate(ask("Why?", "One.", "And then?"))
    assert ("Two.", 0) == (done.text, done.usage.reused_tokens)


def test_a_second_request_does_not_disturb_the_first(start, ask) -> None:
    """It is refused at once, in words, and the first goes on where it was."""
    session, _ = start()
    first = session.stream(ask("Why?"))
    said = [next(first), next(first)]
    (failure,) = session.stream(ask("How?"))
    assert ("usage", True) == (failure.code, "another answer" in failure.message)
    with pytest.raises(UsageError, match="another answer"):
        session.generate(ask("How?"))
    *rest, done = first
    assert ANSWER == done.text == "".join(token.text for token in [*said, *rest])
    assert ANSWER == session.generate(ask("How?")).text


def test_two_threads_do_not_share_an_answer(start, ask) -> None:
    """Each request is answered whole or refused, whatever the other thread does."""
    session, _ = start(delay_s=0.0002)
    found: list[Event] = []

    def work() -> None:
        for _ in range(4):
            *_, last = session.stream(ask("Why?"))
            found.append(last)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert 12 == len(found)
    assert {ANSWER} == {one.text for one in found if isinstance(one, Done)}
    assert {"usage"} >= {one.code for one in found if isinstance(one, Failure)}


def test_close_from_another_thread_waits_for_the_engine(start, ask, engine_types) -> None:
    """The model is not freed below a running call: that call is cancelled first."""

    class Watched(engine_types["recording"]):
        inside, overlaps = False, 0

        def decode(self, tokens, logits="last") -> object:
            self.inside = True
            try:
                return super().decode(tokens, logits)
            finally:
                self.inside = False

        def close(self) -> None:
            self.overlaps += self.inside
            super().close()

    session, engine = start("word " * 2000, engine_type=Watched, delay_s=0.0005)
    events = []
    reader = threading.Thread(target=lambda: events.extend(session.stream(ask("Why?"))))
    reader.start()
    time.sleep(0.15)
    session.close()
    reader.join(20)
    assert not reader.is_alive()
    assert (0, True) == (engine.overlaps, engine._closed)
    endings = [event for event in events if isinstance(event, (Done, Failure))]
    assert endings == events[-1:]


def test_an_answer_that_waits_for_its_reader_ends_with_its_session(start, ask) -> None:
    """Leaving the `with` block first is a failure of the answer, not of the program."""
    session, _ = start()
    stream = session.stream(ask("Why?"))
    next(stream)
    session.close()
    (failure,) = stream
    assert isinstance(failure, Failure)
    assert "closed" in failure.message
