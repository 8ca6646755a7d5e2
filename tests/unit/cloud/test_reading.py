from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from edgellm.cloud.address import address_of
from edgellm.cloud.events import CloudEnd, CloudText, Traffic
from edgellm.cloud.exchange import Head
from edgellm.cloud.key import ApiKey
from edgellm.cloud.reading import CloudStream
from edgellm.errors import EndpointError

ADDRESS = address_of("http://h")


class _Exchange:
    """Hands over pieces that are there already, and then a proper end."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = iter(pieces)
        self.is_closed = False

    def piece(self) -> bytes | None:
        return next(self._pieces, None)

    def answer_began(self) -> None:
        pass

    def answer_ended(self) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True


def _read(pieces: list[bytes], content_type: str = "text/event-stream", begun: str = "") -> Any:
    exchange: Any = _Exchange(pieces)
    stream = CloudStream(exchange, ADDRESS, ApiKey(None, ADDRESS), begun, Traffic())
    try:
        return list(stream.opened(Head(200, {"content-type": content_type})))
    except EndpointError as err:
        return err
    finally:
        assert exchange.is_closed


def _stream(*texts: str) -> bytes:
    chunks = [{"choices": [{"index": 0, "delta": {"content": text}}]} for text in texts]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    lines = [f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n" for chunk in chunks]
    return "".join([*lines, "data: [DONE]\n\n"]).encode()


@given(st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=5), st.data())
def test_a_cut_anywhere_is_never_a_whole_answer(texts: list[str], data: st.DataObject) -> None:
    """Cut before its end says that it is one, an answer is a failure; the whole one is whole."""
    stream = _stream(*texts)
    cut = data.draw(st.integers(0, len(stream)))
    split = data.draw(st.integers(0, cut))
    found = _read([stream[:split], stream[split:cut]])
    told = stream.index(b'"finish_reason"') + len(b'"finish_reason": "stop"}]}')
    if cut < told:
        assert isinstance(found, EndpointError)
        assert found.kind in {"incomplete", "protocol"}
    else:
        assert isinstance(found[-1], CloudEnd)
        assert "".join(e.text for e in found if isinstance(e, CloudText)) == "".join(texts)


@given(
    st.lists(st.binary(max_size=60), max_size=6),
    st.sampled_from(["", "text/event-stream", "application/json", "text/html"]),
    st.sampled_from(["", "The sea is"]),
)
def test_any_bytes_end_or_fail(pieces: list[bytes], content_type: str, begun: str) -> None:
    """Whatever comes, the stream ends with `CloudEnd` or raises `EndpointError`."""
    found = _read(pieces, content_type, begun)
    assert isinstance(found, EndpointError) or isinstance(found[-1], CloudEnd)


@given(st.data())
def test_a_damaged_stream_ends_or_fails(data: st.DataObject) -> None:
    """Some bytes of a good stream replaced: no other exception, and text that can be encoded."""
    stream = bytearray(_stream("안녕 👋", "x" * 50))
    for _ in range(data.draw(st.integers(1, 6))):
        stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    found = _read([bytes(stream)])
    if not isinstance(found, EndpointError):
        assert isinstance(found[-1], CloudEnd)
        "".join(e.text for e in found if isinstance(e, CloudText)).encode()


def test_blanks_without_end_are_read_in_one_pass() -> None:
    """A server that drips blanks is not looked at from the start again and again."""
    assert _read([b" "] * 200_000).kind == "incomplete"
