from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm.cloud.chunks import Answer, Counted
from edgellm.cloud.events import CloudReasoning, CloudText, CloudToolCall
from edgellm.errors import EndpointError


def _delta(finish: Any = None, index: Any = 0, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": delta, "finish_reason": finish}]}


def _call(arguments: Any, **named: Any) -> dict[str, Any]:
    name = named.pop("name", None)
    function = {"arguments": arguments} | ({"name": name} if name else {})
    return named | {"function": function}


def _read(*chunks: Any) -> tuple[Answer, str, str]:
    """Read chunks; return the answer, its text and its thoughts."""
    answer = Answer("http://h")
    events = [e for c in chunks for e in answer.read(c if isinstance(c, str) else json.dumps(c))]
    events += answer.rest()
    text = "".join(e.text for e in events if isinstance(e, CloudText))
    return answer, text, "".join(e.text for e in events if isinstance(e, CloudReasoning))


def _error(*chunks: Any) -> EndpointError:
    with pytest.raises(EndpointError) as caught:
        _read(*chunks)
    return caught.value


@pytest.mark.parametrize(
    "chunk",
    [
        {},
        {"choices": []},
        {"choices": None},
        {"choices": [{}]},
        {"choices": [{"delta": None}]},
        {"choices": [{"delta": {}}]},
        _delta(content=None),
        _delta(content="", role="assistant"),
        _delta(content=None, tool_calls=None, function_call=None, reasoning=None, refusal=None),
        _delta(content=[]),
        {"choices": [], "usage": None},
        {"error": None, "choices": []},
    ],
)
def test_null_and_absent_are_nothing(chunk: dict[str, Any]) -> None:
    """Empty choices, no choices, null content: no text, no failure, and never the word None."""
    answer, text, thoughts = _read(chunk)
    assert (text, thoughts, answer.finish, answer.has_text) == ("", "", None, False)


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_thoughts_are_no_part_of_the_answer(name: str) -> None:
    """Thoughts come under either name, and as parts; the answer is beside them."""
    _, text, thoughts = _read(_delta(**{name: "hm "}), _delta(content="Hi", **{name: "ok"}))
    assert (text, thoughts) == ("Hi", "hm ok")
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
        {"type": "text", "text": "Hi"},
    ]
    assert _read(_delta(content=parts))[1:] == ("Hi", "hm")


def test_a_refusal_is_text() -> None:
    """What a model says in place of an answer is shown."""
    assert _read(_delta(refusal="I will not"))[1] == "I will not"


def test_only_the_first_choice_counts() -> None:
    """Of several answers the first is taken, whatever the order; without an index there is one."""
    answer, text, _ = _read(
        _delta(content="A"), _delta(content="B", index=1), _delta("length", 1), _delta("stop")
    )
    assert (text, answer.finish) == ("A", "stop")
    assert _read(_delta(content="A", index=None))[1] == "A"


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("stop", "stop"),
        ("eos", "stop"),
        ("length", "length"),
        ("max_tokens", "length"),
        ("tool_calls", "tool_calls"),
        ("function_call", "tool_calls"),
        ("content_filter", "content_filter"),
        ("", None),
        (None, None),
    ],
)
def test_finish_reasons_have_one_name(reason: Any, told: Any) -> None:
    """The names that servers use are brought to ours; empty is none."""
    assert _read(_delta(reason))[0].finish == told


@pytest.mark.parametrize("reason", ["abort", "error", "insufficient_system_resource", 7, {}])
def test_an_unknown_finish_reason_is_no_success(reason: Any) -> None:
    """A reason that says the answer was broken off, or that nobody knows, is no end."""
    assert _error(_delta(content="x"), _delta(reason)).kind == "incomplete"


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        ({"prompt_tokens": 3, "completion_tokens": 2}, Counted(3, None, 2)),
        (
            {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 8}},
            Counted(9, 8, None),
        ),
        ({"prompt_tokens": 9, "prompt_cache_hit_tokens": 4}, Counted(9, 4, None)),
        ({"prompt_tokens": 9, "prompt_tokens_details": None}, Counted(9, None, None)),
        ({"prompt_tokens": -1, "completion_tokens": True}, Counted()),
        ({"prompt_tokens": "3", "completion_tokens": 2.5}, Counted()),
        ({"prompt_tokens": 1 << 60}, Counted()),
        ("lots", Counted()),
    ],
)
def test_usage_is_read_where_it_is_plausible(usage: Any, counted: Counted) -> None:
    """Counts are whole numbers that can be; anything else is no count, and no failure."""
    assert _read({"choices": [], "usage": usage})[0].counted == counted


def test_the_last_usage_counts() -> None:
    """Where every chunk has one, the last is the whole."""
    chunks = [_delta(content="x") | {"usage": {"completion_tokens": n}} for n in (1, 2)]
    assert _read(*chunks)[0].counted.completion_tokens == 2


@pytest.mark.parametrize(
    "chunk",
    [
        {"error": {"message": "worker died", "code": 500}},
        {"error": "worker died"},
        {"object": "error", "message": "worker died", "code": 40303},
        {"error": {"message": "worker died"}, "choices": [{"delta": {"content": "x"}}]},
    ],
)
def test_an_error_in_the_stream_fails_it(chunk: dict[str, Any]) -> None:
    """An error object fails the answer; a second try is safe only where nothing came before."""
    first = _error(chunk)
    assert (first.kind, first.may_retry) == ("server", True)
    assert "worker died" in str(first)
    assert not _error(_delta(content="x"), chunk).may_retry
    assert not _error(_delta(reasoning="x"), chunk).may_retry


