"""A program that forks while an answer is made: the child gets an error, the parent its answer."""

from __future__ import annotations

import os
import signal

import pytest

from edgellm.core import Done, Failure, Message, Request, Sampling
from edgellm.runtime.opening import open_session
from edgellm.runtime.session import SessionOptions

ASKED = Request((Message("user", "Why?"),), max_tokens=40, sampling=Sampling(temperature=0))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # of a fork beside threads, which is the point
def test_a_fork_in_the_middle_of_an_answer_is_no_hang(edgellm_home, tiny_models) -> None:
    """The child cannot go on with it, and is told so soon; it starts no worker of its own."""
    with open_session(tiny_models / "tiny-llama.gguf", SessionOptions(n_ctx=512)) as session:
        events = session.stream(ASKED)
        next(events)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            last = list(events)[-1]
            said = last.message if isinstance(last, Failure) else repr(last)
            os.write(write, said.encode())
            os._exit(0)
        os.close(write)
        _, status = os.waitpid(child, 0)
        with os.fdopen(read, "rb") as told:
            assert b"before a fork" in told.read()
        assert status == 0
        assert isinstance(list(events)[-1], Done)
