"""Requests, events and their JSON form: what is refused, and by which words."""

from __future__ import annotations

import dataclasses
import functools
import json
import math

import pytest

from edgellm import core
from edgellm.core import (
    Done,
    Failure,
    Message,
    ModelInfo,
    Request,
    Sampling,
    Switch,
    Timings,
    Token,
    Usage,
    Warn,
    event_from_wire,
    event_to_wire,
)
from edgellm.errors import UsageError

ASKED = Message("user", "hi")
NESTED = functools.reduce(lambda inner, _: [inner], range(30), 0)
DONE = Done("hello", "stop", usage=Usage(3, 2, 1), timings=Timings(load_ms=1.5), seed=7)


def test_request_of_the_wire_is_the_request() -> None:
    """Nested values and tuples come back as what they were, through JSON text."""
    request = Request((Message("system", "short"), ASKED), 5, ("\n",), Sampling(seed=1 << 63))
    assert Request.from_wire(json.loads(json.dumps(request.to_wire()))) == request


def test_tools_keep_the_order_of_their_keys() -> None:
    """A tool's text in the prompt is the same every time: as given, through JSON too."""
    tool = {"z": 1, "a": {"y": [1, 2.5, None, True], "b": "é"}}
    request = Request((ASKED,), tools=[tool])  # type: ignore[arg-type]  # as users write it
    again = Request.from_wire(json.loads(json.dumps(request.to_wire())))
    assert again == request
    assert json.dumps(again.tools) == json.dumps([tool])
    assert hash(again) == hash(request)


def test_tools_are_the_requests_own() -> None:
    """What a caller does with a description afterwards changes no prompt, nor does its JSON form."""
    tool = {"name": "f", "args": ["a"]}
    request = Request((ASKED,), tools=(tool,))
    tool["args"].append("b")  # type: ignore[attr-defined]  # a list
    request.to_wire()["tools"][0]["args"].append("c")
    assert request.tools == ({"name": "f", "args": ["a"]},)


@pytest.mark.parametrize(
    "event",
    [
        Token(0, "é\n"),
        Switch("local", "cloud", "out of memory", 3),
        Warn("no template"),
        Failure("engine_failed", "it broke", 1),
        DONE,
    ],
)
def test_event_of_the_wire_is_the_event(event: core.Event) -> None:
    """Every kind of event names itself first and survives JSON."""
    wire = json.loads(json.dumps(event_to_wire(event)))
    assert next(iter(wire)) == "type"
    assert event_from_wire(wire) == event


def test_done_has_the_fields_of_the_documented_line() -> None:
    """What `--json` prints last is a format, so its names are held here."""
    wire = event_to_wire(DONE)
    assert list(wire) == [
        *("type", "text", "finish_reason", "route", "usage", "timings", "snapshot", "seed"),
        *("degraded", "cloud", "audit_id"),
    ]
    assert list(wire["usage"]) == ["prompt_tokens", "reused_tokens", "completion_tokens"]
    assert list(wire["timings"]) == [
        *("load_ms", "restore_ms", "prefill_ms", "ttft_ms", "decode_tokens_per_s")
    ]
    assert list(wire["snapshot"]) == ["tier", "key", "reason", "code"]
    assert list(event_to_wire(Switch("local", "cloud", "why"))) == [
        *("type", "from", "to", "reason", "discard_from_seq", "degraded")
    ]


def test_model_info_keeps_its_table_to_itself() -> None:
    """The JSON form is a copy: changing it changes no model."""
    info = ModelInfo("m", "llama", "m", 1, 1, 1, 1, 1, 1, 1, 1, {"f16": 2})
    wire = info.to_wire()
    assert ModelInfo.from_wire(json.loads(json.dumps(wire))) == info
    wire["weight_types"]["f16"] = 9
    assert info.weight_types == {"f16": 2}


@pytest.mark.parametrize(
    "value",
    [
        Request((ASKED,)),
        Sampling(),
        ASKED,
        DONE,
        DONE.usage,
        Token(0, "a"),
        Warn("w"),
        Failure("c", "m", 1),
    ],
)
def test_values_cannot_be_changed(value: core.Wire) -> None:
    """A request or an event that was handed out stays what it is, and can be a key."""
    name = dataclasses.fields(value)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(value, name, "other")
    assert not hasattr(value, "__dict__")
    assert hash(value) == hash(dataclasses.replace(value))


