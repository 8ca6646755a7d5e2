"""Answers made under everything that could send them out: each is a way for this machine to fail.

The faults are real ones, of a real worker. Which of them a mode may take as a reason to ask an endpoint
is what `private` and `prefer-local` differ in, so the same table is played in both.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from edgellm.config import set_value
from edgellm.core import Done, Message, Request, Sampling, Switch, Tier
from edgellm.engines.base import EngineSettings
from edgellm.errors import EdgeLLMError
from edgellm.paths import HOME_VARIABLE
from edgellm.policy.consent import Wanted, draft
from edgellm.routing import Trigger, origin_of
from edgellm.runtime.books.audit import AuditLog
from edgellm.runtime.books.consents import ConsentBook
from edgellm.runtime.opening import open_session
from edgellm.runtime.proving.namespace import sent_bytes
from edgellm.runtime.proving.orders import Played
from edgellm.runtime.routes import RouteWishes, with_routes
from edgellm.runtime.session import SessionOptions
from edgellm.runtime.worker.faults import FAULT_VARIABLE

if TYPE_CHECKING:
    from pathlib import Path

    from edgellm.core import Event, Mode
    from edgellm.runtime.proving.canary import Canary
    from edgellm.runtime.proving.sink import Sink

ENDPOINT_MODEL: Final = "sink"
_HUGE_CTX: Final = (1 << 31) - 1
"""Its keys and values alone take 512 GB with the tiny model, 256 bytes a token."""

_SYSTEM_REPEATS: Final = 12
_SMALL_BYTES: Final = 8 << 20
"""In a model so small several threads do little but wait for each other."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One way for an answer to go.

    Attributes:
        code: of the trigger, as in `--json`; `U0` is an answer that nothing disturbs.
        what: happens, for people.
        trigger: that it is, or None where it must never lead out.
        fault: of the worker, see `worker/faults.py`.
        n_ctx: context in tokens, None takes the default.
        deadline_s: to the first token.
        n_tokens: of the answer.
        has_model: whether the file is there.
        is_timed: whether it depends on how fast this machine is.
        is_slow: whether it takes many seconds.
    """

    code: str
    what: str
    trigger: Trigger | None = None
    fault: str = ""
    n_ctx: int | None = None
    deadline_s: float | None = None
    n_tokens: int = 6
    has_model: bool = True
    is_timed: bool = False
    is_slow: bool = False


UNDISTURBED: Final = Scenario("U0", "an undisturbed answer")
TRIGGERS: Final = (
    Scenario("M1", "the model does not fit", Trigger.NO_FIT, n_ctx=_HUGE_CTX),
    Scenario("M2", "memory runs out at load", Trigger.LOAD_OOM, "load:oom"),
    Scenario("M3", "the worker dies for memory", Trigger.WORKER_DIED, "decode:3:oom"),
    Scenario("M4", "the engine fails in decode", Trigger.DECODE_FATAL, "decode:3:fatal"),
    Scenario(
        *("M5", "memory pressure", Trigger.PRESSURE, "decode:14:slow"),
        deadline_s=120.0,
        n_tokens=26,
        is_timed=True,
        is_slow=True,
    ),
    Scenario("C1", "the prompt exceeds the context", Trigger.CONTEXT, n_ctx=64),
    Scenario(
        *("D1", "the deadline passes", Trigger.DEADLINE, "prefill:slow"),
        deadline_s=0.1,
        is_timed=True,
    ),
    Scenario("U1", "there is no such model", Trigger.UNSUPPORTED, has_model=False),
)
"""The triggers of the policy, one scenario each."""

OTHER_DEATHS: Final = tuple(
    Scenario(f"{phase[0].upper()}-{kind}", f"{kind} in {phase}", None, f"{phase}:{kind}")
    for phase in ("load", "context", "prefill", "decode", "snapshot")
    for kind in ("abort", "segv", "kill", "exit", "garbage", "half", "memory", "oom")
    if (phase, kind) != ("load", "oom")
)
"""Every other way for a worker to end, in each phase; some of them are reasons to ask an endpoint."""


def named(code: str) -> Scenario:
    """Return the scenario of a code.

    Raises:
        KeyError: there is none.
    """
    return {one.code: one for one in (UNDISTURBED, *TRIGGERS, *OTHER_DEATHS)}[code]


@dataclass(frozen=True, slots=True)
class Stage:
    """Where scenarios are played.

    Attributes:
        folder: for what they write; each gets an `EDGELLM_HOME` of its own below it.
        model: the file.
        canary: put into every message.
        url: of the endpoint that is configured, with a key, and consented to.
        sink: that is there, None where another process looks at it.
        counts: whether the kernel's count is of this stage alone.
    """

    folder: Path
    model: Path
    canary: Canary
    url: str
    sink: Sink | None = None
    counts: bool = False

    def play(self, scenario: Scenario, mode: Mode) -> Played:
        """Ask for one answer in a mode, and see it to its end.

        Raises:
            EdgeLLMError: the stage cannot be set; what fails in the play is its end.
        """
        home = self.folder / f"home-{scenario.code}-{mode.value}"
        os.environ[HOME_VARIABLE] = str(home)
        os.environ[FAULT_VARIABLE] = scenario.fault
        self._invite(home)
        if self.sink is not None:
            self.sink.clear()
        before = sent_bytes() if self.counts else 0
        # An endpoint that is named is said to be unused in a closed mode; one in the file is not.
        wishes = RouteWishes(mode=mode, deadline_s=scenario.deadline_s, on_failure="restart")
        options = SessionOptions(self._engine(), snapshot=Tier.EXACT, n_ctx=scenario.n_ctx)
        options = with_routes(options, wishes)
        events, ended = self._events(scenario, options)
        records = [record for _, record in AuditLog(home).show()]
        end = events[-1] if events and isinstance(events[-1], Done) else None
        received = b"" if self.sink is None else self.sink.received
        return Played(
            code=scenario.code,
            mode=options.mode.value,
            ended=end.finish_reason if end else ended,
            route=end.route if end else "",
            trigger=records[-1].trigger if records else "",
            n_records=len(records),
            n_text=sum(event.type == "token" for event in events),
            n_switches=sum(isinstance(event, Switch) for event in events),
            n_connections=0 if self.sink is None else self.sink.n_connections,
            n_received_bytes=len(received),
            n_sent_bytes=sent_bytes() - before if self.counts else None,
            forms=self.canary.hits(received),
        )

    def _events(self, scenario: Scenario, options: SessionOptions) -> tuple[list[Event], str]:
        """Return what the caller of a session gets, and the code of what was raised, or ""."""
        path = self.model if scenario.has_model else self.model.with_name("there-is-none.gguf")
        events: list[Event] = []
        try:
            with open_session(path, options) as session:
                events.extend(session.stream(self._request(scenario)))
        except EdgeLLMError as err:
            return events, err.code
        last = events[-1]
        return events, "" if isinstance(last, Done) else getattr(last, "code", "")

    def _invite(self, home: Path) -> None:
        """Do all that a user does who wants the endpoint asked, but for the mode."""
        set_value("endpoint.url", self.url)
        set_value("endpoint.model", ENDPOINT_MODEL)
        wanted = Wanted("edgellm", origin_of(self.url), ENDPOINT_MODEL)
        leave = draft(wanted, micro_usd_per_day=1_000_000, now_s=time.time())
        ConsentBook(home).grant(leave)

    def _engine(self) -> EngineSettings:
        is_small = self.model.stat().st_size < _SMALL_BYTES
        return EngineSettings(n_threads=1 if is_small else 0)

    def _request(self, scenario: Scenario) -> Request:
        said = self.canary.text
        return Request(
            (
                Message(
                    "system", f"You keep to yourself what you hear: {said}. " * _SYSTEM_REPEATS
                ),
                Message("user", f"My number is {said}."),
                Message("assistant", f"I heard {said}."),
                Message("user", f"What is {said}?"),
            ),
            max_tokens=scenario.n_tokens,
            sampling=Sampling(temperature=0, seed=1),
        )
