"""Which tokens leave at once, and which wait for the next one."""

from __future__ import annotations

import os
from contextlib import suppress

import pytest

from edgellm.runtime.worker.frames import Sender
from edgellm.runtime.worker.pacing import LONGEST_WAIT_S, Pacing


class Pipe:
    """A pacing whose frames come out of a pipe, and a clock that is set by hand."""

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()
        os.set_blocking(self.read_end, False)
        self.sender = Sender(self.write_end)
        self.now_s = 100.0
        self.pacing = Pacing(self.sender, lambda: self.now_s)

    def after(self, gap_s: float, frame: bytes = b"x") -> bytes:
        """Put a frame some time after the one before; return what has left by then."""
        self.now_s += gap_s
        self.pacing.put(frame)
        return self.left()

    def left(self) -> bytes:
        """Return what has left since it was asked last."""
        with suppress(BlockingIOError):
            return os.read(self.read_end, 4096)
        return b""


@pytest.fixture
def pipe():
    """Return an open pipe."""
    made = Pipe()
    yield made
    os.close(made.read_end)
    os.close(made.write_end)


def test_the_first_token_leaves_at_once(pipe):
    """Whoever waits for an answer gets its first token when it is there, in every answer."""
    assert pipe.after(0.0, b"a") == b"a"
    pipe.after(0.001, b"b")
    pipe.pacing.begin()
    assert pipe.after(0.001, b"c") == b"bc"


def test_slow_tokens_do_not_wait(pipe):
    """Where the next token is further off than the longest wait, each leaves at once."""
    pipe.after(0.0)
    assert [pipe.after(LONGEST_WAIT_S, b"t") for _ in range(5)] == [b"t"] * 5


def test_fast_tokens_leave_together_and_in_order(pipe):
    """Tokens that follow each other closely leave in groups, none later than the longest wait."""
    gap_s = LONGEST_WAIT_S / 4.5
    left = [pipe.after(gap_s, bytes([65 + n])) for n in range(13)]
    assert b"".join(left) == bytes(range(65, 65 + 13))
    assert [group for group in left if group] == [b"A", b"BCDE", b"FGHI", b"JKLM"]


def test_a_token_after_a_pause_leaves_at_once(pipe):
    """One that came late does not wait for another as late, and takes along those that wait."""
    pipe.after(0.0)
    pipe.after(0.001, b"a")
    assert pipe.after(1.0, b"b") == b"ab"


def test_what_is_sent_takes_along_what_waits(pipe):
    """Any other frame leaves behind the tokens before it, never in front of them."""
    pipe.after(0.0)
    pipe.after(0.001, b"token")
    pipe.sender.put(b" end")
    assert pipe.left() == b"token end"
