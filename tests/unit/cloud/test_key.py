from __future__ import annotations

import logging
from typing import Any

import pytest

from edgellm.cloud.address import address_of
from edgellm.cloud.client import ChatClient
from edgellm.cloud.key import ApiKey
from edgellm.core import Message, Request
from edgellm.errors import EndpointError
from edgellm.routing import Endpoint

KEY = "CANARY-KEY-7f3a91c2"
REQUEST = Request((Message("user", "CANARY-PROMPT"),))


def test_a_key_is_in_the_header_and_nowhere_else(scripted, client_for, cleared) -> None:
    """The header has it, without the line end behind it; path and body have not."""
    with scripted.serving(lambda line: line.stream(scripted.chunk("x", "stop"))) as server:
        client = client_for(server.url, key=f"{KEY}\n")
        list(client.stream(REQUEST, cleared(client)))
    (asked,) = server.asked
    assert asked.headers.pop("authorization") == f"Bearer {KEY}"
    assert KEY not in f"{asked.path} {asked.headers} {asked.body!r}"


def test_no_key_is_no_header(scripted, client_for, cleared) -> None:
    """A local server is asked without a key."""
    with scripted.serving(lambda line: line.stream(scripted.chunk("x", "stop"))) as server:
        client = client_for(server.url, key=" \n")
        list(client.stream(REQUEST, cleared(client)))
    assert "authorization" not in server.asked[0].headers


def test_an_azure_deployment_gets_its_own_header() -> None:
    """There a key goes into `api-key`."""
    key = ApiKey(KEY, address_of("https://h/openai/deployments/x?api-version=1"))
    assert key.header() == {"api-key": KEY}


@pytest.mark.parametrize("text", ["two words", "a\nb", "a\r\nX-Evil: 1", "schlüssel", "a\x00b"])
def test_a_key_no_header_can_carry_is_refused_unsaid(text: str) -> None:
    """A line end within it would end the header; the message does not repeat the key."""
    with pytest.raises(EndpointError) as caught:
        ChatClient(Endpoint("http://h", "m"), text)
    assert caught.value.kind == "auth"
    assert text not in str(caught.value)
    assert caught.value.__cause__ is None


def test_no_repr_shows_the_key() -> None:
    """Neither the client nor what it holds prints it, and no query of the address."""
    client = ChatClient(Endpoint("http://h/v1?sig=QUERYSECRET", "m"), KEY)
    shown = f"{client!r} {client} {vars(client)!r}"
    assert KEY not in shown
    assert "QUERYSECRET" not in repr(client)


def _answers(scripted: Any) -> dict[str, Any]:
    return {
        "good": lambda line: line.stream(scripted.chunk("x", "stop")),
        "401": lambda line: line.reply(401, f'{{"error": {{"message": "bad key {KEY}"}}}}'),
        "500": lambda line: line.reply(500, f"boom {KEY}"),
        "in-band": lambda line: line.stream({"error": {"message": f"key {KEY}"}}),
        "cut": lambda line: line.send(scripted.OK),
        "reset": lambda line: line.reset(),
        "nonsense": lambda line: line.send(b"what?\r\n\r\n"),
        "redirect": lambda line: line.reply(307, "", {"Location": f"http://h/?k={KEY}"}),
        "finish": lambda line: line.stream(scripted.chunk("x", KEY)),
        "page": lambda line: line.reply(200, f"<{KEY}>", {"Content-Type": f"text/html; {KEY}"}),
    }


@pytest.mark.parametrize("how", [
    "good", "401", "500", "in-band", "cut", "reset", "nonsense", "redirect", "finish", "page",
])  # fmt: skip
def test_no_log_and_no_error_has_key_or_prompt(
    how: str, scripted, client_for, cleared, caplog: pytest.LogCaptureFixture
) -> None:
    """With every logger at DEBUG, through success and failure, neither is anywhere to be read."""
    caplog.set_level(logging.DEBUG)
    told = ""
    with scripted.serving(_answers(scripted)[how]) as server:
        client = client_for(server.url, key=KEY)
        try:
            told = repr(list(client.stream(REQUEST, cleared(client))))
        except EndpointError as err:
            causes, cause = [], err
            while cause is not None:
                causes.append(repr(cause))
                cause = cause.__cause__ or cause.__context__
            told = f"{err} {vars(err)} {causes}"
    assert any("httpcore" in record.name for record in caplog.records)  # they did log
    for text in (told, caplog.text.replace(f"k={KEY}", "").replace(f"; {KEY}", "")):
        assert KEY not in text
        assert "CANARY-PROMPT" not in text
