"""The JSON form: every value survives it, and no JSON makes anything but a value or a UsageError."""

from __future__ import annotations

import contextlib
import json

from hypothesis import given
from hypothesis import strategies as st

from edgellm.core import (
    ROLES,
    Done,
    Event,
    Failure,
    Message,
    Request,
    Sampling,
    SnapshotUse,
    Switch,
    Timings,
    Token,
    Usage,
    Warn,
    event_from_wire,
    event_to_wire,
)
from edgellm.errors import UsageError

texts = st.text(st.characters(exclude_categories=["Cs"]))
counts = st.integers(0, 1 << 40)
times = st.floats(0, 1e12)
routes = st.sampled_from(["local", "cloud"])
messages = st.builds(Message, st.sampled_from(ROLES), texts)
samplings = st.builds(
    Sampling,
    temperature=st.floats(0, 100),
    top_k=st.integers(0, 1 << 31),
    top_p=st.floats(0, 1),
    min_p=st.floats(0, 1),
    repeat_penalty=st.floats(0.01, 100),
    repeat_last_n=st.integers(0, 1 << 31),
    seed=st.none() | st.integers(0, (1 << 64) - 1),
)
json_values = st.recursive(
    st.none() | st.booleans() | texts | st.integers(-(1 << 40), 1 << 40) | st.floats(-1e9, 1e9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
tools = st.lists(st.dictionaries(texts, json_values, max_size=3), max_size=2).map(tuple)
requests = st.builds(
    Request,
    st.lists(messages, min_size=1).map(tuple),
    st.none() | st.integers(1, 1 << 31),
    st.lists(texts.filter(bool)).map(tuple),
    samplings,
    tools,
)
events = st.one_of(
    st.builds(Token, counts, texts, routes),
    st.builds(Switch, routes, routes, texts, st.none() | counts),
    st.builds(Warn, texts),
    st.builds(Failure, texts, texts, st.integers(0, 255)),
    st.builds(
        Done,
        text=texts,
        finish_reason=st.sampled_from(["stop", "length", "cancelled"]),
        route=routes,
        usage=st.builds(Usage, counts, counts, counts),
        timings=st.builds(Timings, times, times, times, times, times),
        snapshot=st.builds(SnapshotUse, texts, texts, texts),
        seed=st.none() | counts,
    ),
)
names = st.sampled_from(
    [
        *("type", "text", "seq", "route", "from", "to", "reason", "message", "messages", "role"),
        *("content", "usage", "timings", "finish_reason", "stop", "sampling", "max_tokens"),
        *("code", "exit", "seed", "prompt_tokens", "source"),
    ]
)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["token", "done", "warning", "error", "switch", "user", "local", "stop", ""])
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=5),
    max_leaves=12,
)


@given(requests)
def test_requests_survive(request: Request) -> None:
    """A request is the same on the other side of a pipe."""
    assert Request.from_wire(json.loads(json.dumps(request.to_wire()))) == request


@given(events)
def test_events_survive(event: Event) -> None:
    """So is every event."""
    assert event_from_wire(json.loads(json.dumps(event_to_wire(event)))) == event


@given(values)
def test_anything_else_is_refused_in_one_way(value: object) -> None:
    """Any JSON gives a value that writes itself again, or a UsageError."""
    for read in (event_from_wire, Request.from_wire, Message.from_wire, Usage.from_wire):
        with contextlib.suppress(UsageError):
            found = read(value)  # type: ignore[operator]  # that is the test
            assert type(found).from_wire(found.to_wire()) == found


@given(events, names, values)
def test_one_changed_field_makes_no_third_kind(event: Event, name: str, value: object) -> None:
    """A line with one field replaced is an event with that field, or refused.

    What a nested value leaves out has its default.
    """
    wire = {**event_to_wire(event), name: value}
    with contextlib.suppress(UsageError):
        found = event_to_wire(event_from_wire(wire)).get(name, value)
        given_all = isinstance(value, dict) and value.items() <= found.items()
        assert found == value or given_all


def test_a_nested_value_may_leave_fields_out() -> None:
    """`usage: {}` of an older writer is a usage of nothing."""
    wire = {"type": "done", "text": "", "finish_reason": "stop", "usage": {}}
    assert Done(text="", finish_reason="stop") == event_from_wire(wire)
