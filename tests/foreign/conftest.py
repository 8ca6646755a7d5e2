"""Servers of others, each in an environment of its own, and a client that asks them."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from edgellm.cloud.client import ChatClient
from edgellm.cloud.events import CloudEnd, CloudText
from edgellm.core import Message, Request, Sampling
from edgellm.routing import Clearance, Endpoint

HERE = Path(__file__).resolve().parent
KEY = "CANARY-KEY-7f3a91c2"
PYTHON = "EDGELLM_TEST_PEER_PYTHON"
MODEL = "smollm2"


@dataclass
class Answer:
    """What came of one call, piece by piece."""

    pieces: list[str] = field(default_factory=list)
    end: CloudEnd | None = None

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@dataclass
class Peer:
    """A running server of somebody else."""

    url: str
    model: str = MODEL
    key: str | None = None
    process: subprocess.Popen[Any] | None = None

    def client(self, *, key: str | None = None, model: str = "", **settings: Any) -> ChatClient:
        """Return a client; the key is the right one unless another is given."""
        return ChatClient(Endpoint(self.url, model or self.model, **settings), key or self.key)

    def leave(self, client: ChatClient, model: str = "") -> Clearance:
        """Return the leave to ask it."""
        return Clearance(client.address.origin, model or self.model, "consent", "reservation")

    def ask(
        self,
        *texts: str,
        n: int | None = 12,
        begun: str = "",
        key: str | None = None,
        model: str = "",
        cancelled: Callable[[], bool] = lambda: False,
        **settings: Any,
    ) -> Answer:
        """Ask greedily: turns of user and assistant, the first message being the system's."""
        system, *turns = texts
        roles = ("user", "assistant")
        messages = [Message(roles[i % 2], text) for i, text in enumerate(turns)]
        request = Request((Message("system", system), *messages), n, sampling=Sampling(0))
        client, answer = self.client(key=key, model=model, **settings), Answer()
        leave = self.leave(client, model)
        for event in client.stream(request, leave, begun=begun, cancelled=cancelled):
            if isinstance(event, CloudText):
                answer.pieces.append(event.text)
            elif isinstance(event, CloudEnd):
                answer.end = event
        return answer


def _peer_python() -> str:
    """Return a Python that has xllamacpp: this one, or the one that a variable names."""
    named = os.environ.get(PYTHON)
    if named is None and importlib.util.find_spec("xllamacpp") is None:
        pytest.fail(f"xllamacpp is not installed; tests/run.sh installs it, or set {PYTHON}")
    return named or sys.executable


@contextlib.contextmanager
def _running(command: list[str]) -> Iterator[Peer]:
    """Run llama.cpp's server until the block ends."""
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        line = process.stdout.readline()
        assert line, process.stderr.read()[-2000:]
        yield Peer(json.loads(line)["url"], key=KEY, process=process)
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def start_llama_server(smollm2_gguf: Path) -> Callable[[], Any]:
    """Return a context manager that runs a server of the test's own."""
    command = [_peer_python(), str(HERE / "llama_server.py"), str(smollm2_gguf), KEY]
    return lambda: _running(command)


@pytest.fixture(scope="module")
def llama_server(smollm2_gguf: Path) -> Iterator[Peer]:
    """llama.cpp's own server over SmolLM2, one for all tests of a file."""
    command = [_peer_python(), str(HERE / "llama_server.py"), str(smollm2_gguf), KEY]
    with _running(command) as peer:
        yield peer


@pytest.fixture(scope="session")
def peer_class() -> type[Peer]:
    """What a running server is to a test."""
    return Peer


@pytest.fixture(scope="session")
def servers(load_module: Callable[[Path], ModuleType]) -> ModuleType:
    """The table of servers, and how each is installed and started."""
    return load_module(HERE / "servers.py")