def test_an_event_named_error_fails_it() -> None:
    """The name of the event is enough."""
    with pytest.raises(EndpointError, match="worker died"):
        list(Answer("http://h").read('{"message": "worker died"}', "error"))


@pytest.mark.parametrize(
    "data",
    [
        "{oops}",
        "7",
        "[]",
        '"text"',
        "null",
        "[" * 100_000,
        '{"choices": 7}',
        '{"choices": [7]}',
        '{"choices": [{"delta": 7}]}',
        '{"choices": [{"delta": {"content": 7}}]}',
        '{"choices": [{"delta": {"content": [7]}}]}',
        '{"choices": [{"delta": {"content": [{"type": "image"}]}}]}',
        '{"choices": [{"delta": {"content": [{"type": "text", "text": 7}]}}]}',
        '{"choices": [{"delta": {"tool_calls": 7}}]}',
        '{"choices": [{"delta": {"tool_calls": [7]}}]}',
        '{"choices": [{"delta": {"tool_calls": [{"function": 7}]}}]}',
    ],
)
def test_what_is_no_chunk_fails(data: str) -> None:
    """What cannot be read is never left out: text would be lost in silence."""
    assert _error(data).kind == "protocol"


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["choices", "delta", "content", "index", "tool_calls", "function", "usage", "error"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(_JSON)
def test_any_json_is_read_or_refused(value: Any) -> None:
    """Whatever JSON comes, it is read or is an `EndpointError`; the text can be encoded."""
    try:
        answer, text, thoughts = _read({"choices": [{"delta": value}]}, value)
        answer.calls()
    except EndpointError:
        return
    (text + thoughts).encode()


def test_halves_of_a_character_are_joined() -> None:
    """A surrogate pair in two chunks is one character; a lone half is the replacement character."""
    high, low = '{"choices":[{"delta":{"content":"\\ud83d"}}]}', "\\udc4b"
    assert _read(high, high.replace("\\ud83d", low))[1] == "👋"
    assert _read(high, high.replace("\\ud83d", "x"))[1] == "\ufffdx"
    assert _read(high.replace("\\ud83d", low + "x"))[1] == "\ufffdx"
    assert _read(high)[1] == "\ufffd"


@pytest.mark.parametrize(
    ("pieces", "calls"),
    [
        (  # interleaved by index
            [
                [_call("", index=0, id="a", name="f")],
                [_call('{"p":', index=1, id="b", name="g")],
                [_call('{"p":1}', index=0)],
                [_call("2}", index=1)],
            ],
            [("a", "f", '{"p":1}'), ("b", "g", '{"p":2}')],
        ),
        (  # no index, other ids
            [[_call("{}", id="a", name="f")], [_call("{}", id="b", name="f")]],
            [("a", "f", "{}"), ("b", "f", "{}")],
        ),
        (  # the same index for all, other ids
            [[_call("{}", index=0, id="a", name="f")], [_call("{}", index=0, id="b", name="g")]],
            [("a", "f", "{}"), ("b", "g", "{}")],
        ),
        (  # neither ids nor another index
            [[_call("{}", index=0, name="f")], [_call("{}", index=0, name="g")]],
            [("", "f", "{}"), ("", "g", "{}")],
        ),
        (  # the id and the name again in every piece
            [[_call('{"a"', id="a", name="f")], [_call(":1}", id="a", name="f")]],
            [("a", "f", '{"a":1}')],
        ),
        ([[_call({"a": "ü"}, id="a", name="f")]], [("a", "f", '{"a": "ü"}')]),
        ([[{"index": 0, "id": "a", "function": None}], [_call("{}", index=0, name="f")]],
         [("a", "f", "{}")]),
        ([[_call(None, id="a", name="f")]], [("a", "f", "")]),
    ],
)  # fmt: skip
def test_calls_are_told_apart(pieces: list[Any], calls: list[Any]) -> None:
    """Two calls are never glued into one, whatever of index, id and name is there."""
    answer, _, _ = _read(*(_delta(tool_calls=piece) for piece in pieces), _delta("tool_calls"))
    assert [CloudToolCall(*call) for call in calls] == list(answer.calls())


def test_the_old_form_of_a_call_is_read() -> None:
    """`function_call` is one call."""
    call = {"name": "f", "arguments": "{}"}
    answer, _, _ = _read(_delta(function_call=call), _delta("function_call"))
    assert answer.calls() == (CloudToolCall("", "f", "{}"),)


def test_half_a_call_is_no_call() -> None:
    """Arguments that a limit cut are left out; where nothing cut them they are a failure."""
    half = _delta(tool_calls=[_call('{"a":', id="a", name="f")])
    assert _read(half, _delta("length"))[0].calls() == ()
    with pytest.raises(EndpointError, match="no JSON"):
        _read(half, _delta("tool_calls"))[0].calls()


def test_calls_without_number_are_refused() -> None:
    """A list of calls has an end."""
    calls = [_call("", id=str(n), name="f") for n in range(200)]
    assert _error(_delta(tool_calls=calls)).kind == "protocol"
