from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm.cloud import sse
from edgellm.cloud.sse import SseError, SseEvent, SseParser

STREAM = (
    "\ufeff: ping\n\ndata: {a}\n\nretry: 3\n\nevent: error\ndata:{b\ndata: 안녕 👋}\nid: 5\n\n"
    "data:\n\ndata: \n\n:\ndata:  two\n\ndata\n\nunknown: x\n\ndata: [DONE]\n\n"
)
EVENTS = [
    SseEvent("", "{a}"),
    SseEvent("error", "{b\n안녕 👋}"),
    SseEvent("", " two"),
    SseEvent("", "[DONE]"),
]


def _read(*pieces: bytes) -> list[SseEvent]:
    parser = SseParser()
    return [event for piece in pieces for event in parser.feed(piece)]


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
@given(data=st.data())
def test_the_cut_of_the_network_makes_no_difference(end: str, data: st.DataObject) -> None:
    """Comments, fields of other names, empty data, many lines, any line end, any split: the same."""
    stream = STREAM.replace("\n", end).encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=12)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert EVENTS == _read(*pieces)


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_one_byte_at_a_time(end: str) -> None:
    """A split between any two bytes, within characters and within CRLF."""
    stream = STREAM.replace("\n", end).encode()
    assert EVENTS == _read(*(stream[i : i + 1] for i in range(len(stream))))


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_any_bytes_are_read_without_a_fault(pieces: list[bytes]) -> None:
    """Nonsense gives events or none, and never an exception."""
    parser = SseParser()
    whole = SseParser().feed(b"".join(pieces))
    assert whole == [event for piece in pieces for event in parser.feed(piece)]
    parser.close()


def test_a_bare_cr_ends_an_event_at_once() -> None:
    """An event is not held back until it is known whether a LF follows its last CR."""
    assert _read(b"data: x\r\r") == [SseEvent("", "x")]


def test_an_event_name_lasts_for_one_event() -> None:
    """The event behind a named one has no name."""
    assert [e.name for e in _read(b"event: a\ndata: 1\n\ndata: 2\n\n")] == ["a", ""]


def test_an_event_without_its_empty_line_is_found_at_the_end() -> None:
    """What the stream broke off in is given by `close`, for the caller to judge."""
    parser = SseParser()
    assert parser.feed(b"data: [DO") == []
    assert parser.feed(b"NE]\n") == []
    assert parser.close() == SseEvent("", "[DONE]")
    assert SseParser().close() is None


def test_a_line_of_90_kb_is_read() -> None:
    """There is no limit that an answer could meet."""
    (event,) = _read(b"data: ", b"x" * 90_000, b"\n\n")
    assert len(event.data) == 90_000


def test_a_line_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that does not end is given up at the limit, and so are lines that add up."""
    monkeypatch.setattr(sse, "MAX_LINE_BYTES", 1000)
    with pytest.raises(SseError, match="a line"):
        _read(*[b"x" * 100] * 11)
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 1000)
    with pytest.raises(SseError, match="an event"):
        _read(*[b"data: " + b"x" * 90 + b"\n"] * 11)
    with pytest.raises(SseError, match="an event"):
        _read(*[b"data:\n"] * 1001)
