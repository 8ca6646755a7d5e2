"""Supervisors over workers that do as they are told, beside an endpoint that does likewise."""

from __future__ import annotations

import dataclasses
import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from edgellm.core import (
    Done,
    Event,
    Message,
    Mode,
    ModelInfo,
    Request,
    SnapshotUse,
    Switch,
    Token,
    Usage,
)
from edgellm.engines.base import EngineSettings  # noqa: F401  # for tests
from edgellm.errors import EdgeLLMError
from edgellm.policy.budget import micro_usd
from edgellm.policy.consent import Wanted, draft
from edgellm.routing import Budget, Endpoint, Phase, origin_of
from edgellm.runtime.books.audit import AuditLog
from edgellm.runtime.books.consents import ConsentBook
from edgellm.runtime.books.record import AuditRecord
from edgellm.runtime.session import CloudOptions, SessionFacts, SessionOptions, Step
from edgellm.runtime.supervising import assembling
from edgellm.runtime.supervising.place import Place
from edgellm.runtime.supervising.session import Supervisor
from edgellm.runtime.worker.ending import Ending, WorkerEnded

WORDS = ["The", "answer", "comes", "in", "ten", "little", "words", ",", "so", "it", "is", "."]
ASKED = Request((Message("user", "Why?"),))
FACTS = SessionFacts("fake", 4096, 512, 2, 0, "f16", "off", "numpy", 1.0)
MODEL = ModelInfo("m.gguf", "llama", "m", 1, 1, 1, 1, 1, 1, 1, 1, {"f16": 1})
BAD_ALLOC = "terminate called after throwing an instance of 'std::bad_alloc'\n"


def died(phase: Phase = "decode", *, returncode: int = -9, log: str = "") -> Ending:
    """The end of a worker that nobody asked for."""
    return Ending(returncode, phase, log, "", 1.0)


def oom(phase: Phase = "decode") -> Ending:
    """The end of a worker whose memory ran out."""
    return died(phase, returncode=-6, log=BAD_ALLOC)


@dataclass
class Life:
    """What one worker does: it fails after `n` tokens, or while it is started.

    Attributes:
        n: tokens before it fails; None does not fail.
        how: the failure.
        start: a failure of its start instead.
        delay: waited for before each token.
        loading: waited for before it is loaded.
    """

    n: int | None = None
    how: Ending | EdgeLLMError | None = None
    start: Ending | EdgeLLMError | None = None
    delay: threading.Event | None = None
    loading: threading.Event | None = None
    warm: Ending | EdgeLLMError | None = None


@dataclass
class FakeWorker:
    """A worker that says `WORDS`, goes on behind a journal, and fails as its `Life` says."""

    life: Life
    options: SessionOptions
    pid: int = 0
    phase: Phase = "decode"
    ending: Ending | None = None
    journals: list[tuple[int, ...]] = field(default_factory=list)
    seeds: list[int | None] = field(default_factory=list)
    cancelled: threading.Event = field(default_factory=threading.Event)
    is_closed: bool = False
    model: Any = MODEL

    def facts(self) -> SessionFacts:
        return FACTS

    def stream(
        self,
        request: Request,
        *,
        journal: Sequence[int] = (),
        seed: int | None = None,
        clock_s: float | None = None,
    ) -> Iterator[Step]:
        self.journals.append(tuple(journal))
        self.seeds.append(seed)
        self.cancelled.clear()
        return self._steps(request, len(journal), seed)

    def _steps(self, request: Request, n_before: int, seed: int | None) -> Iterator[Step]:
        yield Step(None, phase="prefill", prompt_tokens=5)
        n = n_before
        for n in range(n_before, min(len(WORDS), request.max_tokens or len(WORDS))):
            if self.life.n == n:
                self._fail(self.life.how)
            if self.life.delay is not None:
                while not self.life.delay.wait(0.01) and not self.cancelled.is_set():
                    if self.ending is not None:
                        raise WorkerEnded(self.ending)
            if self.cancelled.is_set():
                yield Step(Done("?", "cancelled", usage=Usage(5, 0, n), seed=seed))
                return
            yield Step(Token(n, f"{WORDS[n]} "), (n,))
        if self.life.n == len(WORDS):
            self._fail(self.life.how)
        yield Step(Done("?", "stop", usage=Usage(5, 0, n + 1), seed=seed), phase="snapshot")

    def _fail(self, how: Ending | EdgeLLMError | None) -> None:
        if isinstance(how, Ending):
            self.ending = how
            raise WorkerEnded(how)
        assert how is not None
        raise how

    def warm(self, messages: Sequence[Message], tools: Any = ()) -> SnapshotUse:
        if self.life.warm is not None:
            self._fail(self.life.warm)
        return SnapshotUse("exact", "3fa9", "stored", "stored")

    def cancel(self) -> None:
        self.cancelled.set()

    def kill(self) -> None:
        self.ending = self.ending or dataclasses.replace(died(), asked="kill")

    def close(self) -> None:
        self.is_closed = True
        self.ending = self.ending or Ending(0, "snapshot", "", "", 1.0, was_closed=True)


