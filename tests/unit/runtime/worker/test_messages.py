"""What a program and its worker say to each other."""

from __future__ import annotations

import dataclasses
import json

import pytest

from edgellm.core import Message, ModelInfo, Request, Sampling, SnapshotUse
from edgellm.errors import UsageError
from edgellm.runtime.session import SessionFacts
from edgellm.runtime.worker import messages
from edgellm.runtime.worker.messages import from_wire, to_wire

FACTS = SessionFacts("llama.cpp 1", 4096, 512, 2, 0, "f16", "on", "avx2", 12.5)
MODEL = ModelInfo("m.gguf", "llama", "m", 1, 2, 3, 4, 5, 6, 7, 8, {"F16": 2}, None, "dense", ("w",))
REQUEST = Request(
    (Message("system", "Be brief.", (2,)), Message("user", "Why? 日本", sensitivity="private")),
    max_tokens=9,
    stop=("\n",),
    sampling=Sampling(temperature=0.5, seed=1 << 63),
    tools=({"name": "f", "parameters": {"b": 1, "a": [None, 1.5]}},),
)
ALL = [
    messages.Announce("m.gguf", "/somewhere"),
    messages.Open(
        *("m.gguf", "/somewhere", ("/a", "/b"), 512, 0, None, "f16", "auto", True),
        *(("x.gguf",), (0.5,), None, "auto", 0.0, False, None, None, "private"),
    ),
    messages.Stream(3, REQUEST, (1, 2, 3), 1e9),
    messages.Warm(4, REQUEST.messages, REQUEST.tools),
    messages.Cancel(4),
    messages.Close(),
    messages.TierAnswer(16, size=3),
    messages.TierAnswer(17, error="gone"),
    messages.Opened(MODEL, FACTS, ("no sockets",)),
    messages.StepMade(3, "decode", ({"type": "token", "seq": 0, "text": "a"},), (17,), FACTS),
    messages.StepMade(0, "load"),
    messages.Warmed(4, SnapshotUse("exact", "k", "stored", "stored"), FACTS),
    messages.Raised(0, {"class": "UsageError", "message": "no", "fields": {}}),
    messages.Broke("MemoryError"),
    messages.TierCall(16, "read", "n" * 64, 5, 9),
]


@pytest.mark.parametrize("message", ALL, ids=lambda message: message.type)
def test_a_message_is_the_same_on_the_other_side(message):
    """Each kind of message comes through JSON as it was."""
    assert message == from_wire(json.loads(json.dumps(to_wire(message))))


def test_every_kind_is_tested():
    """No message is forgotten above."""
    assert {message.type for message in ALL} == set(messages._KINDS)


@pytest.mark.parametrize("message", ALL, ids=lambda message: message.type)
def test_a_field_of_another_type_is_refused(message):
    """No field takes a value that it is not annotated with."""
    for field in dataclasses.fields(message):
        value = {**to_wire(message), field.name: {"an": ["object"]}}
        if field.name in {"request", "error"}:
            value[field.name] = 5
        with pytest.raises(UsageError):
            from_wire(value)


@pytest.mark.parametrize("value", [{}, {"type": "exec"}, {"type": 3}, {"type": ["open"]}])
def test_what_is_no_message_is_refused(value):
    """A type that nobody knows is an error, whatever it is made of."""
    with pytest.raises(UsageError, match="no message is called"):
        from_wire(value)
