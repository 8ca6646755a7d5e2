"""What a wrong file is taken for."""

from __future__ import annotations

import pytest

from edgellm.formats.sniff import SNIFF_BYTES, describe


@pytest.mark.parametrize(
    ("page", "shown"),
    [
        (b"<!DOCTYPE html>\n<html><head><title>Sign  in</title></head>", "'Sign in'"),
        ("<html><p>로그인\x1b[2J".encode(), r"'\ub85c\uadf8\uc778\x1b[2J'"),
        (b"<html><body>" + b"x" * SNIFF_BYTES, repr("x" * 60)),
        (b"<html><script src='", '"<html><script src=\'"'),
    ],
)
def test_a_web_page_shows_its_first_words(page: bytes, shown: str) -> None:
    """Without tags where there are words, as ASCII, cut; and the link that leads to the file."""
    what, then = describe(page[:SNIFF_BYTES])
    assert what == f"it is a web page, {shown}"
    assert "/resolve/main/FILE" in then
