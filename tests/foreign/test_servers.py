"""The client against servers of others; they are installed into environments of their own.

A minute or more for each start: `bash tests/run.sh --group foreign`.
"""

from __future__ import annotations

import importlib.util
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

from edgellm.core import Message, Request, Sampling
from edgellm.errors import EndpointError

pytestmark = [pytest.mark.foreign, pytest.mark.model]

RULES = "You are a poet of the sea. Answer in plain words, and never use more than it takes. " * 4
QUESTION = "Tell a story of three things that one finds on a beach."
QUESTIONS = {"cyllama": "hi"}  # it renders prompts in its own way, which the model ends at once
NAMES = ("llama-cpp-python", "cyllama", "transformers", "vllm")
LONG = Request((Message("user", "Tell a very long story."),), 1500, sampling=Sampling(0))


def _cache() -> Path:
    """Return the folder that outlives a run."""
    path = Path(__file__).resolve().parent.parent / "bench" / "_models.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    folder: Path = module.cache_folder()
    return folder


class Starter:
    """Starts servers by name."""

    def __init__(self, servers: ModuleType, peer: Any, gguf: Path, logs: Path) -> None:
        self._servers, self._peer, self._gguf, self._logs = servers, peer, gguf, logs

    def __call__(self, name: str) -> Iterator[Any]:
        server, cache = self._servers.SERVERS[name], _cache()
        python = self._servers.environment(server, cache)
        model = self._servers.checkpoint(self._gguf, cache) if server.takes_folder else self._gguf
        with self._servers.running(server, model, python, self._logs / f"{name}.log") as running:
            key = "CANARY-KEY-7f3a91c2" if name == "vllm" else None
            yield self._peer(running.url, running.model, key, running.process)


@pytest.fixture(scope="module")
def starter(
    servers: ModuleType,
    peer_class: Any,
    smollm2_gguf: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Starter:
    """Return what starts servers."""
    return Starter(servers, peer_class, smollm2_gguf, tmp_path_factory.mktemp("servers"))


@pytest.fixture(scope="module", params=NAMES)
def server(starter: Starter, request: pytest.FixtureRequest) -> Iterator[tuple[str, Any]]:
    """Each server by its name, one for all tests."""
    for peer in starter(request.param):
        yield request.param, peer


@pytest.fixture
def vllm(starter: Starter) -> Iterator[Any]:
    """A server of the test's own, which it may kill."""
    yield from starter("vllm")


def test_an_answer_streams_to_its_end(server: tuple[str, Any]) -> None:
    """Text in pieces and a reason; counts where the server gives any."""
    name, peer = server
    answer = peer.ask(RULES, QUESTIONS.get(name, QUESTION))
    assert len(answer.pieces) > 4
    # cyllama says `stop` of an answer that was cut at the limit, too.
    assert answer.end.finish_reason == ("stop" if name == "cyllama" else "length")
    counts = answer.end.completion_tokens
    assert counts == (12 if name in {"transformers", "vllm"} else None)


def test_an_answer_is_gone_on_with_or_refused(server: tuple[str, Any]) -> None:
    """Where vLLM was left it goes on; one that refuses or begins anew is found out."""
    name, peer = server
    question = QUESTIONS.get(name, QUESTION)
    whole = peer.ask(RULES, question, n=16)
    begun = "".join(whole.pieces[:7])
    if name == "vllm":
        rest = peer.ask(RULES, question, n=16 - 7, begun=begun, continues="flags")
        assert begun + rest.text == whole.text
        return
    with pytest.raises(EndpointError) as caught:
        peer.ask(RULES, question, n=16, begun=begun, continues="flags")
    assert caught.value.kind == ("invalid" if name == "transformers" else "protocol")


def test_a_prompt_beyond_the_context_is_no_answer(server: tuple[str, Any]) -> None:
    """Refused with a reason, or answered with nothing at all: never taken for an answer."""
    name, peer = server
    if name == "transformers":
        return  # it reads a context as long as the model's, which takes minutes here
    with pytest.raises(EndpointError) as caught:
        peer.ask(RULES * 40, QUESTION)
    known = {"vllm": "too_long", "llama-cpp-python": "incomplete", "cyllama": "protocol"}
    assert caught.value.kind == known[name]


def test_a_cancel_frees_the_server(server: tuple[str, Any]) -> None:
    """It ends at once, and the server takes the next question."""
    name, peer = server
    cancelled = threading.Event()
    threading.Timer(1.0, cancelled.set).start()
    began_s = time.monotonic()
    client = peer.client()
    answer = client.stream(LONG, peer.leave(client), cancelled=cancelled.is_set)
    *_, end = answer
    assert end.finish_reason == "cancelled"
    assert time.monotonic() - began_s < 2
    assert peer.ask(RULES, QUESTIONS.get(name, QUESTION), n=2).end is not None


def test_a_probe_finds_it(server: tuple[str, Any]) -> None:
    """Each keeps a list of models, though not each lists the name it goes by."""
    assert server[1].client().probe().answered_ms > 0


def test_what_vllm_refuses_has_its_kind(vllm: Any) -> None:
    """A wrong key and an unknown model; the prefix of the turn before comes from its cache."""
    with pytest.raises(EndpointError) as caught:
        vllm.ask(RULES, QUESTION, key="WRONG-KEY")
    assert caught.value.kind == "auth"
    with pytest.raises(EndpointError) as caught:
        vllm.ask(RULES, QUESTION, model="nope")
    assert caught.value.kind == "not_found"
    first = vllm.ask(RULES * 4, QUESTION)
    again = vllm.ask(RULES * 4, QUESTION, first.text, "And a fourth?")
    assert again.end.cached_tokens >= 128


def test_a_worker_that_dies_behind_vllm_fails_the_answer(vllm: Any) -> None:
    """It says so in band, and then ends the stream as if all were well."""
    client = vllm.client()
    answer = client.stream(LONG, vllm.leave(client))
    next(answer)
    for child in psutil.Process(vllm.process.pid).children(recursive=True):
        if "EngineCore" in child.name() or "spawn_main" in " ".join(child.cmdline()):
            child.kill()
    with pytest.raises(EndpointError) as caught:
        list(answer)
    assert caught.value.kind in {"server", "incomplete"}
    assert not caught.value.may_retry
