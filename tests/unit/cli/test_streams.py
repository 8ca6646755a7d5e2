"""Standard streams that take any text, and what is shown of characters that would do harm."""

from __future__ import annotations

import errno
import io
import json
import os
import pty
import struct

import pytest

from edgellm.cli import render, streams
from edgellm.cli.rewritten import RewrittenLine, fitted, width


class Screen(io.TextIOWrapper):
    """A terminal of some encoding that remembers its bytes."""

    def __init__(self, encoding: str) -> None:
        self.raw = io.BytesIO()
        super().__init__(self.raw, encoding=encoding, errors="strict", newline="")

    def isatty(self) -> bool:
        """Say that it is one."""
        return True


def piped(encoding: str) -> io.TextIOWrapper:
    """Give a pipe of some encoding; on Windows its lines would end in CR LF."""
    return io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict", newline="\r\n")


@pytest.mark.parametrize("encoding", ["cp949", "ascii", "cp1252", "cp950", "utf-8"])
def test_a_pipe_becomes_utf8_with_its_own_line_ends(encoding: str) -> None:
    """Whatever the code page: the text of a model is kept byte for byte."""
    stream = piped(encoding)
    streams.prepare(stream)
    stream.write("값 👋\n")
    stream.flush()
    assert "값 👋\n".encode() == stream.buffer.getvalue()


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [("cp949", "값 ?".encode("cp949")), ("ascii", b"? ?"), ("utf-8", "값 👋".encode())],
)
def test_a_terminal_keeps_its_encoding(encoding: str, shown: bytes) -> None:
    """It shows a mark for what it lacks."""
    screen = Screen(encoding)
    streams.prepare(screen)
    screen.write("값 👋")
    screen.flush()
    assert shown == screen.raw.getvalue()


def test_other_streams_are_left_alone() -> None:
    """A notebook's stream, or none at all, has nothing to set."""
    stream = io.StringIO()
    streams.prepare(stream, None)
    assert not stream.getvalue()


def test_a_closed_stream_is_no_terminal() -> None:
    """Asking it raises no error."""
    stream = piped("utf-8")
    stream.close()
    assert not streams.is_terminal(stream)
    assert not streams.is_terminal(None)


@pytest.mark.parametrize(("term", "can"), [("xterm", True), ("dumb", False), (None, True)])
def test_a_dumb_terminal_cannot_rewrite(term: str | None, can: bool) -> None:
    """Windows sets no TERM, and can."""
    environ = {} if term is None else {"TERM": term}
    assert can is streams.can_rewrite(Screen("utf-8"), environ)
    assert not streams.can_rewrite(piped("utf-8"), environ)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (b"plain", "plain"),
        ("값 é".encode(), "값 é"),
        (b"a\xffb", r"a\xffb"),
        ("é".encode() + b"\xe9", r"é\xe9"),
    ],
)
def test_names_of_files_are_text(name: bytes, text: str) -> None:
    """Bytes that Python could not decode are shown, as UTF-8 where they are."""
    for encoding in ("ascii", "utf-8"):
        assert text == streams.as_text(name.decode(encoding, "surrogateescape"))


def test_half_a_pair_is_no_byte() -> None:
    """A surrogate that stands for no byte becomes the mark for a broken character."""
    assert "a\ufffd" == streams.as_text("a\ud83d")


def test_one_line_shows_everything() -> None:
    """No character of a name can end the line, ring, colour, or turn the reading order."""
    shown = streams.one_line("a\nb\tc\x1b[31m\x07\x00\x9b\u202eexe\u2066")
    assert r"a\nb\tc\x1b[31m\x07\x00\x9b\u202eexe\u2066" == shown
    assert "안녕 👩‍👩‍👧 \u200f" == streams.one_line("안녕 👩‍👩‍👧 \u200f")


def test_controls_are_marked() -> None:
    """In running text they leave a mark each; lines and tabs stay."""
    assert "a\n\tb\ufffd[31m\ufffdc" == streams.without_controls("a\n\tb\x1b[31m\u202ec")


def test_a_closed_pipe_by_any_name() -> None:
    """POSIX has a name for it."""
    assert streams.is_closed_pipe(BrokenPipeError(errno.EPIPE, "broken"))
    assert (os.name == "nt") is streams.is_closed_pipe(OSError(errno.EINVAL, "invalid"))


def test_columns_are_those_of_the_stream_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """COLUMNS wins; then the terminal; a pipe is 80 wide."""
    import fcntl
    import termios

    monkeypatch.setenv("COLUMNS", "77")
    assert 77 == streams.columns()
    for wrong in ("", "0", "-1", "wide", "²"):
        monkeypatch.setenv("COLUMNS", wrong)
        assert 80 == streams.columns(piped("utf-8"))
    near, far = pty.openpty()
    fcntl.ioctl(near, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 44, 0, 0))
    with os.fdopen(far, "w") as screen:
        assert 44 == streams.columns(screen)
    os.close(near)


def test_width_counts_cells() -> None:
    """Hangul takes two, marks and joiners none."""
    assert (3, 4, 1, 4) == (width("abc"), width("값값"), width("e\u0301"), width("👩\u200d👧"))
    assert ("값", "ab", "") == (fitted("값값", 3), fitted("ab", 2), fitted("값", 1))


def test_a_rewritten_line_leaves_nothing_behind(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shorter text covers a longer one, wide letters included, and names cannot break it."""
    monkeypatch.setenv("COLUMNS", "10")
    line = RewrittenLine(on=True)
    for text in ("값값", "값값", "a\nb", "123456789abc", ""):
        line.show(text)
    assert "\r값값\ra\\nb\r123456789\r" + " " * 9 + "\r" == capsys.readouterr().err


def test_nothing_is_rewritten_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    """A log gets no such line."""
    RewrittenLine().show("loading")
    assert not capsys.readouterr().err


def test_json_of_a_name_that_is_no_utf8(capsys: pytest.CaptureFixture[str]) -> None:
    """Half a surrogate pair would not parse everywhere; whole ones, and backslashes, are kept."""
    value = {"a\udcff": ["x\udcff", 1, None, {"y": "\\ud83d 👋"}]}
    render.json_line(value)
    out = capsys.readouterr().out
    assert {r"a\xff": [r"x\xff", 1, None, {"y": "\\ud83d 👋"}]} == json.loads(out)
    assert out.isascii()


def test_stderr_and_figures_hold_no_controls(capsys: pytest.CaptureFixture[str]) -> None:
    """A log that somebody looks at later is a terminal too."""
    render.warning("a\x1b[2Jb\nc")
    render.facts([("name", "x\x1b[31m\ny")])
    render.table([["A"], ["x\x1b"]])
    out, err = capsys.readouterr()
    assert "warning: a\\x1b[2Jb c\n" == err
    assert "name: x\\x1b[31m\\ny\nA\nx\\x1b\n" == out