def test_request_keeps_no_list_of_the_caller() -> None:
    """Lists are taken and copied: what the caller does with them later is their business."""
    messages, stop = [ASKED], ["x"]
    request = Request(messages, stop=stop)  # type: ignore[arg-type]  # as users write it
    messages.clear()
    stop.clear()
    assert ((ASKED,), ("x",)) == (request.messages, request.stop)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"messages": ()}, "at least one message"),
        ({"messages": "hi"}, "messages must be a sequence of Message"),
        ({"messages": ({"role": "user", "content": "hi"},)}, "messages must be"),
        ({"messages": 5}, "messages must be"),
        ({"max_tokens": 0}, "max_tokens must be a whole number between 1 and"),
        ({"max_tokens": "5"}, "max_tokens must be a whole number"),
        ({"max_tokens": 5.5}, "max_tokens must be a whole number"),
        ({"max_tokens": True}, "max_tokens must be a whole number"),
        ({"stop": "###"}, "stop must be a sequence of texts"),
        ({"stop": ("",)}, "not empty"),
        ({"stop": (5,)}, "not empty"),
        ({"stop": None}, "stop must be a sequence of texts"),
        ({"sampling": None}, "sampling must be a Sampling"),
        ({"sampling": {"seed": 1}}, "sampling must be a Sampling"),
        ({"tools": {"name": "f"}}, "tools must be a sequence of objects"),
        ({"tools": ("f",)}, r"tools\[0\] must be an object, not str"),
        ({"tools": ({"a": {1, 2}},)}, r"tools\[0\]\.a: a set has no order"),
        ({"tools": ({"a": frozenset()},)}, "a set has no order"),
        ({"tools": ({"a": [b"x"]},)}, r"tools\[0\]\.a\[0\] must be a JSON value, not bytes"),
        ({"tools": ({"a": math.nan},)}, "must be a JSON value, not nan"),
        ({"tools": ({1: 2},)}, "a key must be text, not int"),
        ({"tools": ({"\ud800": 2},)}, "half a surrogate"),
        ({"tools": ({"a": 1 << 70},)}, "must be a JSON value, not int"),
        ({"tools": ({"a": NESTED},)}, "more than 24 deep"),
    ],
)
def test_request_refuses(changes: dict[str, object], words: str) -> None:
    """Each field is checked when the request is made, not when an answer is half done."""
    with pytest.raises(UsageError, match=words):
        Request(**{"messages": (ASKED,), **changes})  # type: ignore[arg-type]  # that is the test


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "0"),
        ("temperature", True),
        ("top_k", -1),
        ("top_k", 1.5),
        ("top_p", 1.01),
        ("min_p", -1e-9),
        ("repeat_penalty", 0),
        ("repeat_last_n", 2.0),
        ("seed", -1),
        ("seed", 1 << 64),
        ("seed", 0.5),
    ],
)
def test_sampling_refuses(name: str, value: object) -> None:
    """A number outside its range, or no number, is named with the range."""
    with pytest.raises(UsageError, match=f"{name} must be"):
        Sampling(**{name: value})  # type: ignore[arg-type]  # that is the test


@pytest.mark.parametrize("role", ["", "User", "developer", None, 5, []])
def test_message_refuses_unknown_roles(role: object) -> None:
    """A template given another role writes something nobody trained."""
    with pytest.raises(UsageError, match="role must be one of"):
        Message(role, "hi")  # type: ignore[arg-type]  # that is the test


@pytest.mark.parametrize("content", [None, 5, b"hi", ["hi"]])
def test_message_refuses_what_is_no_text(content: object) -> None:
    """Contents are text; parts and bytes are for another message type."""
    with pytest.raises(UsageError, match="content must be text"):
        Message("user", content)  # type: ignore[arg-type]  # that is the test


def test_message_refuses_half_a_character() -> None:
    """A lone surrogate is no text: no tokenizer has bytes for it."""
    with pytest.raises(UsageError, match="character 2"):
        Message("user", "ab\ud83d")


