"""Errors over the pipe."""

from __future__ import annotations

import json

import pytest

from edgellm import errors
from edgellm.errors import (
    DoesNotFit,
    EdgeLLMError,
    EngineFailed,
    ModelNotFound,
    OutOfMemory,
    UsageError,
    WorkerDied,
)
from edgellm.runtime.worker.raising import error_from_wire, error_to_wire

CLASSES = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, EdgeLLMError)
]


def _through(error: EdgeLLMError) -> EdgeLLMError:
    return error_from_wire(json.loads(json.dumps(error_to_wire(error))))


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_class_comes_through(kind):
    """An error of each class is of that class again, with message, path and hint."""
    came = _through(kind("what happened", path="m.gguf", hint="do this"))
    assert type(came) is kind
    assert ("what happened", "m.gguf", "do this") == (came.message, came.path, came.hint)
    assert str(kind("what happened", path="m.gguf", hint="do this")) == str(came)


def test_attributes_come_through():
    """What an error of one class has beside its message is there on the other side."""
    came = _through(DoesNotFit("no", need_bytes=9, have_bytes=0))
    assert (9, 0) == (came.need_bytes, came.have_bytes)
    came = _through(OutOfMemory("no", phase="prefill", evidence=("a", "b"), need_bytes=None))
    assert ("prefill", ("a", "b"), None) == (came.phase, came.evidence, came.need_bytes)
    came = _through(WorkerDied("no", returncode=-9))
    assert (-9, 9) == (came.returncode, came.signal)


def test_a_class_of_elsewhere_goes_as_its_nearest_known_base():
    """A subclass that the other side does not know is not lost."""

    class Special(ModelNotFound):
        pass

    came = _through(Special("gone", path="m.gguf"))
    assert type(came) is ModelNotFound


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"class": "SystemExit", "message": "x", "fields": {}},
        {"class": "annotations", "message": "x", "fields": {}},
        {"class": "UsageError", "message": 5, "fields": {}},
        {"class": "UsageError", "message": "x", "fields": []},
        {"class": ["UsageError"], "message": "x", "fields": {}},
    ],
)
def test_what_is_no_error_of_ours_is_an_engine_failure(value):
    """A stranger's object raises nothing but an error of ours."""
    assert type(error_from_wire(value)) is EngineFailed


def test_fields_of_a_stranger_are_dropped():
    """Only attributes of the class are taken, and only plain values."""
    fields = {"hint": "h", "path": {"a": 1}, "__class__": "x", "evil": 1}
    came = error_from_wire({"class": "UsageError", "message": "x", "fields": fields})
    assert type(came) is UsageError
    assert ("h", None) == (came.hint, came.path)
    assert not hasattr(came, "evil")
