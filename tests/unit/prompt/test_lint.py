"""The linter names what changes from one prompt to the next, and leaves constants alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm.prompt.lint import Finding, lint, stable_chars

ROOT = Path(__file__).resolve().parents[3]
TEMP = "/tmp/tmpab12cd_/x.txt"  # noqa: S108  (a text to find, no file)
VOLATILE = [
    ("Today is 2026-05-17.", "date", "2026-05-17"),
    ("Date: 17.05.2026", "date", "17.05.2026"),
    ("Date: 5/17/2026", "date", "5/17/2026"),
    ("Today is Sunday, 17 May 2026.", "date", "Sunday, 17 May 2026"),
    ("It is May 17th, 2026", "date", "May 17th, 2026"),
    ("Now: the 3rd of June", "date", "the 3rd of June"),
    ("오늘은 2026년 5월 17일입니다", "date", "2026년 5월 17일"),
    ("今日は2026年5月17日です", "date", "2026年5月17日"),
    ("Today is Monday.", "date", "Monday"),
    ("at 2026-05-17T09:30:12.123Z,", "time", "2026-05-17T09:30:12.123Z"),
    ("at 2026-05-17 09:30:12+02:00", "time", "2026-05-17 09:30:12+02:00"),
    ("at 20260517T093012", None, None),
    ("The time is 9:30 am", "time", "9:30 am"),
    ("stamp 09:30:12 UTC", "time", "09:30:12 UTC"),
    ("ts=1767225600", "epoch", "1767225600"),
    ("ts 1767225600123 ms", "epoch", "1767225600123"),
    ("[1767225600.25]", "epoch", "1767225600.25"),
    ("id 3f2b8c1e-0d4e-4f7a-9b1c-2d3e4f5a6b7c", "uuid", "3f2b8c1e-0d4e-4f7a-9b1c-2d3e4f5a6b7c"),
    ("Session ID: u7f3k2", "id", "u7f3k2"),
    ("request_id=8842", "id", "8842"),
    ('{"trace_id": "a81bc81b"}', "id", "a81bc81b"),
    ("Request #4711", "id", "4711"),
    ("see req_8f2k9d7a1b", "id", "req_8f2k9d7a1b"),
    ("commit 9f86d081884c7d65", "hex id", "9f86d081884c7d65"),
    ("<Tool object at 0x7f3a5c1d2e80>", "address", "at 0x7f3a5c1d2e80"),
    ("key dGhpcyBpcyBh8IHRlc3Q5Q== end", "base64 id", "dGhpcyBpcyBh8IHRlc3Q5Q=="),
    (f"cwd {TEMP}", "temporary path", TEMP),
    ("in /var/folders/zz/abc/T/x", "temporary path", "/var/folders/zz/abc/T/x"),
    (r"C:\Users\me\AppData\Local\Temp\x1", "temporary path", r"C:\Users\me\AppData\Local\Temp\x1"),
    ("attempt 3 of 5", "counter", "3"),
    ("Turn: 12", "counter", "12"),
    ("This is run #42 of the assistant", "counter", "42"),
    ("session no. 7", "counter", "7"),
    ("tokens left: 812", "counter", "812"),
    ("pid 4242 of 9", "counter", "4242"),
    ("You may use {'b', 'a', 'c'}.", "unordered", "{'b', 'a', 'c'}"),
    ('{"a": 1, "b": {"c": 1, "c": 2}}', "repeated key", '{"a": 1, "b": {"c": 1, "c": 2}}'),
]
CONSTANT = [
    "You are a helpful assistant. Answer in at most 3 sentences.",
    "Step 1: read the file. Step 2: answer. There are 12 rules.",
    "We are open from 9:00 to 17:30, Monday to Friday.",
    "May I help you? The second may be of use. March on.",
    "Use version 3.11.2 or 2.0. The port is 8080, the code 1234567890.",
    "The ratio is 16:9, see chapter 3:16 and section 4.2.1.",
    "getElementsByTagNameAndClassName and snake_case_names_that_are_long",
    "https://example.org/docs/getting-started/configuration-reference",
    "The user id is private. A session ends after a while.",
    'Answer as JSON: {"answer": "...", "score": 1}',
    "Use {0} and {name}, or {1, 2}. A dict is {'a': 1, 'b': 2}.",
    "deadbeef is a word, decade and facade are words: effaced.",
    "The temperature folder is /template/x; your attempt counts.",
    "한국어로 세 문장으로 대답하세요.",
]
HINTS = [
    ("Knowledge cutoff: 2023-10-01", "date"),
    ("Python was released on 20 February 1991.", "date"),
    ('{"b": 1, "a": 2}', "unsorted keys"),
]


@pytest.mark.parametrize(("text", "kind", "found"), VOLATILE)
def test_volatile_text_is_found(text: str, kind: str | None, found: str | None) -> None:
    """Each once, with its kind and exactly its characters; or not at all where it is no spelling."""
    firm = [one for one in lint(text) if not one.is_hint]
    assert [(one.kind, one.text) for one in firm] == ([] if kind is None else [(kind, found)])
    assert all(one.fix for one in firm)


@pytest.mark.parametrize("text", CONSTANT)
def test_constant_text_is_left_alone(text: str) -> None:
    """What looks like a date, an id or a counter and is none."""
    assert lint(text) == ()
    assert stable_chars(text, ()) == len(text)


@pytest.mark.parametrize(("text", "kind"), HINTS)
def test_what_may_well_be_a_constant_is_a_hint(text: str, kind: str) -> None:
    """A prompt with hints alone is clean."""
    (one,) = lint(text)
    assert (one.kind, one.is_hint) == (kind, True)
    assert stable_chars(text, lint(text)) == len(text)


def test_a_place_has_line_and_column() -> None:
    """From 1, in characters, whatever line ends stand before."""
    text = "값\r\n\nToday is 2026-05-17,\nor 2026-05-18 by now."
    first, second = lint(text)
    assert (first.line, first.column, text[first.start : first.end]) == (3, 10, "2026-05-17")
    assert (second.line, second.column) == (4, 4)
    assert stable_chars(text, (first, second)) == first.start


def test_a_value_inside_json_is_told_beside_its_order() -> None:
    """The hint about the whole object hides nothing in it."""
    found = lint('{"when": "2026-05-17", "a": 1}')
    assert [(one.kind, one.is_hint) for one in found] == [("unsorted keys", True), ("date", False)]


@given(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
    | st.text("0123456789-:/abT'{}\"[], \n", max_size=200)
)
def test_findings_are_in_order_and_in_the_text(text: str) -> None:
    """Whatever the text, each finding is where it says and none takes another's place."""
    at = 0
    for one in lint(text):
        assert isinstance(one, Finding)
        assert text[one.start : one.end] == one.text
        assert text.count("\n", 0, one.start) + 1 == one.line
        assert one.kind == "unsorted keys" or one.start >= at
        at = at if one.kind == "unsorted keys" else one.end


@pytest.mark.parametrize(
    "sign", ["{", '{"a":', "1", "a1A", "{'a', ", "2026-", TEMP[:5], "pid ", "9:", "[[1"]
)
def test_hostile_texts_take_no_time(sign: str) -> None:
    """A megabyte of what a pattern begins with is read in bounded steps."""
    lint(sign * (200_000 // len(sign)))


def test_prose_of_this_project_is_clean() -> None:
    """Its README files are constants, and hold no findings but those that are examples of them."""
    for path in (ROOT / "edgellm").glob("*/README.md"):
        firm = [one for one in lint(path.read_text(encoding="utf-8")) if not one.is_hint]
        assert not firm, (path, firm)
