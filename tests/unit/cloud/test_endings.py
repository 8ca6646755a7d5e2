from __future__ import annotations

import gzip
import json
import threading
import time
from typing import Any

import pytest

from edgellm.cloud.events import CloudText, CloudToolCall
from edgellm.cloud.exchange import MAX_ANSWER_BYTES
from edgellm.errors import EndpointError

NEVER = threading.Event()


def _text(events: list[Any]) -> str:
    return "".join(event.text for event in events if isinstance(event, CloudText))


def _failure(ask: Any, handler: Any, **settings: Any) -> EndpointError:
    with pytest.raises(EndpointError) as caught:
        ask(handler, **settings)
    return caught.value


def test_a_finish_reason_is_an_end_without_done(ask, scripted) -> None:
    """Some servers never send `[DONE]`."""
    events = ask(lambda line: line.stream(scripted.chunk("x"), scripted.chunk(finish="length"),
                                          done=False))  # fmt: skip
    assert events[-1].finish_reason == "length"


def test_done_is_an_end_without_a_finish_reason(ask, scripted) -> None:
    """The marker says that it is over."""
    assert ask(lambda line: line.stream(scripted.chunk("x")))[-1].finish_reason == "stop"


def test_the_last_event_may_lack_its_empty_line(ask, scripted) -> None:
    """`data: [DONE]` at the very end, without the line behind it, is still an end."""

    def handle(line: Any) -> None:
        line.send(scripted.OK)
        line.chunk(scripted.sse(scripted.chunk("x")) + "data: [DONE]")
        line.end()

    assert ask(handle)[-1].finish_reason == "stop"


def test_a_break_behind_the_end_is_no_failure(ask, scripted) -> None:
    """The answer was whole when its finish reason came."""

    def handle(line: Any) -> None:
        line.send(scripted.OK)
        line.chunk(scripted.sse(scripted.chunk("x", "stop")))

    assert ask(handle)[-1].finish_reason == "stop"


def test_usage_behind_the_end_is_waited_for(ask, scripted) -> None:
    """The chunk with the counts comes after the finish reason."""
    usage = {"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": {}}
    usage["prompt_tokens_details"] = {"cached_tokens": 8}
    end = ask(
        lambda line: line.stream(scripted.chunk("x", "stop"), {"choices": [], "usage": usage})
    )[-1]
    assert (end.prompt_tokens, end.cached_tokens, end.completion_tokens) == (9, 8, 1)


def test_an_end_without_a_sign_is_incomplete(ask, scripted) -> None:
    """A connection that closes properly has still cut the answer."""
    err = _failure(ask, lambda line: line.stream(scripted.chunk("x"), done=False))
    assert (err.kind, err.may_retry) == ("incomplete", False)


@pytest.mark.parametrize("is_reset", [True, False])
@pytest.mark.parametrize("told", ["", "headers", "role", "text"])
def test_a_broken_connection_is_incomplete(ask, scripted, told: str, is_reset: bool) -> None:
    """Wherever it breaks; a second try is safe only where no text was shown."""

    def handle(line: Any) -> None:
        if told:
            line.send(scripted.OK)
        if told == "role":
            line.chunk(scripted.sse(scripted.chunk("", role="assistant")))
        if told == "text":
            line.chunk(scripted.sse(scripted.chunk("x")))
        if is_reset and told != "text":  # a reset may overtake what was sent
            line.reset()

    err = _failure(ask, handle)
    assert err.kind == "incomplete"
    assert err.may_retry == (told != "text")


def test_an_error_in_the_stream_fails_though_done_follows(ask, scripted) -> None:
    """A server whose model died says so in band, and then ends the stream properly."""
    error = {"error": {"message": "EngineCore died", "type": "InternalServerError", "code": 500}}
    err = _failure(ask, lambda line: line.stream(scripted.chunk("x"), error))
    assert (err.kind, err.status, err.may_retry) == ("server", 500, False)


@pytest.mark.parametrize("status", [200])
@pytest.mark.parametrize("body", ["", "data: [DONE]\n\n", ": ping\n\n", "\ufeff", "\n\n\n"])
def test_an_empty_answer_is_no_success(ask, status: int, body: str) -> None:
    """200 with nothing in it: what a server says of a prompt that is too long for it."""
    err = _failure(
        ask, lambda line: line.reply(status, body, {"Content-Type": "text/event-stream"})
    )
    assert err.kind == "incomplete"


def test_an_end_without_a_word_needs_a_count(ask, scripted) -> None:
    """`stop` without text or count is refused; with a count the model had nothing to say."""
    err = _failure(ask, lambda line: line.stream(scripted.chunk(finish="stop")))
    assert err.kind == "protocol"
    counted = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 1}}
    end = ask(lambda line: line.stream(scripted.chunk(finish="stop"), counted))[-1]
    assert "nothing" in end.note


def test_a_limit_spent_on_thoughts_is_told(ask, scripted) -> None:
    """No answer, finish `length`, and a note why."""
    chunks = scripted.chunk(reasoning="hm"), scripted.chunk(finish="length")
    end = ask(lambda line: line.stream(*chunks))[-1]
    assert (end.finish_reason, "reasoning" in end.note) == ("length", True)


