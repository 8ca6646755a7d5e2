"""Sessions over scripted engines that note their calls, with a real store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from edgellm.core import Message, Request, Sampling, Tier
from edgellm.engines import scripted_memory
from edgellm.engines.scripted import ScriptedEngine
from edgellm.runtime.local import LocalSession
from edgellm.runtime.prefill import Prefiller
from edgellm.runtime.session import SessionOptions
from edgellm.runtime.storing import Storing
from edgellm.store.snapshots import SnapshotStore
from edgellm.store.state import KVState

SYSTEM = "You answer in one sentence, name your sources, and never raise your voice. " * 3


class RecordingEngine(ScriptedEngine):
    """Notes what it is asked: ("decode", position, tokens, bits of the logits), and so on."""

    def __init__(self, script: str | Sequence[str] = "Yes, so it is.", **options: Any) -> None:
        super().__init__(script, **options)
        self.log: list[tuple[Any, ...]] = []

    @property
    def decoded(self) -> list[tuple[int, tuple[int, ...], bytes]]:
        """Return position, tokens and logits of each call of `decode`."""
        return [entry[1:] for entry in self.log if entry[0] == "decode"]

    def decode(
        self, tokens: Sequence[int], logits: Literal["last", "all"] = "last"
    ) -> NDArray[np.float32]:
        """Decode and note it."""
        start = self.position
        rows = super().decode(tokens, logits)
        self.log.append(("decode", start, tuple(tokens), rows.tobytes()))
        return rows

    def truncate(self, n_tokens: int) -> bool:
        """Truncate; keeping more than there is is a mistake of the caller's."""
        assert 0 <= n_tokens <= self.position
        return super().truncate(n_tokens)

    def capture(self) -> KVState:
        """Capture and note it."""
        self.log.append(("capture", self.position))
        return super().capture()

    def restore(self, state: KVState) -> None:
        """Restore and note it."""
        self.log.append(("restore", state.n_tokens))
        super().restore(state)


class WholeOrNothing(RecordingEngine):
    """Cannot cut its memory back, as engines with a window cache cannot."""

    def truncate(self, n_tokens: int) -> bool:
        """Keep everything or nothing."""
        return n_tokens in {0, self.position} and super().truncate(n_tokens)


@pytest.fixture
def engine_types() -> dict[str, type[RecordingEngine]]:
    """Give the engines by name: tests have no module to import them from."""
    return {"recording": RecordingEngine, "whole": WholeOrNothing}


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    """Give an empty store."""
    return SnapshotStore(tmp_path / "store")


EXACT = SessionOptions(snapshot=Tier.EXACT)
"""What a test gets that asks for nothing: `auto` would keep nothing that is read in no time."""


@pytest.fixture
def prefiller() -> Callable[..., Prefiller]:
    """Give a prefiller over a store; options of both by keyword."""

    def make(
        engine: ScriptedEngine,
        store: SnapshotStore | None,
        *,
        tier: Tier = Tier.EXACT,
        off_reason: str = "asked",
        **options: Any,
    ) -> Prefiller:
        storing = None if store is None else Storing(store, tier=tier, **options)
        return Prefiller(engine, storing, off_reason=off_reason)

    return make


Start = Callable[..., tuple[LocalSession, RecordingEngine]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Open a session over a recording engine; options of engine and session by keyword."""
    opened: list[LocalSession] = []

    def open_one(
        script: str | Sequence[str] = "Yes, so it is.",
        *,
        engine_type: type[RecordingEngine] = RecordingEngine,
        store: SnapshotStore | None = None,
        options: SessionOptions | None = None,
        **engine_options: Any,
    ) -> tuple[LocalSession, RecordingEngine]:
        engine = engine_type(script, **engine_options)
        session = LocalSession(engine, options or EXACT, store=store)
        opened.append(session)
        return session, engine

    yield open_one
    for session in opened:
        session.close()


@pytest.fixture
def written() -> Callable[[LocalSession], None]:
    """Wait until a session has no snapshot left to write."""

    def wait(session: LocalSession) -> None:
        assert session._writer is None or session._writer.settle(30)

    return wait


Ask = Callable[..., Request]


@pytest.fixture
def ask() -> Ask:
    """Make a greedy request: `ask("u1", "a1", "u2")` behind a long system prompt."""

    def make(*turns: str, system: str | None = SYSTEM, **options: Any) -> Request:
        roles = ("user", "assistant")
        messages = [Message(roles[n % 2], text) for n, text in enumerate(turns)]
        if system is not None:
            messages.insert(0, Message("system", system))
        return Request(tuple(messages), sampling=Sampling(temperature=0), **options)

    return make


@pytest.fixture
def count() -> Callable[[Request], int]:
    """Count a request's tokens in ChatML, one for each byte and one for each control token."""

    def tokens_of(request: Request) -> int:
        n_bytes = sum(len(f"{m.role}\n{m.content}\n".encode()) + 2 for m in request.messages)
        return n_bytes + len("assistant\n") + 1

    return tokens_of


@pytest.fixture
def wide_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the engines rows of 64 channels: packing makes narrower ones no smaller."""
    monkeypatch.setattr(scripted_memory, "N_CHANNELS", 64)


@pytest.fixture
def open_engine(engine_types):
    """Return a function that gives an engine with room for 1000 tokens."""

    def open_one(kind: str = "recording", **options: Any) -> Any:
        engine = engine_types[kind]("yes", **options)
        engine.reserve(1000)
        return engine

    return open_one
