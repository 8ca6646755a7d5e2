"""Servers that mean harm: nothing they send repeats the key, fills the memory or doubles the text."""

from __future__ import annotations

import gzip
import threading
import tracemalloc
from typing import Any

import pytest

from edgellm.cloud.client import ChatClient
from edgellm.cloud.events import CloudText
from edgellm.cloud.joint import Joint
from edgellm.cloud.sse import MAX_LINE_BYTES
from edgellm.cloud.unpacking import MAX_PIECE_BYTES, unpacked
from edgellm.core import Message, Request
from edgellm.errors import EndpointError
from edgellm.routing import Clearance, Endpoint

KEY = "s3cr3tKEYvalue0001"
EVENTS = {"Content-Type": "text/event-stream"}


def _text(events: list[Any]) -> str:
    return "".join(event.text for event in events if isinstance(event, CloudText))


def _failure(ask: Any, handler: Any, **settings: Any) -> EndpointError:
    with pytest.raises(EndpointError) as caught:
        ask(handler, **settings)
    return caught.value


@pytest.mark.parametrize(
    "place",
    ["redirect", "redirected host", "web page", "finish reason", "part of content", "cut"],
)
def test_an_echoed_key_is_shown_nowhere(ask, scripted, place: str) -> None:
    """Wherever a server puts the key into its answer, the error has stars there."""
    part = {"choices": [{"delta": {"content": [{"type": KEY}]}}]}
    cut = '{"error": {"message": "%s"}}' % (" " * (4096 - len(KEY) + 1) + KEY)
    handlers: dict[str, Any] = {
        "redirect": lambda line: line.reply(302, "", {"Location": f"http://x/{KEY}/y"}),
        "redirected host": lambda line: line.reply(302, "", {"Location": f"http://{KEY}.x/"}),
        "web page": lambda line: line.reply(200, "<", {"Content-Type": f"text/html; {KEY}"}),
        "finish reason": lambda line: line.stream(scripted.chunk("x", KEY)),
        "part of content": lambda line: line.stream(part),
        "cut": lambda line: line.reply(500, cut),
    }
    told = str(_failure(ask, handlers[place], key=KEY))
    assert "***" in told
    assert KEY[:-1] not in told


@pytest.mark.parametrize("encoding", ["gzip, gzip", "br", "zstd", "gzip\t,deflate"])
def test_what_is_packed_twice_or_strangely_is_refused(ask, scripted, encoding: str) -> None:
    """A few hundred bytes that are packed twice stand for gigabytes."""
    body = gzip.compress(gzip.compress(b"data: {}\n\n"))
    err = _failure(ask, lambda line: line.reply(200, body, EVENTS | {"Content-Encoding": encoding}))
    assert (err.kind, "packs its answer" in str(err)) == ("protocol", True)


def test_a_packed_answer_is_unpacked_in_small_pieces() -> None:
    """A thousandfold answer never lies in memory as a whole."""
    packed = gzip.compress(bytes(64 << 20), 9)
    tracemalloc.start()
    n_bytes = 0
    for piece in unpacked([packed[:100], packed[100:]], "gzip", "somewhere"):
        assert len(piece) <= MAX_PIECE_BYTES
        n_bytes += len(piece)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert n_bytes == 64 << 20
    assert peak_bytes < 4 << 20


def test_a_packed_answer_that_ends_early_is_cut() -> None:
    """Its last bytes hold the length: without them nobody knows what is missing."""
    packed = gzip.compress(b"data: x\n\n" * 100)
    with pytest.raises(EndpointError) as caught:
        list(unpacked([packed[:-9]], "gzip", "somewhere"))
    assert caught.value.kind == "incomplete"


def test_json_in_one_piece_is_bounded(ask) -> None:
    """`[{},{},...]` takes forty times its length once it is read."""
    body = '{"choices": [' + "{}," * (MAX_LINE_BYTES // 3) + "{}]}"
    err = _failure(ask, lambda line: line.reply(200, body))
    assert (err.kind, "in one piece" in str(err)) == ("protocol", True)


def test_a_reader_that_pauses_lets_the_server_wait(scripted, client_for, cleared) -> None:
    """What nobody reads yet is not gathered without end, and all of it comes later."""
    event = scripted.sse(scripted.chunk("x"))
    n_sent = 0
    is_over = threading.Event()

    def handle(line: Any) -> None:
        nonlocal n_sent
        line.send(scripted.OK)
        while n_sent < 400_000:
            line.chunk(event)
            n_sent += 1
        line.chunk(scripted.sse(scripted.chunk(finish="stop")))
        line.end()
        is_over.set()

    with scripted.serving(handle) as server:
        client = client_for(server.url)
        with client.stream(Request((Message("user", "hi"),)), cleared(client)) as answer:
            assert next(answer) == CloudText("x")
            assert not is_over.wait(0.2)
            answer.close()
    assert n_sent < 400_000


@pytest.mark.parametrize("delta", [{"delta": {}}, {"delta": None}, {}])
def test_a_whole_message_behind_its_pieces_says_nothing_new(ask, scripted, delta: Any) -> None:
    """Some servers end a stream with the whole answer once more; it is shown once."""
    last = {"choices": [delta | {"message": {"content": "Hello"}, "finish_reason": "stop"}]}
    pieces = (scripted.chunk("Hel"), scripted.chunk("lo"))
    assert _text(ask(lambda line: line.stream(*pieces, last))) == "Hello"
    assert _text(ask(lambda line: line.stream(last))) == "Hello"


@pytest.mark.parametrize("url", ["http://xn--a.com:9", "http://127.0.0.1:9/" + "x" * 70_000])
def test_an_address_that_httpx_refuses_is_our_error(url: str) -> None:
    """No name or length makes the client fail with an error of somebody else's."""
    client = ChatClient(Endpoint(url, "m"))
    leave = Clearance(client.address.origin, "m", "consent", "reservation")
    with pytest.raises(EndpointError) as caught:
        client.stream(Request((Message("user", "hi"),)), leave)
    assert (caught.value.kind, caught.value.may_retry) == ("invalid", False)


def test_blanks_without_end_are_let_through() -> None:
    """The joint holds words back until it can tell; it holds no more than a line of blanks."""
    joint = Joint("Hello there, my friend")
    shown = "".join(joint.feed(" ") for _ in range(100_000))
    assert len(shown) == 100_000
