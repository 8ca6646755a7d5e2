from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from edgellm.cloud.joint import Joint, Restarted

BEGUN = "The capital of France is"


def _joined(begun: str, *pieces: str) -> str:
    joint = Joint(begun)
    return begun + "".join(joint.feed(piece) for piece in pieces) + joint.flush()


@given(st.text(max_size=40), st.lists(st.text(max_size=8), max_size=6))
def test_without_a_beginning_everything_passes(rest: str, pieces: list[str]) -> None:
    """An answer from its start is not touched."""
    joint = Joint("")
    assert [joint.feed(piece) for piece in [rest, *pieces]] == [rest, *pieces]
    assert joint.flush() == ""


@given(st.data())
def test_an_echo_is_cut_however_it_is_split(data: st.DataObject) -> None:
    """The beginning sent again is not shown again, in whatever pieces it comes."""
    whole = BEGUN + " Paris, of course."
    cuts = sorted(data.draw(st.sets(st.integers(1, len(whole) - 1), max_size=6)))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert _joined(BEGUN, *pieces) == whole


@given(st.text(min_size=1, max_size=30), st.lists(st.text("abc \n", max_size=4), max_size=8))
def test_a_continuation_loses_nothing(begun: str, pieces: list[str]) -> None:
    """What goes on with other words is shown whole, white space at the joint once."""
    rest = "".join(pieces)
    try:
        joined = _joined(begun, *pieces)
    except Restarted:
        assume(False)
    kept = begun.rstrip()
    assert joined.startswith(begun)
    assert joined in {begun + rest, kept + rest, *(begun + rest[n:] for n in range(len(rest) + 1))}


@pytest.mark.parametrize(
    ("begun", "pieces", "whole"),
    [
        ("The sea", (" is", " blue"), "The sea is blue"),
        ("The sea is", (" The", " end"), "The sea is The end"),
        ("The sea ", (" is",), "The sea is"),
        ("The sea ", ("is",), "The sea is"),
        ("one\n\n", ("\n", "\ntwo"), "one\n\ntwo"),
        ("one\n\n", ("\n\n\ntwo",), "one\n\n\ntwo"),
        ("  ", (" x",), "  x"),
        ("The sea", (), "The sea"),
        ("The sea", ("", ""), "The sea"),
        ("The sea is blue. The sea", (" is deep",), "The sea is blue. The sea is deep"),
        ("abcabcabcabcabcX", ("abc", "abY"), "abcabcabcabcabcXabcabY"),
        ("the", ("ory",), "theory"),
        (
            '{"name": 1},\n',
            ('{"name": 2},\n', '{"name": 3}'),
            '{"name": 1},\n{"name": 2},\n{"name": 3}',
        ),
        (
            "1. Beach: A place where",
            (" people", " can relax"),
            "1. Beach: A place where people can relax",
        ),
    ],
)
def test_a_joint_fits(begun: str, pieces: tuple[str, ...], whole: str) -> None:
    """Blanks that were shown are not doubled; words in common by chance are kept."""
    assert _joined(begun, *pieces) == whole


@pytest.mark.parametrize(
    "pieces",
    [
        ("The capital of", " Germany"),
        ("The capital of the French",),
        ("The", " city"),
        ("The answer",),
        ("The capital of",),
        ("T", "h", "e", " x"),
        (" The", " capitals of France", " are"),
        ("A capital of France is this",),
        ("As", " the sun rises over the city of light, "),
    ],
)
def test_a_second_beginning_is_refused(pieces: tuple[str, ...]) -> None:
    """Much the same words as at the start, or its first word within a word: it began anew."""
    with pytest.raises(Restarted):
        _joined(BEGUN, *pieces)


def test_a_second_item_in_the_middle_of_the_first_is_refused() -> None:
    """What a real server does that ignores the flags: the next item of a list, glued to half a one."""
    with pytest.raises(Restarted):
        _joined("1. Beach: A place where people", "2", ". Beach", ": A place", " where people")


def test_little_is_held_back() -> None:
    """As soon as a few words tell, everything is shown, and from then on every piece."""
    joint = Joint(BEGUN)
    assert joint.feed(" Paris, and it lies") == ""
    assert joint.feed(" by the Seine") == " Paris, and it lies by the Seine"
    assert joint.feed(".") == "."


def test_a_short_beginning_cannot_be_told_from_its_echo() -> None:
    """After a few characters `1` and `1` may be an echo or eleven: nobody guesses."""
    with pytest.raises(Restarted):
        _joined("1", "1", "2")
