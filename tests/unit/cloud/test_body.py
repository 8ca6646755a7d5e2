from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm.cloud.body import Dialect, body_of, learned
from edgellm.core import Message, Request, Sampling
from edgellm.errors import EndpointError
from edgellm.routing import Endpoint

ENDPOINT = Endpoint("http://h", "m")
SYSTEM = Message("system", "Rules: ü. " * 20)
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {"b": 1}}}


def _body(request: Request, *args: Any, endpoint: Endpoint = ENDPOINT) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(body_of(request, endpoint, *args))
    return value


def test_a_body_has_these_bytes() -> None:
    """The order of the fields is fixed: what stays first, what may change behind it."""
    request = Request(
        (Message("system", "S"), Message("user", "안녕")),
        5,
        ("###",),
        Sampling(temperature=0, seed=7),
        (TOOL,),
    )
    assert body_of(request, ENDPOINT).decode() == (
        '{"model":"m","tools":[{"type":"function","function":{"name":"f","parameters":{"b":1}}}],'
        '"messages":[{"role":"system","content":"S"},{"role":"user","content":"안녕"}],'
        '"max_tokens":5,"temperature":0,"top_p":0.95,"stop":["###"],"seed":7,"stream":true,'
        '"stream_options":{"include_usage":true}}'
    )


@given(
    st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=4),
    st.integers(1, 99),
    st.floats(0, 2),
)
def test_one_conversation_begins_with_the_same_bytes(
    turns: list[str], n: int, temperature: float
) -> None:
    """The next turn's body begins with this one's up to its last message, whatever else changes."""
    messages = (SYSTEM, *(Message("user", text) for text in turns))
    now = body_of(Request(messages), ENDPOINT)
    more = Request((*messages, Message("user", "more")), n, (), Sampling(temperature), ())
    then = body_of(more, ENDPOINT)
    stable = now[: now.index(b'],"temperature"')]
    assert then.startswith(stable)
    assert now == body_of(Request(messages), ENDPOINT)


def test_only_what_was_asked_is_sent() -> None:
    """No limit, no stops, no seed, no tools unless a request has them; content is plain text."""
    body = _body(Request((SYSTEM,)))
    assert sorted(body) == [
        "messages", "model", "stream", "stream_options", "temperature", "top_p"
    ]  # fmt: skip
    assert body["messages"] == [{"role": "system", "content": SYSTEM.content}]


def test_marks_and_sensitivity_are_not_sent() -> None:
    """What a message is to this machine alone stays here."""
    body = _body(Request((Message("user", "abc", marks=(1,)),)))
    assert body["messages"] == [{"role": "user", "content": "abc"}]


def test_bounds_of_others_are_kept() -> None:
    """At most four stop strings, and seeds that fit 63 bits."""
    request = Request((SYSTEM,), stop=tuple("abcdef"), sampling=Sampling(seed=(1 << 64) - 1))
    body = _body(request)
    assert body["stop"] == ["a", "b", "c", "d"]
    assert _body(Request((SYSTEM,), stop=("a\ud800", "b")))["stop"] == ["b"]
    assert body["seed"] == (1 << 63) - 1


def test_a_continuation_by_flags() -> None:
    """The beginning is the last message, and the flags say that it is not over."""
    endpoint = Endpoint("http://h", "m", continues="flags")
    body = _body(Request((SYSTEM,)), "Hello ", endpoint=endpoint)
    assert body["messages"][-1] == {"role": "assistant", "content": "Hello"}
    assert body["add_generation_prompt"] is False
    assert body["continue_final_message"] is True


def test_a_continuation_by_a_trailing_message() -> None:
    """The beginning is the last message, and nothing else says so."""
    endpoint = Endpoint("http://h", "m", continues="trailing")
    body = _body(Request((SYSTEM,)), "Hello", endpoint=endpoint)
    assert body["messages"][-1] == {"role": "assistant", "content": "Hello"}
    assert "continue_final_message" not in body
    assert "add_generation_prompt" not in body


@pytest.mark.parametrize("continues", ["flags", "trailing", "none"])
def test_an_empty_beginning_is_no_message(continues: Any) -> None:
    """Without a beginning the body is that of a fresh answer: an empty message would be answered."""
    endpoint = Endpoint("http://h", "m", continues=continues)
    assert _body(Request((SYSTEM,)), "", endpoint=endpoint) == _body(Request((SYSTEM,)))
    if continues != "none":
        assert _body(Request((SYSTEM,)), " \n", endpoint=endpoint) == _body(Request((SYSTEM,)))


def test_an_endpoint_that_cannot_continue_is_not_asked_to() -> None:
    """A beginning for such an endpoint is refused before anything is sent."""
    with pytest.raises(EndpointError) as caught:
        body_of(Request((SYSTEM,)), ENDPOINT, "Hello")
    assert caught.value.kind == "invalid"


NEW_NAME = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."


def test_the_new_name_of_the_limit_is_learned_once() -> None:
    """The limit gets its other name, and never both are sent; a second refusal teaches nothing."""
    request = Request((SYSTEM,), 5)
    dialect = learned(Dialect(), request, NEW_NAME, "max_tokens")
    assert dialect == Dialect(limit_name="max_completion_tokens")
    body = _body(request, "", dialect)
    assert body["max_completion_tokens"] == 5
    assert "max_tokens" not in body
    assert learned(dialect, request, NEW_NAME, "max_tokens") is None
    assert learned(Dialect(), Request((SYSTEM,)), NEW_NAME, "max_tokens") is None


@pytest.mark.parametrize(
    ("words", "param", "left_out"),
    [
        ("Unexpected fields in request: {'stream_options'}", "", "stream_options"),
        ("Unknown parameter", "stream_options.include_usage", "stream_options"),
        ("Unsupported value: 'temperature' does not support 0.8", "temperature", "temperature"),
        ("top_p is not supported with this model", "", "top_p"),
        ("temperature must be at most 1", "", None),
        ("unknown field messages", "messages", None),
        ("unsupported: tempera", "", None),
    ],
)
def test_what_can_be_done_without_is_left_out(words: str, param: str, left_out: str | None) -> None:
    """A refused field at its default is dropped; other refusals teach nothing."""
    dialect = learned(Dialect(), Request((SYSTEM,)), words, param)
    assert (dialect.without if dialect else None) == (frozenset({left_out}) if left_out else None)
    if dialect is not None:
        assert left_out not in _body(Request((SYSTEM,)), "", dialect)
        assert learned(dialect, Request((SYSTEM,)), words, param) is None


def test_what_was_set_by_hand_is_never_left_out() -> None:
    """A temperature somebody chose is sent or refused, and not dropped in silence."""
    request = Request((SYSTEM,), sampling=Sampling(temperature=0))
    assert learned(Dialect(), request, "unsupported temperature", "temperature") is None
