"""What kind of difference made a miss."""

from __future__ import annotations

import pytest

from edgellm.runtime.causes import (
    CAUSES,
    begins_otherwise,
    code_cause,
    field_cause,
    first_differing,
    text_cause,
)
from edgellm.store.explain import FieldChange

WEATHER = '{"name": "get_weather", "parameters": {"city": "string"}}'
CLOCK = '{"name": "get_time", "parameters": {"zone": "string"}}'


@pytest.mark.parametrize(
    ("stored", "now", "cause"),
    [
        ("Today is 2026-11-29. Be kind.", "Today is 2026-11-30. Be kind.", "date"),
        ("It is Sunday, be kind.", "It is Monday, be kind.", "date"),
        ("Now 9:59, be kind.", "Now 10:00, be kind.", "date"),
        ("On 29 Nov 2026 be kind.", "On 30 Nov 2026 be kind.", "date"),
        ("On November 29, 2026: hi", "On December 1, 2026: hi", "date"),
        ("Started 1764450000.", "Started 1764460000.", "date"),
        ("Session 3fa9c2d14b. Be kind.", "Session 3fa9c2d99e. Be kind.", "id"),
        (
            "Id 123e4567-e89b-12d3-a456-426614174000 ok",
            "Id 123e4567-e89b-12d3-a456-426614174999 ok",
            "id",
        ),
        ("Be kind and slow.", "Be kind and fast.", "text"),
        ("Take 3 apples.", "Take 5 apples.", "text"),
        ("Be kind.", "Be kind. And brief.", "text"),
        ("Be  kind.", "Be kind.", "text"),
        (f"Tools: {WEATHER}, {CLOCK}.", f"Tools: {CLOCK}, {WEATHER}.", "tool_order"),
        ('{"a": 1, "bc": 2}', '{"bc": 2, "a": 1}', "tool_order"),
    ],
)
def test_what_the_system_prompt_says(stored: str, now: str, cause: str):
    """Dates, ids, order and edits in the system prompt are told apart."""
    assert cause == text_cause(f"<s>{stored}</s>", f"<s>{now}</s>", now)


def test_the_text_around_an_unchanged_message_is_the_template():
    """Where the message is whole in both, the template wrote the difference."""
    assert "template" == text_cause("<s>Be kind.</s>", "[INST] Be kind. [/INST]", "Be kind.")


def test_a_date_that_the_template_writes_is_a_date():
    """Who wrote the date does not matter to its class."""
    stored, now = "Date: 29 Nov 2026\nBe kind.", "Date: 30 Nov 2026\nBe kind."
    assert "date" == text_cause(stored, now, "Be kind.")


def test_a_tool_that_is_new_is_no_new_template():
    """A difference that holds a tool's name is one of the tools."""
    stored, now = f"Be kind. {CLOCK}", f"Be kind. {WEATHER}, {CLOCK}"
    assert "tools" == text_cause(stored, now, "Be kind.", ["get_weather", "get_time"])


@pytest.mark.parametrize(
    ("stored", "now", "expected"),
    [([1, 5], [5], True), ([1, 1, 5], [1, 5], True), ([1, 5], [1, 6], False)],
)
def test_beginnings(stored: list[int], now: list[int], expected: bool):
    """A beginning token that is missing or doubled is seen."""
    assert expected is begins_otherwise(stored, now, 1)
    assert not begins_otherwise(stored, now, None)


def test_the_model_explains_other_fields():
    """Of several fields the one that explains the others is told."""
    names = ("kv_type_k", "model", "name")
    changes = [FieldChange(name, "a", "b") for name in names]
    assert "model_file" == field_cause(changes)
    assert "kv_type" == field_cause(changes[:1])
    assert "build" == field_cause([FieldChange("of_a_later_version", "a", "b")])


def test_every_cause_has_a_way_out():
    """No cause is without one line of advice."""
    assert all(CAUSES.values())
    assert code_cause("corrupt") in CAUSES
    assert code_cause("of_a_later_version") in CAUSES


def test_one_text_that_begins_another():
    """Where nothing differs but the length, the difference is at the shorter end."""
    assert 3 == first_differing("abc", "abcd")
