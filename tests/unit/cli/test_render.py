"""What reaches the terminal, and progress."""

from __future__ import annotations

import io
import re
import sys

import pytest

from edgellm.cli import render
from edgellm.cli.progress import ByteProgress


class Terminal(io.StringIO):
    """A screen that remembers."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        """Say that it is one."""
        return True


def test_terminal_gets_no_control_characters(monkeypatch: pytest.MonkeyPatch):
    """An answer cannot move the cursor or set the title of the window."""
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    render.write_out("a\x1b]0;title\x07b\tc\r\n\x9b2J")
    assert screen.getvalue() == "a\ufffd]0;title\ufffdb\tc\ufffd\n\ufffd2J"


def test_pipe_gets_the_text_as_it_is(capsys: pytest.CaptureFixture[str]):
    """Only a terminal is protected: a program gets every character."""
    render.write_out("a\x1bb")
    assert capsys.readouterr().out == "a\x1bb"


def test_narrow_encoding_replaces_and_goes_on(monkeypatch: pytest.MonkeyPatch):
    """A terminal that has no such character shows a question mark."""
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="latin-1"))
    render.write_out("é€")
    assert raw.getvalue() == b"\xe9?"


def test_table_and_facts_align(capsys: pytest.CaptureFixture[str]):
    """Columns are as wide as their widest cell, without blanks at the end."""
    render.table([("A", "B"), ("long", "x")])
    render.facts([("one", "1"), ("three", "3")])
    assert capsys.readouterr().out == "A     B\nlong  x\none:   1\nthree: 3\n"


def test_progress_off_a_terminal_is_a_line_for_each_tenth(capsys: pytest.CaptureFixture[str]):
    """A log gets ten lines, whatever the number of calls."""
    clock = iter(range(1000))
    progress = ByteProgress("converting", clock=lambda: next(clock), terminal=False)
    for done in range(0, 1001, 5):
        progress(done, 1000)
    progress.close()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 10
    assert lines[0].startswith("converting: 10 %, 100 B of 1.0 kB, ")
    assert lines[-1].startswith("converting: 100 %, 1.0 kB of 1.0 kB, ")


def test_progress_on_a_terminal_is_one_line_that_goes_away(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line is rewritten in place, at most ten times a second, and removed at the end."""
    monkeypatch.setenv("COLUMNS", "120")
    now_s = [0.0]
    progress = ByteProgress("converting", clock=lambda: now_s[0], terminal=True)
    for step in range(101):
        now_s[0] = step / 50
        progress(step * 10_000, 1_000_000)
    progress.close()
    text = capsys.readouterr().err
    assert "\n" not in text
    assert re.search(r"\[#{6}\.{6}\] 5\d %, 5\d0.0 kB of 1.0 MB, 500.0 kB/s, 1 s left", text)
    assert text.count("converting") <= 22
    assert text.rpartition("\r")[2] == ""
    assert text.split("\r")[-2].strip() == ""


@pytest.mark.parametrize("quiet", [True, False])
def test_progress_of_nothing(capsys: pytest.CaptureFixture[str], quiet: bool):
    """A quiet progress, or one over no bytes, prints nothing."""
    progress = ByteProgress("converting", quiet=quiet, terminal=True)
    progress(0, 100 if quiet else 0)
    progress.close()
    assert capsys.readouterr().err == ""
