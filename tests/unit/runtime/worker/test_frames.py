"""Frames on the pipes between a program and its worker."""

from __future__ import annotations

import io
import json
import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm.runtime.worker import frames
from edgellm.runtime.worker.frames import (
    HEADER,
    MAX_TEXT_BYTES,
    TOKEN_KIND,
    FrameError,
    Raw,
    Sender,
    TokenMade,
    encode_json,
    encode_raw,
    encode_token,
    read_frame,
)

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 60), 1 << 60) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), JSON_VALUES, max_size=4), st.binary(min_size=1, max_size=300))
def test_what_is_written_is_read(value, content):
    """An object and raw bytes come back as they were, one after the other, and then the end."""
    file = io.BytesIO(encode_json(value) + b"".join(encode_raw(7, content)))
    assert value == read_frame(file)
    assert Raw(7, content) == read_frame(file)
    assert read_frame(file) is None


@given(st.binary(max_size=64))
def test_any_bytes_are_a_frame_an_end_or_damage(data):
    """Whatever comes, reading it gives a frame, the end or a `FrameError`, and no other error."""
    file = io.BytesIO(data)
    try:
        while read_frame(file) is not None:
            pass
    except FrameError:
        pass


def test_long_bytes_go_in_pieces():
    """Bytes beyond the cap of a frame are cut into several under one tag, and none of none."""
    content = os.urandom(2 * frames.MAX_RAW_BYTES + 5)
    pieces = encode_raw(3, content)
    file = io.BytesIO(b"".join(pieces))
    read = [read_frame(file) for _ in pieces]
    assert [frames.MAX_RAW_BYTES, frames.MAX_RAW_BYTES, 5] == [len(raw.content) for raw in read]
    assert content == b"".join(raw.content for raw in read)
    assert encode_raw(3, b"") == []


class Counting(io.BytesIO):
    n_asked = 0

    def read(self, size=-1):
        self.n_asked = max(self.n_asked, size)
        return super().read(size)


@pytest.mark.parametrize("kind", [frames.JSON_KIND, frames.RAW_KIND])
def test_a_length_beyond_the_cap_is_refused_before_it_is_read(kind):
    """A frame that says it has 4 GB is refused by its head alone."""
    file = Counting(frames.HEADER.pack(0xFFFFFFFF, kind) + b"x")
    with pytest.raises(FrameError, match="4294967295 bytes"):
        read_frame(file)
    assert file.n_asked == frames.HEADER.size


def _json(text: bytes) -> bytes:
    return frames.HEADER.pack(len(text), frames.JSON_KIND) + text


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"\1\0", "2 bytes into the head"),
        (frames.HEADER.pack(9, 1) + b"{}", "2 bytes into a frame of 9"),
        (frames.HEADER.pack(2, 9) + b"{}", "unknown kind 9"),
        (frames.HEADER.pack(3, 2) + b"abc", "a raw frame of 3 bytes"),
        (_json(b"{"), "no JSON"),
        (_json(b"\xff{}"), "no JSON"),
        (_json(b'{"a":NaN}'), "no JSON"),
        (_json(b"[1]"), "a list, not an object"),
        (_json(b'{"a":' + b"[" * 200_000), "no JSON"),
    ],
)
def test_damage_is_named(data, told):
    """Every way to be no frame has its own words, and none repeats what came."""
    with pytest.raises(FrameError, match=told):
        read_frame(io.BytesIO(data))


def test_a_number_that_json_has_not_is_not_sent():
    """Infinity cannot be written as JSON, so it is refused where it is sent."""
    with pytest.raises(ValueError, match="JSON"):
        encode_json({"x": float("inf")})


def test_a_message_beyond_the_cap_is_refused_where_it_is_sent(monkeypatch):
    """What the other side would refuse is not sent."""
    monkeypatch.setattr(frames, "MAX_JSON_BYTES", 10)
    with pytest.raises(FrameError, match="at most 10 go"):
        encode_json({"text": "longer than that"})


def test_frames_of_several_threads_do_not_mix():
    """Two threads that send through one pipe at once send whole frames."""
    read_end, write_end = os.pipe()
    sender = Sender(write_end)
    texts = ["a" * 50_000, "b" * 50_000]

    def send(text: str) -> None:
        for _ in range(20):
            sender.send({"text": text})

    threads = [threading.Thread(target=send, args=(text,)) for text in texts]
    with os.fdopen(read_end, "rb") as file:
        for thread in threads:
            thread.start()
        read = [read_frame(file) for _ in range(40)]
    for thread in threads:
        thread.join()
    os.close(write_end)
    assert sorted(texts * 20) == sorted(frame["text"] for frame in read)


def test_text_goes_as_utf_8():
    """Text beyond ASCII is not spelled out in escapes, which would be three times as long."""
    frame = encode_json({"text": "日本"})
    assert "日本" in frame[frames.HEADER.size :].decode()
    assert {"text": "日本"} == json.loads(frame[frames.HEADER.size :])


@pytest.mark.parametrize("seq", [None, 0, 7])
def test_a_token_comes_back_as_it_was(seq):
    """The short form of a token holds its call, id, number and text."""
    made = TokenMade(3, 49151, seq, "" if seq is None else "ü 👋")
    frame = encode_token(made)
    assert frame is not None
    assert made == read_frame(io.BytesIO(frame))


def test_a_token_too_large_for_the_short_form_has_none():
    """What does not fit goes as a message."""
    assert encode_token(TokenMade(1, 2, 3, "x" * (MAX_TEXT_BYTES + 1))) is None
    assert encode_token(TokenMade(1, 2, (1 << 32) - 1, "x")) is None


@pytest.mark.parametrize("payload", [b"", b"\0" * 11, b"\0" * 12 + b"\xc3"])
def test_a_token_that_is_cut_is_damage(payload):
    """A head that is too short, or half a character, is refused."""
    with pytest.raises(FrameError, match="a token"):
        read_frame(io.BytesIO(HEADER.pack(len(payload), TOKEN_KIND) + payload))


def test_a_path_that_is_no_text_comes_back_as_it_was():
    """Names of files are bytes, and Python spells those that are no UTF-8 with half surrogates."""
    value = {"path": "/models/\udcff.gguf"}
    assert value == read_frame(io.BytesIO(encode_json(value)))
