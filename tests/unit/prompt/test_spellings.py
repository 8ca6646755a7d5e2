"""Spellings of control tokens are found wherever they are, in one pass."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm.prompt.spellings import Spellings

ODD = ("<s>", "</s>", "<|im_end|>", "<|im|>", "<|", "[INST]", "a", "^]-\\", "\u00e9\u00e9", "")


def naive(texts: tuple[str, ...], text: str) -> list[tuple[int, int]]:
    """Return every occurrence of every spelling, by looking for each at each place."""
    return [
        (at, at + len(spelled))
        for at in range(len(text))
        for spelled in texts
        if spelled and text.startswith(spelled, at)
    ]


texts_with_spellings = st.lists(
    st.one_of(st.sampled_from(ODD), st.text("<|>s/a[]^-\\ \n", max_size=4), st.text(max_size=2)),
    max_size=8,
).map("".join)


@given(texts_with_spellings)
def test_occurrences_are_where_a_slow_search_finds_them(text: str) -> None:
    """Of any spellings, those that begin others and those of one character included."""
    found = Spellings(ODD).occurrences(text)
    assert sorted({start for start, _ in naive(ODD, text)}) == found


@given(texts_with_spellings)
def test_spans_go_from_left_to_right_and_the_longest_wins(text: str) -> None:
    """They do not overlap, and nothing between them is a spelling."""
    expected, at = [], 0
    while at < len(text):
        ends = [end for start, end in naive(ODD, text) if start == at]
        if ends:
            expected.append((at, max(ends)))
        at = max(ends, default=at + 1)
    assert tuple(expected) == Spellings(ODD).spans(text)


@given(texts_with_spellings, texts_with_spellings)
def test_what_other_text_could_complete_is_a_beginning(text: str, behind: str) -> None:
    """A spelling that stands in the joined text and began in the first has its beginning there."""
    spellings = Spellings(ODD)
    joined = {start for start, _ in naive(ODD, text + behind) if start < len(text)}
    assert joined <= set(spellings.beginnings(text))


def test_half_a_spelling_before_spaces_is_a_beginning() -> None:
    """A template may trim them; another sign behind it rules it out."""
    spellings = Spellings(("<s>",))
    assert [[2], [], [2]] == [spellings.beginnings(t) for t in ("1 <  \n", "1 < 2", "1 <s")]


@given(texts_with_spellings, st.sampled_from(["", " ", "\n "]))
def test_openings_are_occurrences_and_halves_at_the_end(text: str, space: str) -> None:
    """Behind which nothing or only space stands."""
    stripped = (text + space).rstrip()
    whole = {start for start, _ in naive(ODD, text + space)}
    halves = {
        at
        for at in range(len(stripped))
        if any(t.startswith(stripped[at:]) and t != stripped[at:] for t in ODD)
    }
    assert sorted(whole | halves) == Spellings(ODD).openings(text + space)


@pytest.mark.parametrize("texts", [(), ("",)])
def test_a_vocabulary_without_control_tokens_finds_nothing(texts) -> None:
    """Not even in an empty text."""
    spellings = Spellings(texts)
    for text in ("", "<s>"):
        assert ((), [], []) == (
            spellings.spans(text),
            spellings.occurrences(text),
            spellings.beginnings(text),
        )


def test_six_thousand_spellings_and_a_long_text_take_no_time() -> None:
    """Also where every character could begin one."""
    spellings = Spellings([f"<unused{n}>" for n in range(6000)])
    started_s = time.process_time()
    for text in ("<" * 1_000_000, "<u" * 100_000, "<" + " " * 1_000_000 + "."):
        assert () == spellings.spans(text)
        spellings.beginnings(text)
    assert time.process_time() - started_s < 5