@dataclass
class Workers:
    """Starts workers, each with the next of some lives; the last one repeats."""

    lives: list[Life]
    started: list[FakeWorker] = field(default_factory=list)
    options: list[SessionOptions] = field(default_factory=list)
    paths: list[Path] = field(default_factory=list)

    def __call__(
        self, path: Path, options: SessionOptions, *, on_spawn: Callable[[int], None]
    ) -> FakeWorker:
        life = self.lives[min(len(self.options), len(self.lives) - 1)]
        self.options.append(options)
        self.paths.append(path)
        if life.loading is not None:
            life.loading.wait(5)
        if isinstance(life.start, Ending):
            raise WorkerEnded(life.start)
        if life.start is not None:
            raise life.start
        self.started.append(FakeWorker(life, options, pid=len(self.options)))
        return self.started[-1]


@dataclass
class Seen:
    """The events of one answer, and what a reader of them holds in the end."""

    events: list[Event]

    @property
    def text(self) -> str:
        pieces: list[str] = []
        for event in self.events:
            if isinstance(event, Switch) and event.discard_from_seq is not None:
                del pieces[event.discard_from_seq :]
            elif isinstance(event, Token):
                assert event.seq == len(pieces), "a piece is missing, or came twice"
                pieces.append(event.text)
        return "".join(pieces)

    @property
    def last(self) -> Event:
        return self.events[-1]

    @property
    def done(self) -> Done:
        assert isinstance(self.last, Done), self.last
        return self.last

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


@dataclass
class Stage:
    """One supervisor, with what is behind it."""

    home: Path
    model: Path
    monkeypatch: pytest.MonkeyPatch
    opened: list[Supervisor] = field(default_factory=list)
    workers: Workers = field(default_factory=lambda: Workers([]))

    def open(self, *lives: Life, **options: Any) -> tuple[Supervisor, Workers]:
        """Open a supervisor whose workers live so."""
        workers = self.workers = Workers(list(lives) or [Life()])

        def place(path: Path, asked: SessionOptions, plan: Any) -> Place:
            return Place(path, asked, plan, workers)  # type: ignore[arg-type]  # it fakes one

        self.monkeypatch.setattr(assembling, "Place", place)
        supervisor = assembling.open_supervisor(
            options.pop("path", self.model), SessionOptions(isolation="worker", **options)
        )
        self.opened.append(supervisor)
        return supervisor, workers

    def cloud(self, url: str, **settings: Any) -> dict[str, Any]:
        """Return options with an endpoint, to which somebody consented."""
        budget = settings.pop("budget", Budget())
        endpoint = Endpoint(url, "far", **{"first_byte_s": 2.0, "idle_s": 2.0} | settings)
        wanted = Wanted("edgellm", origin_of(url), "far")
        import time

        ConsentBook(self.home).grant(
            draft(wanted, micro_usd_per_day=micro_usd(1.0), now_s=time.time())
        )
        return {"mode": Mode.PREFER_LOCAL, "cloud": CloudOptions(endpoint, budget, "sk-test")}

    def records(self) -> list[AuditRecord]:
        """Return the audit log, checked."""
        return [record for _, record in AuditLog(self.home).show()]


def see(supervisor: Supervisor, request: Request = ASKED) -> Seen:
    """Read an answer to its end."""
    return Seen(list(supervisor.stream(request)))


@pytest.fixture
def stage(edgellm_home, tiny_models, monkeypatch) -> Iterator[Stage]:
    made = Stage(edgellm_home, tiny_models / "tiny-llama.gguf", monkeypatch)
    yield made
    for supervisor in made.opened:
        supervisor.close()


def chunk(text: str | None = None, finish: str | None = None) -> dict[str, Any]:
    return {
        "choices": [
            {"index": 0, "delta": {"content": text} if text else {}, "finish_reason": finish}
        ]
    }


USAGE = {
    "choices": [],
    "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
}


@pytest.fixture
def kit() -> ModuleType:
    """This file's names: importlib mode has no packages to import them from."""
    return sys.modules[__name__]


def body_of(asked: Any) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(asked.body)
    return value
