from __future__ import annotations

import gc
import queue
import socket
import threading
import time
from typing import Any

import pytest

from edgellm.cloud.events import CloudText, Traffic
from edgellm.core import Message, Request
from edgellm.errors import EndpointError

REQUEST = Request((Message("user", "hi"),))
NEVER = threading.Event()


def _text(events: list[Any]) -> str:
    return "".join(event.text for event in events if isinstance(event, CloudText))


def _failure(ask: Any, handler: Any, **settings: Any) -> EndpointError:
    with pytest.raises(EndpointError) as caught:
        ask(handler, **settings)
    return caught.value


def test_without_a_thread_nothing_is_sent(ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that has none to give is told from an endpoint that is not there."""

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    reached: list[Any] = []
    monkeypatch.setattr("edgellm.cloud.exchange.Started", refuse)
    err = _failure(ask, reached.append)
    assert (err.kind, "no thread could be started" in str(err)) == ("connect", True)
    assert not reached


@pytest.mark.parametrize("told", ["nothing", "headers", "role"])
def test_the_first_byte_has_its_limit(ask, scripted, told: str) -> None:
    """Before headers, after them, and behind a role without text, which some send at once."""

    def handle(line: Any) -> None:
        if told != "nothing":
            line.send(scripted.OK)
        if told == "role":
            line.chunk(scripted.sse(scripted.chunk("", role="assistant")))
        NEVER.wait(3)

    err = _failure(ask, handle, first_byte_s=0.15)
    assert (err.kind, err.may_retry) == ("timeout", False)
    assert "first byte" in str(err)
    assert "0.15 s" in str(err)
    assert "first_byte_s" in err.hint


def test_silence_between_bytes_has_its_limit(ask, scripted) -> None:
    """The idle limit is named, and holds although the one of the first byte is longer."""

    def handle(line: Any) -> None:
        line.send(scripted.OK)
        line.chunk(scripted.sse(scripted.chunk("x")))
        NEVER.wait(3)

    err = _failure(ask, handle, idle_s=0.15)
    assert (err.kind, "idle" in str(err), "idle_s" in err.hint) == ("timeout", True, True)


def test_a_slow_answer_that_goes_on_is_no_timeout(ask, scripted) -> None:
    """Keep-alive comments and single bytes reset the limits: there is none of the whole."""
    body = b": ping\n\n" * 4 + scripted.sse(scripted.chunk("x", "stop")).encode()

    def handle(line: Any) -> None:
        line.send(scripted.OK)
        for at in range(0, len(body), 8):
            line.chunk(body[at : at + 8])
            NEVER.wait(0.05)
        line.end()

    began_s = time.monotonic()
    assert _text(ask(handle, first_byte_s=0.3, idle_s=0.3)) == "x"
    assert time.monotonic() - began_s > 0.5


def test_a_connection_has_its_limit(client_for, cleared) -> None:
    """A host that does not answer: the phase is named, and a second try can harm nobody."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        with socket.socket() as first, socket.socket() as second:
            for filler in (first, second):  # the queue is full: nobody else gets in
                filler.setblocking(False)
                filler.connect_ex(listener.getsockname())
            client = client_for(f"http://127.0.0.1:{listener.getsockname()[1]}", connect_s=0.2)
            with pytest.raises(EndpointError) as caught:
                client.stream(REQUEST, cleared(client))
    assert (caught.value.kind, caught.value.may_retry) == ("timeout", True)
    assert "phase: connect" in str(caught.value)


def test_nobody_there_is_a_failure_to_connect(client_for, cleared) -> None:
    """The system's reason is told; nothing was sent."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    client, traffic = client_for(f"http://127.0.0.1:{port}"), Traffic()
    with pytest.raises(EndpointError) as caught:
        client.stream(REQUEST, cleared(client), traffic=traffic)
    assert (caught.value.kind, caught.value.may_retry) == ("connect", True)
    assert "refused" in str(caught.value)
    assert traffic.bytes_out == 0


def test_an_unknown_host_is_told(client_for, cleared) -> None:
    """A name that nobody knows; `.invalid` never is one."""
    client = client_for("http://nowhere.invalid")
    with pytest.raises(EndpointError) as caught:
        client.stream(REQUEST, cleared(client))
    assert caught.value.kind == "connect"


@pytest.mark.parametrize("when", ["before the headers", "before the text", "in the text"])
def test_cancelling_closes_the_socket_at_once(when: str, scripted, client_for, cleared) -> None:
    """From another thread, whatever is being waited for; the server sees it within 300 ms."""
    cancelled, asked, gone = threading.Event(), threading.Event(), threading.Event()
    shown = threading.Event()

    def handle(line: Any) -> None:
        if when != "before the headers":
            line.send(scripted.OK)
        if when == "in the text":
            line.chunk(scripted.sse(scripted.chunk("x")))
        asked.set()
        line.gone_s()
        gone.set()

    with scripted.serving(handle) as server:
        client, events = client_for(server.url), []

        def run() -> None:
            for event in client.stream(REQUEST, cleared(client), cancelled=cancelled.is_set):
                events.append(event)
                shown.set()

        thread = threading.Thread(target=run)
        thread.start()
        assert (shown if when == "in the text" else asked).wait(5)
        cancelled.set()
        assert gone.wait(0.3)
        thread.join(5)
    assert events[-1].finish_reason == "cancelled"
    assert _text(events) == ("x" if when == "in the text" else "")


def test_a_connection_that_comes_after_the_cancel_is_closed(
    scripted, client_for, cleared, monkeypatch
) -> None:
    """Nobody holds it yet, so that it would stay open until memory is tidied."""
    cancelled, given_up, made = threading.Event(), threading.Event(), queue.Queue[socket.socket]()
    connect = socket.create_connection

    def slowly(*arguments: Any, **named: Any) -> socket.socket:
        line = connect(*arguments, **named)
        cancelled.set()
        given_up.wait(5)
        made.put(line)
        return line

    monkeypatch.setattr(socket, "create_connection", slowly)
    with scripted.serving(lambda line: line.gone_s()) as server:
        client = client_for(server.url)
        events = list(client.stream(REQUEST, cleared(client), cancelled=cancelled.is_set))
        given_up.set()
        line = made.get(timeout=5)
        for _ in range(100):
            if line.fileno() < 0:
                break
            time.sleep(0.02)
    assert [event.finish_reason for event in events] == ["cancelled"]
    assert line.fileno() < 0


def test_cancelling_before_anything_was_sent(scripted, client_for, cleared) -> None:
    """A cancel that comes first is an answer that ends at once."""
    with scripted.serving(lambda line: line.stream()) as server:
        client = client_for(server.url)
        (end,) = client.stream(REQUEST, cleared(client), cancelled=lambda: True)
    assert end.finish_reason == "cancelled"


@pytest.mark.parametrize("how", ["close", "with", "forgotten"])
def test_an_answer_nobody_wants_is_left(how: str, scripted, client_for, cleared) -> None:
    """Closed, left by its block, or just dropped: the server's slot is free at once."""
    gone = threading.Event()

    def handle(line: Any) -> None:
        line.send(scripted.OK)
        line.chunk(scripted.sse(scripted.chunk("x")))
        line.gone_s()
        gone.set()

    with scripted.serving(handle) as server:
        client = client_for(server.url)
        answer = client.stream(REQUEST, cleared(client))
        if how == "with":
            with answer:
                next(answer)
        else:
            next(answer)
        if how == "close":
            answer.close()
        del answer
        gc.collect()
        assert gone.wait(1)


def test_a_close_from_another_thread_ends_the_answer(scripted, client_for, cleared) -> None:
    """Whoever waits for the next event gets the end `cancelled`, and no failure."""
    with scripted.serving(lambda line: (line.send(scripted.OK), NEVER.wait(3))) as server:
        client = client_for(server.url)
        answer = client.stream(REQUEST, cleared(client))
        threading.Timer(0.1, answer.close).start()
        assert [event.finish_reason for event in answer] == ["cancelled"]


def test_threads_may_share_a_client(scripted, client_for, cleared) -> None:
    """Each answer has its own connection, and its own text."""

    def handle(line: Any) -> None:
        line.stream(scripted.chunk(line.asked.json()["messages"][0]["content"], "stop"))

    with scripted.serving(handle) as server:
        client, found = client_for(server.url), {}

        def run(text: str) -> None:
            request = Request((Message("user", text),))
            found[text] = _text(list(client.stream(request, cleared(client))))

        threads = [threading.Thread(target=run, args=(f"t{n}",)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
    assert found == {f"t{n}": f"t{n}" for n in range(8)}
