"""A scripted endpoint, and a client for it with short limits and leave to send."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from edgellm.cloud.client import ChatClient
from edgellm.cloud.events import CloudEvent
from edgellm.core import Message, Request
from edgellm.routing import Clearance, Endpoint

Ask = Callable[..., list[CloudEvent]]


@pytest.fixture(scope="session")
def scripted(endpoint_server: ModuleType) -> ModuleType:
    """The module of the scripted server."""
    return endpoint_server


@pytest.fixture
def client_for() -> Callable[..., ChatClient]:
    """Return a function that makes a client for a URL."""

    def make(url: str, *, key: str | None = None, **settings: Any) -> ChatClient:
        limits = {"connect_s": 2.0, "first_byte_s": 2.0, "idle_s": 2.0} | settings
        return ChatClient(Endpoint(url, "m", **limits), key)

    return make


@pytest.fixture
def cleared() -> Callable[[ChatClient], Clearance]:
    """Return a function that gives the leave to ask a client's own endpoint."""

    def clear(client: ChatClient) -> Clearance:
        return Clearance(client.address.origin, "m", "consent", "reservation")

    return clear


@pytest.fixture
def ask(scripted, client_for, cleared) -> Ask:
    """Return a function that asks an endpoint which handles its connections as told."""

    def run(
        handler: Any, *, text: str = "hi", begun: str = "", key: str | None = None, **settings: Any
    ) -> list[CloudEvent]:
        with scripted.serving(handler) as server:
            client = client_for(server.url, key=key, **settings)
            request = Request((Message("user", text),))
            with client.stream(request, cleared(client), begun=begun) as answer:
                return list(answer)

    return run
