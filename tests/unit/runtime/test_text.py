"""Joining token bytes into text."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm.runtime.text import TextJoiner


def join(data: bytes, cuts: list[int], stop: tuple[str, ...] = ()) -> tuple[list[str], bool]:
    joiner = TextJoiner(stop)
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    pieces = [joiner.feed(data[a:b]) for a, b in pairwise(edges)]
    return [*pieces, joiner.flush()], joiner.stopped


# Bytes that are mostly text, with cut and foreign ones in between.
damaged_text = st.lists(
    st.one_of(st.text(max_size=4).map(str.encode), st.binary(max_size=3)), max_size=12
).map(b"".join)
cuts = st.lists(st.integers(0, 1 << 16), max_size=12)


@given(damaged_text, cuts)
def test_joined_pieces_are_the_whole_decoded_at_once(data, cut):
    """However bytes are cut into tokens, the text is that of all of them, errors replaced."""
    pieces, _ = join(data, cut)
    assert "".join(pieces) == data.decode("utf-8", "replace")


@given(st.text(max_size=8), cuts)
def test_no_piece_breaks_a_character(text, cut):
    """Valid text never shows a replacement character on the way."""
    pieces, _ = join(text.encode(), cut)
    assert "".join(pieces) == text
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text


@given(
    st.text("ab#", max_size=12),
    cuts,
    st.lists(st.text("ab#", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_text_ends_before_the_stop_string_that_is_complete_first(text, cut, stops):
    """Cuts make no difference, and nothing of a stop string is ever shown."""
    pieces, stopped = join(text.encode(), cut, tuple(stops))
    ends = [n for n in range(1, len(text) + 1) if text[:n].endswith(tuple(stops))]
    if not ends:
        assert (text, False) == ("".join(pieces), stopped)
        return
    longest = max(len(stop) for stop in stops if text[: ends[0]].endswith(stop))
    assert (text[: ends[0] - longest], True) == ("".join(pieces), stopped)


def test_a_beginning_of_a_stop_string_waits_until_it_is_none():
    """What may become a stop string is held back, and shown when it does not."""
    joiner = TextJoiner(("###",))
    assert ["ab", "", "##c"] == [joiner.feed(b"ab#"), joiner.feed(b"#"), joiner.feed(b"c")]


def test_what_was_held_back_comes_at_the_end():
    """A half stop string is text after all, and a half character a replacement."""
    joiner = TextJoiner(("###",))
    assert ["", "##"] == [joiner.feed(b"##"), joiner.flush()]
    joiner = TextJoiner(("###",))
    assert ["a", "\ufffd"] == [joiner.feed(b"a\xf0\x9f"), joiner.flush()]


def test_nothing_comes_after_a_stop_string():
    """Tokens after a stop string add nothing."""
    joiner = TextJoiner(("stop",))
    assert ["go ", "", ""] == [joiner.feed(b"go stop on"), joiner.feed(b"x"), joiner.flush()]
    assert joiner.stopped


def test_an_empty_stop_string_is_refused():
    """An empty stop string would end every answer before it began."""
    with pytest.raises(ValueError, match="empty"):
        TextJoiner(("",))
