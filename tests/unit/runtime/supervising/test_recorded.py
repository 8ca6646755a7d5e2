"""Answers of the session in this process are on record too."""

from __future__ import annotations

import dataclasses

import pytest

from edgellm.core import Done, Event, Failure, Message, Request, Sampling, Token
from edgellm.errors import PromptTooLong
from edgellm.runtime.books.audit import AuditLog
from edgellm.runtime.opening import open_session
from edgellm.runtime.session import SessionOptions

ASKED = Request(
    (Message("user", "Why?"),), max_tokens=4, sampling=Sampling(temperature=0.9, seed=7)
)
OPTIONS = SessionOptions(isolation="none", n_ctx=512, app="mine")


def test_g11_an_answer_in_this_process_has_one_record(edgellm_home, tiny_models) -> None:
    """Each served turn has exactly one audit record, and it is that of its worker but for the way."""
    told: list[list[Event]] = []
    for isolation in ("none", "worker"):
        options = dataclasses.replace(OPTIONS, isolation=isolation)
        with open_session(tiny_models / "tiny-llama.gguf", options) as session:
            told.append(list(session.stream(ASKED)))
    (here_id, here), (there_id, there) = AuditLog(edgellm_home).show()
    dones = [events[-1] for events in told]
    assert all(isinstance(done, Done) for done in dones)
    assert [getattr(done, "audit_id", "") for done in dones] == [here_id, there_id]
    same = ("app", "mode", "route", "model", "finish", "prompt_tokens", "completion_tokens")
    for name in (*same, "prompt"):
        assert getattr(here, name) == getattr(there, name), name
    assert [e for e in told[0] if isinstance(e, Token)] == [
        e for e in told[1] if isinstance(e, Token)
    ]
    assert AuditLog(edgellm_home).verify()


@pytest.mark.parametrize("how", ["cancelled", "given_up", "error"])
def test_one_that_ends_early_has_one_too(edgellm_home, tiny_models, how: str) -> None:
    """Cancelled before it began, left by its reader, or refused."""
    with open_session(tiny_models / "tiny-llama.gguf", OPTIONS) as session:
        if how == "error":
            (failure,) = session.stream(
                dataclasses.replace(ASKED, messages=(Message("user", "long " * 2000),))
            )
            assert isinstance(failure, Failure)
            how = PromptTooLong.code
        else:
            events = session.stream(ASKED)
            if how == "cancelled":
                session.cancel()
                list(events)
            else:
                next(events)
                events.close()  # type: ignore[attr-defined]  # it is a generator
        assert session.generate(ASKED).finish_reason == "length"
    finishes = [record.finish for _, record in AuditLog(edgellm_home).show()]
    assert finishes == [how, "length"]