@pytest.mark.parametrize(
    ("kind", "wire"),
    [
        (Usage, {"prompt_tokens": -1}),
        (Usage, {"prompt_tokens": "3"}),
        (Usage, {"reused_tokens": 1.0}),
        (Usage, {"completion_tokens": None}),
        (Usage, {"completion_tokens": False}),
        (Timings, {"load_ms": math.nan}),
        (Timings, {"ttft_ms": -1}),
        (Timings, {"ttft_ms": "1"}),
        (Timings, {"decode_tokens_per_s": math.inf}),
        (Token, {"seq": 0, "text": 5}),
        (Token, {"seq": 0, "text": None}),
        (Token, {"seq": -1, "text": ""}),
        (Token, {"seq": 0, "text": "", "route": "moon"}),
        (Token, {"seq": 0, "text": "", "route": ["local"]}),
        (Token, {"seq": 0}),
        (Token, {"seq": 0, "text": "", "more": 1}),
        (Token, {"seq": 0, "text": "", "type": "done"}),
        (Switch, {"from": "local", "reason": ""}),
        (Switch, {"source": "local", "target": "cloud", "reason": ""}),
        (Switch, {"from": "local", "to": "cloud", "reason": "", "discard_from_seq": "1"}),
        (Warn, {}),
        (Warn, {"message": ["a"]}),
        (Failure, {"code": "a", "message": "b", "exit": "1"}),
        (Done, {"text": "", "finish_reason": "tired"}),
        (Done, {"text": "", "finish_reason": "stop", "usage": None}),
        (Done, {"text": "", "finish_reason": "stop", "usage": [1]}),
        (Done, {"text": "", "finish_reason": "stop", "usage": {"prompt_tokens": -1}}),
        (Done, {"text": "", "finish_reason": "stop", "seed": "1"}),
        (Message, {"role": "user"}),
        (Message, {"role": "user", "content": "hi", "type": "message"}),
        (Request, {}),
        (Request, {"messages": "hi"}),
        (Request, {"messages": 5}),
        (Request, {"messages": {"role": "user", "content": "hi"}}),
        (Request, {"messages": ["hi"]}),
        (Request, {"messages": [None]}),
        (Request, {"messages": [{"role": "user", "content": "hi"}], "stop": "abc"}),
        (Request, {"messages": [{"role": "user", "content": "hi"}], "stop": None}),
        (Request, {"messages": [{"role": "user", "content": "hi"}], "sampling": None}),
        (Request, {"messages": [{"role": "user", "content": "hi"}], "max_tokens": "5"}),
        (Request, {"messages": [{"role": "user", "content": "hi"}], 5: 6}),
        (ModelInfo, {"path": "m"}),
        (Usage, None),
        (Usage, []),
        (Usage, "usage"),
    ],
)
def test_wire_refuses(kind: type[core.Wire], wire: object) -> None:
    """What comes over a pipe is a stranger's: a wrong field is one error that names the type."""
    with pytest.raises(UsageError) as caught:
        kind.from_wire(wire)  # type: ignore[arg-type]  # that is the test
    assert str(caught.value)


@pytest.mark.parametrize("table", [{"f16": "2"}, {"f16": None}, {2: 2}, [["f16", 2]], "f16"])
def test_wire_refuses_tables_of_other_things(table: object) -> None:
    """The types of a mapping's keys and values count as well."""
    wire = ModelInfo("m", "llama", "m", 1, 1, 1, 1, 1, 1, 1, 1, {}).to_wire()
    with pytest.raises(UsageError, match="weight_types"):
        ModelInfo.from_wire({**wire, "weight_types": table})


@pytest.mark.parametrize("wire", [{}, {"type": "tick"}, {"type": ["token"]}, None, [], "token"])
def test_events_of_no_known_type_are_refused(wire: object) -> None:
    """An event that is not one of the five is an error, not a guess."""
    with pytest.raises(UsageError):
        event_from_wire(wire)  # type: ignore[arg-type]  # that is the test


def test_errors_name_the_field() -> None:
    """Nested fields are named from the outside in."""
    with pytest.raises(UsageError, match=r"Done\.usage\.prompt_tokens"):
        Done.from_wire({"text": "", "finish_reason": "stop", "usage": {"prompt_tokens": "3"}})
