"""Conversations taken up again by another session: bit for bit those that never ended."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from edgellm.core import Message, Request, Sampling, Tier
from edgellm.engines.base import EngineSettings
from edgellm.runtime.local import LocalSession
from edgellm.runtime.session import SessionOptions
from edgellm.store.snapshots import SnapshotStore

pytestmark = pytest.mark.model

TURNS = SessionOptions(snapshot=Tier.EXACT, snapshot_turns=True, n_ctx=1024)
SYSTEM = "You answer for a workshop. " + " ".join(
    f"Rule {i}: the tool for job {i * 37 % 101} is on shelf {i * 7 % 40}." for i in range(10)
)
QUESTIONS = ("Which shelf holds the tool of rule 7?", "And of rule 3?", "Name both again, please.")


@dataclass(frozen=True)
class Turn:
    """One answer: its text, what was reused, why, and the logits of its tokens."""

    text: str
    reused: int
    held: int
    code: str
    digests: tuple[str, ...]


def ask_next(session: LocalSession, history: list[str], question: str) -> Turn:
    """Ask one question behind a history, and add both to it."""
    history.append(question)
    roles = ("user", "assistant")
    messages = [Message(roles[n % 2], text) for n, text in enumerate(history)]
    engine: Any = session.engine
    engine.digests.clear()
    request = Request(
        (Message("system", SYSTEM), *messages), max_tokens=12, sampling=Sampling(temperature=0)
    )
    done = session.generate(request)
    history.append(done.text)
    assert session._writer is None or session._writer.settle(60)
    n = done.usage.completion_tokens or 1
    return Turn(
        done.text,
        done.usage.reused_tokens,
        engine.position,
        done.snapshot.code,
        tuple(engine.digests[-n:]),
    )


@pytest.fixture(params=["smollm2", "tiny-gemma3", "tiny-lfm2"])
def model(request) -> Path:
    """A dense model, and tiny ones with a window and with a hybrid memory."""
    if request.param == "smollm2":
        path: Path = request.getfixturevalue("smollm2_gguf")
        return path
    return request.getfixturevalue("tiny_models") / f"{request.param}.gguf"


def open_one(recorder: Any, model: Path, store: SnapshotStore) -> LocalSession:
    """Open a session that keeps turns."""
    return LocalSession(recorder(model, EngineSettings(n_threads=1)), TURNS, store=store)


def test_a_conversation_goes_on_in_other_sessions(recorder, model, tmp_path) -> None:
    """Each turn in a session of its own gives the logits of one session that held them all."""
    history: list[str] = []
    with open_one(recorder, model, SnapshotStore(tmp_path / "whole")) as session:
        whole = [ask_next(session, history, question) for question in QUESTIONS]
    store = SnapshotStore(tmp_path / "parts")
    history = []
    parts = []
    for question in QUESTIONS:
        with open_one(recorder, model, store) as session:
            parts.append(ask_next(session, history, question))
    assert [turn.text for turn in whole] == [turn.text for turn in parts]
    assert [turn.digests for turn in whole] == [turn.digests for turn in parts]
    assert ["not_stored", "hit", "hit"] == [turn.code for turn in parts]
    assert [turn.reused for turn in whole] == [turn.reused for turn in parts]
    if "tiny" not in model.name:
        assert [whole[0].held, whole[1].held] == [turn.reused for turn in parts[1:]]
    else:  # noise is no UTF-8: such an answer is read again, what stands before it is not
        assert all(turn.held - turn.reused < 60 for turn in parts[1:])


def test_another_conversation_in_between_changes_nothing(recorder, model, tmp_path) -> None:
    """A, B, A in one session: A goes on from the disk as it would have from memory."""
    history: list[str] = []
    with open_one(recorder, model, SnapshotStore(tmp_path / "alone")) as session:
        alone = [ask_next(session, history, question) for question in QUESTIONS[:2]]
    history = []
    with open_one(recorder, model, SnapshotStore(tmp_path / "mixed")) as session:
        first = ask_next(session, history, QUESTIONS[0])
        ask_next(session, [], "Who are you?")
        second = ask_next(session, history, QUESTIONS[1])
    assert ("hit", alone[1].reused) == (second.code, second.reused)
    assert second.reused == first.held or "tiny" in model.name
    assert alone[0].digests == first.digests
    assert alone[1].digests == second.digests