def test_what_follows_done_is_not_waited_for(ask, scripted) -> None:
    """The socket is closed at the marker, and not when the server gets round to it."""
    gone: list[float] = []

    def handle(line: Any) -> None:
        line.send(scripted.OK)
        line.chunk(scripted.sse(scripted.chunk("x", "stop")) + scripted.sse("[DONE]"))
        line.chunk(scripted.sse(scripted.chunk("more")))
        gone.append(line.gone_s())

    began_s = time.monotonic()
    assert _text(ask(handle)) == "x"
    assert time.monotonic() - began_s < 1


def test_a_server_that_stays_silent_behind_the_end_is_left(ask, scripted) -> None:
    """After a finish reason what may follow is waited for a moment, and not the idle limit."""

    def handle(line: Any) -> None:
        line.send(scripted.OK)
        line.chunk(scripted.sse(scripted.chunk("x", "stop")))
        NEVER.wait(5)

    began_s = time.monotonic()
    assert _text(ask(handle, idle_s=0.2)) == "x"
    assert time.monotonic() - began_s < 1


@pytest.mark.parametrize("content_type", ["application/json", "text/event-stream", ""])
def test_a_whole_completion_in_place_of_a_stream(ask, content_type: str) -> None:
    """An endpoint that cannot stream is accepted; its counts are taken."""
    whole = {
        "choices": [{"index": 0, "message": {"content": "Hello"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 1},
    }
    body = "\n " + json.dumps(whole, indent=1)
    events = ask(lambda line: line.reply(200, body, {"Content-Type": content_type}))
    assert _text(events) == "Hello"
    assert events[-1].prompt_tokens == 3


@pytest.mark.parametrize("body", ['{"error": {"message": "boom"}}', '{"choices": [', "{}"])
def test_a_whole_failure_in_place_of_a_stream(ask, body: str) -> None:
    """An error, half an object or an empty one with status 200 is no answer."""
    assert _failure(ask, lambda line: line.reply(200, body)).kind in {
        "server", "protocol", "incomplete"
    }  # fmt: skip


def test_a_web_page_is_named(ask) -> None:
    """A login page with status 200: the content type is told."""
    err = _failure(ask, lambda line: line.reply(200, "<html>", {"Content-Type": "text/html"}))
    assert (err.kind, "text/html" in str(err)) == ("protocol", True)


def test_a_compressed_answer_is_read(ask, scripted) -> None:
    """Some servers compress though nobody asked for it."""
    body = gzip.compress((scripted.sse(scripted.chunk("Hello", "stop"))).encode())
    headers = {"Content-Type": "text/event-stream", "Content-Encoding": "gzip"}
    assert _text(ask(lambda line: line.reply(200, body, headers))) == "Hello"
    err = _failure(ask, lambda line: line.reply(200, b"no gzip", headers))
    assert err.kind == "protocol"


def test_an_answer_has_an_end(ask, scripted) -> None:
    """A server that sends without end is stopped, here by what it sends packed."""
    body = gzip.compress(b": " + bytes(MAX_ANSWER_BYTES + 1))
    headers = {"Content-Type": "text/event-stream", "Content-Encoding": "gzip"}
    err = _failure(ask, lambda line: line.reply(200, body, headers))
    assert (err.kind, "more than" in str(err)) == ("protocol", True)


def test_something_else_than_http_is_no_answer(ask) -> None:
    """A port where another protocol is spoken."""
    assert _failure(ask, lambda line: line.send(b"220 mail ready\r\n\r\n")).kind == "protocol"


def test_calls_come_before_the_end(ask, scripted) -> None:
    """Whole calls, then the end, which says `tool_calls` even where the server says `stop`."""
    call = {"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}
    events = ask(
        lambda line: line.stream(scripted.chunk(tool_calls=[call]), scripted.chunk(finish="stop"))
    )
    assert events[:-1] == [CloudToolCall("a", "f", "{}")]
    assert events[-1].finish_reason == "tool_calls"


def _continue(ask: Any, scripted: Any, *texts: str, begun: str) -> list[Any]:
    chunks = [scripted.chunk(text) for text in texts]
    end = scripted.chunk(finish="stop")
    found: list[Any] = ask(
        lambda line: line.stream(*chunks, end), begun=begun, continues="trailing"
    )
    return found


def test_an_echoed_beginning_is_cut(ask, scripted) -> None:
    """What was shown already is not shown again."""
    begun = "The capital of France"
    assert _text(_continue(ask, scripted, "The capital", " of France is", begun=begun)) == " is"


def test_a_restarted_answer_is_refused(ask, scripted) -> None:
    """A server that does not know how to go on, and says 200."""
    with pytest.raises(EndpointError) as caught:
        _continue(ask, scripted, "The capital of", " Spain", begun="The capital of France")
    assert (caught.value.kind, caught.value.may_retry) == ("protocol", False)


def test_a_continuation_may_have_nothing_to_add(ask, scripted) -> None:
    """The beginning was the whole answer."""
    end = _continue(ask, scripted, begun="The capital of France is Paris.")[-1]
    assert (end.finish_reason, end.note) == ("stop", "")
