"""The client against llama.cpp's own HTTP server, over a real model: in the default run."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from edgellm.core import Message, Request, Sampling
from edgellm.errors import EndpointError

pytestmark = pytest.mark.model

RULES = "You are a poet of the sea. Answer in plain words, and never use more than it takes. " * 4
QUESTION = "Name three things that one finds on a beach."


def test_an_answer_streams_and_is_counted(llama_server: Any) -> None:
    """Text in pieces, the end with its reason, and the server's own counts."""
    answer = llama_server.ask(RULES, QUESTION)
    assert len(answer.pieces) > 6
    assert answer.end.finish_reason == "length"
    assert answer.end.completion_tokens == 12
    assert answer.end.prompt_tokens > 80
    assert answer.end.bytes_out > len(RULES)
    assert answer.end.bytes_in > 1000


def test_the_prefix_of_the_turn_before_is_found_again(llama_server: Any) -> None:
    """The body begins with the same bytes, so the server's own cache has all but the last turn."""
    first = llama_server.ask(RULES, QUESTION)
    again = llama_server.ask(RULES, QUESTION, first.text, "And a fourth?")
    assert again.end.cached_tokens >= first.end.prompt_tokens - 8


@pytest.mark.parametrize("continues", ["trailing", "flags"])
@pytest.mark.parametrize("n_pieces", [1, 7])
def test_an_answer_is_gone_on_with(llama_server: Any, continues: str, n_pieces: int) -> None:
    """Begun here and ended there is the answer undisturbed: nothing twice, nothing lost."""
    whole = llama_server.ask(RULES, QUESTION, n=16)
    begun = "".join(whole.pieces[:n_pieces])
    rest = llama_server.ask(RULES, QUESTION, n=16 - n_pieces, begun=begun, continues=continues)
    assert begun + rest.text == whole.text


def test_a_wrong_key_is_told_without_it(llama_server: Any) -> None:
    """401 before any stream, for answers and for the probe."""
    with pytest.raises(EndpointError) as caught:
        llama_server.ask(RULES, QUESTION, key="WRONG-KEY")
    assert (caught.value.kind, caught.value.may_retry) == ("auth", False)
    assert "WRONG-KEY" not in str(caught.value)


def test_a_prompt_beyond_the_context_names_both_numbers(llama_server: Any) -> None:
    """Refused with the tokens it has and the tokens there are; nothing is cut."""
    with pytest.raises(EndpointError) as caught:
        llama_server.ask(RULES * 60, QUESTION)
    assert caught.value.kind == "too_long"
    assert "2048" in str(caught.value)


def test_a_cancel_frees_the_server(llama_server: Any) -> None:
    """The socket is closed within 300 ms, and the next question does not wait for the old answer."""
    cancelled = threading.Event()
    threading.Timer(0.3, cancelled.set).start()
    began_s = time.monotonic()
    answer = llama_server.ask(RULES, "Tell a very long story.", n=1500, cancelled=cancelled.is_set)
    assert answer.end.finish_reason == "cancelled"
    assert time.monotonic() - began_s < 2
    assert llama_server.ask(RULES, QUESTION, n=1).end.completion_tokens == 1


def test_a_probe_lists_the_model(llama_server: Any) -> None:
    """`/v1/models` names what is served, and no content is sent for it."""
    found = llama_server.client().probe()
    assert found.lists_model is True
    assert llama_server.client(model="other").probe().lists_model is False


def test_a_server_that_is_killed_has_cut_its_answer(start_llama_server: Any) -> None:
    """SIGKILL in mid-answer: `incomplete` within two seconds, text kept, no second try of ours."""
    request = Request((Message("user", "Tell a very long story."),), 1500, sampling=Sampling(0))
    pieces: list[str] = []
    killed_s: list[float] = []

    def kill_behind_three(piece: str) -> None:
        pieces.append(piece)
        if len(pieces) == 3:
            peer.process.kill()
            killed_s.append(time.monotonic())

    with start_llama_server() as peer:
        client = peer.client()
        answer = client.stream(request, peer.leave(client))
        with pytest.raises(EndpointError) as caught:
            list(map(kill_behind_three, (event.text for event in answer)))
        assert time.monotonic() - killed_s[0] < 2
    assert (caught.value.kind, caught.value.may_retry) == ("incomplete", False)
    assert len(pieces) >= 3
