from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from edgellm.cloud.client import ChatClient
from edgellm.cloud.events import CloudText, Traffic
from edgellm.core import Message, Request
from edgellm.errors import EndpointError
from edgellm.routing import Clearance, Endpoint

REQUEST = Request((Message("user", "hi"),))
NEVER = threading.Event()


def _text(events: list[Any]) -> str:
    return "".join(event.text for event in events if isinstance(event, CloudText))


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        ({"origin": "http://127.0.0.1:9"}, "redirect"),
        ({"origin": "https://127.0.0.1:{port}"}, "redirect"),
        ({"origin": "http://localhost:{port}"}, "redirect"),
        ({"origin": ""}, "redirect"),
        ({"model": "other"}, "invalid"),
        ({"max_bytes": 20}, "too_long"),
    ],
)
def test_without_leave_for_this_very_place_nothing_is_opened(
    changed: dict[str, Any], kind: str, scripted, client_for, cleared
) -> None:
    """Another origin, another model, a longer body: refused before there is a connection."""
    with scripted.serving(lambda line: line.stream()) as server:
        client = client_for(server.url)
        told = {n: v.format(port=server.port) if n == "origin" else v for n, v in changed.items()}
        with pytest.raises(EndpointError) as caught:
            client.stream(REQUEST, replace(cleared(client), **told))
    assert (caught.value.kind, server.n_connections) == (kind, 0)


def test_nothing_but_a_clearance_is_leave(scripted, client_for) -> None:
    """What merely looks like one, or nothing, opens nothing."""
    with scripted.serving(lambda line: line.stream()) as server, pytest.raises(EndpointError):
        client_for(server.url).stream(REQUEST, None)
    assert server.n_connections == 0


def test_a_private_message_is_never_sent(scripted, client_for, cleared) -> None:
    """Whatever leave there is, such a message stays here."""
    request = Request((Message("user", "hi", sensitivity="private"), Message("user", "more")))
    with scripted.serving(lambda line: line.stream()) as server:
        client = client_for(server.url)
        with pytest.raises(EndpointError):
            client.stream(request, cleared(client))
    assert server.n_connections == 0


def test_an_origin_may_be_spelled_otherwise(scripted, client_for, cleared) -> None:
    """The place counts, and not how its name is written."""
    with scripted.serving(lambda line: line.stream(scripted.chunk("x", "stop"))) as server:
        client = client_for(server.url)
        leave = replace(cleared(client), origin=f"HTTP://127.0.0.1:{server.port}/")
        assert _text(list(client.stream(REQUEST, leave))) == "x"


def test_what_is_sent_is_what_was_counted(scripted, client_for, cleared) -> None:
    """The body on the wire is `body_of`, byte for byte, and its length is told."""
    with scripted.serving(lambda line: line.stream(scripted.chunk("x", "stop"))) as server:
        client, traffic = client_for(server.url), Traffic()
        *_, end = client.stream(REQUEST, cleared(client), traffic=traffic)
    (asked,) = server.asked
    assert asked.body == client.body_of(REQUEST)
    assert end.bytes_out == traffic.bytes_out == len(asked.body)
    assert end.bytes_in == traffic.bytes_in > 50
    assert (asked.method, asked.path) == ("POST", "/v1/chat/completions")


def test_bytes_are_counted_though_it_fails(scripted, client_for, cleared) -> None:
    """What was moved before a failure is known after it."""
    traffic = Traffic()

    def cut(line: Any) -> None:
        line.send(scripted.OK)
        line.chunk(scripted.sse(scripted.chunk("x")))

    with scripted.serving(cut) as server:
        client = client_for(server.url)
        with pytest.raises(EndpointError):
            list(client.stream(REQUEST, cleared(client), traffic=traffic))
    assert traffic.bytes_out == len(client.body_of(REQUEST))
    assert traffic.bytes_in > 20


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(status: int, scripted, client_for, cleared) -> None:
    """Not even to the same host: nothing is sent where nobody gave leave to."""
    with scripted.serving(lambda line: line.stream()) as other:
        goal = {"Location": f"{other.url}/v1/chat/completions"}
        with scripted.serving(lambda line: line.reply(status, "", goal)) as server:
            client = client_for(server.url, key="KEY")
            with pytest.raises(EndpointError) as caught:
                client.stream(REQUEST, cleared(client))
    assert caught.value.kind == "redirect"
    assert (other.n_connections, server.n_connections) == (0, 1)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_nothing_is_tried_twice(status: int, scripted, client_for, cleared) -> None:
    """One call is one request, whatever comes back: the router has the one loop."""
    with scripted.serving(lambda line: line.reply(status)) as server:
        client = client_for(server.url)
        with pytest.raises(EndpointError):
            client.stream(REQUEST, cleared(client))
    assert server.n_connections == 1


def test_the_other_name_of_the_limit_is_remembered(scripted, client_for, cleared) -> None:
    """A refusal may be tried again, with the other name, and so is every request from then on."""

    def handle(line: Any) -> None:
        if "max_tokens" in line.asked.json():
            line.reply(400, '{"error": {"message": "Use max_completion_tokens instead"}}')
        else:
            line.stream(scripted.chunk("x", "stop"))

    request = replace(REQUEST, max_tokens=5)
    with scripted.serving(handle) as server:
        client = client_for(server.url)
        with pytest.raises(EndpointError) as caught:
            client.stream(request, cleared(client))
        assert caught.value.may_retry
        for _ in range(2):
            assert _text(list(client.stream(request, cleared(client)))) == "x"
    assert ["max_tokens" in asked.json() for asked in server.asked] == [True, False, False]


@pytest.mark.parametrize(
    ("status", "body", "models", "lists_model"),
    [
        (200, '{"data": [{"id": "m"}, {"id": "n"}, {"no": 1}, 7]}', ("m", "n"), True),
        (200, '{"data": [{"id": "n"}]}', ("n",), False),
        (200, "no list", (), None),
        (200, '{"data": 7}', (), None),
        (404, "", (), None),
    ],
)
def test_a_probe_sends_nothing_but_the_question(
    status: int, body: str, models: tuple[str, ...], lists_model: bool | None, scripted, client_for
) -> None:
    """It asks for the models, with the key, and no content."""
    with scripted.serving(lambda line: line.reply(status, body)) as server:
        found = client_for(f"{server.url}/v1?q=SECRET", key="KEY").probe()
    (asked,) = server.asked
    assert (asked.method, asked.path, asked.body) == ("GET", "/v1/models?q=SECRET", b"")
    assert asked.headers["authorization"] == "Bearer KEY"
    assert (found.models, found.lists_model) == (models, lists_model)
    assert "SECRET" not in found.url


def test_a_probe_says_what_is_wrong(scripted, client_for) -> None:
    """A wrong key, a redirect, a silent server: the same errors as for an answer."""
    with scripted.serving(lambda line: line.reply(401, '{"error": "Unauthorized"}')) as server:
        with pytest.raises(EndpointError) as caught:
            client_for(server.url).probe()
        assert caught.value.kind == "auth"
    with scripted.serving(lambda line: NEVER.wait(2)) as server:
        with pytest.raises(EndpointError) as caught:
            client_for(server.url, first_byte_s=0.15).probe()
        assert caught.value.kind == "timeout"


def test_making_a_client_opens_nothing(scripted) -> None:
    """Only an answer or a probe does."""
    with scripted.serving(lambda line: line.stream()) as server:
        ChatClient(Endpoint(server.url, "m"), "KEY")
        Clearance(server.url, "m", "", "")
    assert server.n_connections == 0
