"""What a request can keep of the memory, in tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgellm.prompt.boundary import Boundary
from edgellm.runtime.live import Live, Prompt, common_prefix, live_after, make_prompt

END = 300
"""A control token; every other token is a byte."""


def encode(text: str) -> list[int]:
    """Split text into bytes, with `|` for the control token."""
    return [END if char == "|" else ord(char) for char in text]


def piece(token: int) -> bytes:
    """Return the byte of a token, nothing for the control token."""
    return b"" if token == END else bytes([token])


def live_of(prompt: str, answer: str = "", n_prefix: int = 0) -> Live:
    """Describe a memory that holds a prompt and its answer."""
    tokens = encode(prompt + answer)
    return Live(tuple(tokens), prompt + answer, len(prompt), (n_prefix,) if n_prefix else ())


def boundary_of(text: str, n_prefix: int = 0) -> Boundary:
    """Tokenise a text."""
    return Boundary(tuple(encode(text)), (n_prefix,) if n_prefix else (), volatile=False)


@pytest.mark.parametrize(
    ("left", "right", "n"),
    [
        ("", "", 0),
        ("", "a", 0),
        ("ab", "ab", 2),
        ("ab", "abc", 2),
        ("abc", "abd", 2),
        ("x", "y", 0),
    ],
)
def test_common_prefix(left: str, right: str, n: int) -> None:
    """Of any two, in either order."""
    assert n == common_prefix(left, right) == common_prefix(right, left)


@pytest.mark.parametrize(
    ("request_text", "n_kept"),
    [
        ("promptanswer|more", 12),
        ("promptansw|more", 10),
        ("prompt|more", 6),
        ("promp|more", 0),
        ("promptanswer", 0),
        ("promptans", 0),
        ("prompt", 0),
        ("pro", 0),
        ("", 0),
        ("other", 0),
    ],
)
def test_a_conversation_is_continued_from_the_end_of_its_prompt_on(request_text, n_kept) -> None:
    """All of the last prompt and something new: else there is nothing to decode, or no equal cut."""
    assert n_kept == live_of("prompt", "answer").continued_by(encode(request_text))


@pytest.mark.parametrize(
    ("text", "cuts", "shared"),
    [
        ("pre|more|x", (4, 9), (4, 9)),
        ("pre|more|x", (4,), (4,)),
        ("pre|else|x", (4, 9), (4,)),
        ("pre|more|x", (4, 8), (4,)),
        ("pre|more|x", (3, 9), ()),
        ("pre|more|x", (9,), ()),
        ("prf|more|x", (4, 9), ()),
        ("pre|", (), ()),
    ],
)
def test_prefixes_are_shared_where_all_cuts_before_are_equal(text, cuts, shared) -> None:
    """Another cut, at the place or before it, would have been decoded by other calls."""
    live = live_of("pre|more|question", n_prefix=4)
    live = replace(live, cuts=(4, 9))
    assert shared == live.shared_cuts(Prompt(text, tuple(encode(text)), cuts))


def test_without_a_common_cut_nothing_is_shared() -> None:
    """Two prompts without a boundary share none, though both have length 0."""
    assert () == live_of("abc").shared_cuts(Prompt("abc", tuple(encode("abc")), ()))


@pytest.mark.parametrize("n_prefix", [0, 2])
def test_generated_tokens_are_kept_as_generated(n_prefix: int) -> None:
    """The live tokens come first, whatever the tokenizer would make of their text."""
    live = Live((1, 2, 7), "abAN", 2, (n_prefix,) if n_prefix else ())
    boundary = Boundary((1, 2, 8, 9, END), (n_prefix,) if n_prefix else (), volatile=False)
    prompt = make_prompt("abAN|", boundary, live, encode, {END}, piece)
    assert ((1, 2, 7, END), n_prefix) == (prompt.tokens, prompt.n_prefix)


@pytest.mark.parametrize(
    ("turns", "moved"), [((2,), (2,)), ((5,), (4,)), ((2, 5), (2, 4)), ((4,), ()), ((3, 4), ())]
)
def test_messages_end_where_the_generated_tokens_let_them(turns, moved) -> None:
    """Before the answer as ever, behind it by as many tokens as it has less; nowhere inside."""
    live = Live((1, 2, 7), "abAN", 2, ())
    boundary = replace(Boundary((1, 2, 8, 9, END), (), volatile=False), turns=turns)
    assert moved == make_prompt("abAN|", boundary, live, encode, {END}, piece).turns


@pytest.mark.parametrize(
    ("live", "text"),
    [
        (None, "ab|c"),
        (Live((1, 2), None, 2, ()), "ab|c"),
        (Live((), "", 0, ()), "ab|c"),
        (Live((1, 2), "xy", 2, ()), "ab|c"),
        (Live((1, 2), "ab", 2, (1,)), "ab|c"),
        (Live((1, 2), "ab", 2, ()), "ab"),
        (Live((1, 2), "ab", 2, ()), "abc|"),
    ],
)
def test_anything_else_is_tokenised_as_a_whole(live: Live | None, text: str) -> None:
    """No live text, another text, another cut, nothing new, or new text that may join the old."""
    boundary = boundary_of(text)
    assert boundary.tokens == make_prompt(text, boundary, live, encode, {END}, piece).tokens


@pytest.mark.parametrize("pending", ["", "er."])
@pytest.mark.parametrize("text", ["q. answ%s..why", "q. answ%s.."])
def test_raw_text_goes_on_behind_the_answer(pending: str, text: str) -> None:
    """Without control tokens the separator parts the turns; the answer's last text comes first."""
    text %= pending
    live = Live((1, 2, 7), "q. answ", 2, (), pending)
    prompt = make_prompt(text, boundary_of(text), live, encode, {END}, piece, separator="..")
    assert (1, 2, 7, *encode(text[len("q. answ") :])) == prompt.tokens


@pytest.mark.parametrize(
    ("text", "pending", "separator"),
    [
        ("q. answer", "", ".."),
        ("q. answ.", "", ".."),
        ("q. answer..why", "", ".."),
        ("q. answ..why", "er", ".."),
        ("q. answ..why", None, ".."),
        ("q. answ..why", "", ""),
        ("q. answ..|y", "", ".."),
    ],
)
def test_raw_text_that_goes_on_otherwise_is_read_as_a_whole(text, pending, separator) -> None:
    """In the middle of a word, after other words, or with tokens that do not spell the text."""
    live, boundary = Live((1, 2, 7), "q. answ", 2, (), pending), boundary_of(text)
    prompt = make_prompt(text, boundary, live, encode, {END}, piece, separator=separator)
    assert boundary.tokens == prompt.tokens


def test_a_tokenizer_that_puts_a_space_first_reads_raw_text_as_a_whole() -> None:
    """It would put that space in the middle of the conversation."""
    live, boundary = Live((1, 2), "ab", 2, ()), boundary_of("ab..c")
    prompt = make_prompt(
        "ab..c", boundary, live, lambda more: encode(" " + more), {END}, piece, separator=".."
    )
    assert boundary.tokens == prompt.tokens


def test_a_prefix_of_other_tokens_is_not_kept() -> None:
    """Texts may agree where tokens do not."""
    live = Live((9, 9), "ab", 2, (2,))
    boundary = boundary_of("ab|c", n_prefix=2)
    assert boundary.tokens == make_prompt("ab|c", boundary, live, encode, {END}, piece).tokens


def test_after_an_answer_the_decoded_tokens_are_live() -> None:
    """The last token of an answer was handed out and not decoded."""
    prompt = Prompt("q|", tuple(encode("q|")), (1,))
    live = live_after(prompt, encode("yes"), 2, piece)
    assert Live(tuple(encode("q|ye")), "q|ye", 2, (1,), pending="s") == live


def test_half_a_character_has_no_text() -> None:
    """Its tokens are live all the same."""
    live = live_after(Prompt("q", (113,), ()), (0xC3, 0xBC), 1, piece)
    assert ((113, 0xC3), None, None) == (live.tokens, live.text, live.pending)
