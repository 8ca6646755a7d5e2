"""Turn: the state of one answer while it is made, whichever routes it takes.

What was shown is written down here before it is handed out, so that an answer that is taken up again
neither repeats nor loses a piece.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from time import perf_counter, time
from typing import TYPE_CHECKING, Final

from edgellm.core import Switch, Token, Usage, Warn
from edgellm.errors import DoesNotFit
from edgellm.routing import CloudUse

if TYPE_CHECKING:
    from edgellm.core import Event, Request, Route
    from edgellm.errors import EdgeLLMError
    from edgellm.policy.deaths import Verdict
    from edgellm.policy.route import Decision
    from edgellm.routing import Phase, Trigger

_SEED_BITS: Final = 32  # as a session draws them
_NAME_BYTES: Final = 8


class RouteFailed(Exception):  # not an error of ours to show: it never leaves this room
    """A route did not bring the answer to its end.

    Attributes:
        error: what the caller gets if nothing else helps.
        trigger: what follows for the choice of the next route.
        phase: what the model was doing.
        verdict: why its process ended, or None where it lives.
    """

    def __init__(
        self, error: EdgeLLMError, trigger: Trigger, phase: Phase, verdict: Verdict | None = None
    ) -> None:
        super().__init__(str(error))
        self.error = error
        self.trigger = trigger
        self.phase = phase
        self.verdict = verdict

    @property
    def is_memory(self) -> bool:
        """Return whether memory ran out, so that the same settings would fail again."""
        return isinstance(self.error, DoesNotFit)

    @property
    def is_death_for_memory(self) -> bool:
        """Return whether a process ended for want of memory; what was refused in words costs nothing."""
        return self.is_memory and self.verdict is not None


@dataclass(slots=True)
class Turn:
    """One answer being made.

    Attributes:
        request: what was asked.
        seed: of the random numbers, the same one after a restart.
        name: by which the records of one answer belong together.
        journal: tokens whose text was shown, or held back, so far.
        texts: pieces that were shown and not taken back.
        n_prompt_tokens: of the prompt, as the worker counted them; 0 before it has.
        route: that the answer is on, None before the first.
        has_switched: whether it changed its route.
        n_local: how often this machine was tried.
        n_cloud: how often the endpoint was.
        degraded: whether it was made, in part, otherwise than asked for.
        went_on: whether its first worker may have gone on from the memory of an answer before. One
            that takes over reads all of the conversation at once, and rounds otherwise.
        tool_call_shown: whether a call of a tool was handed out.
        is_cancelled: whether the caller wants it to end.
        leaving: why this machine is to be left though it works, None while it need not.
        warnings: to be handed out with the next event.
        noted: those that are said once only.
        failure: why the route taken last failed, None while none did.
        first_failure: why the first one did.
        decision: the last one made.
        usage: of this machine, when the answer has ended.
        cloud: what was taken of the endpoint, all requests together; None where nothing was sent.
        micro_usd: what that cost, in millionths of a dollar.
        consent_id, reservation_id: under which it was sent last.
        n_switches: how often the caller was told that it goes on elsewhere.
        n_discarded_tokens: of this machine, shown and taken back again.
        audit_id: its record, "" until it is written.
        is_unrecorded: whether writing it failed.
        started_s: when it was asked for, by `perf_counter`.
        clock_s: the same as templates see it, in seconds since 1970.
        first_s: when the first text was shown, or None.
    """

    request: Request
    seed: int = 0
    name: str = field(default_factory=lambda: secrets.token_hex(_NAME_BYTES))
    journal: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    n_prompt_tokens: int = 0
    route: Route | None = None
    has_switched: bool = False
    n_local: int = 0
    n_cloud: int = 0
    degraded: bool = False
    went_on: bool = False
    tool_call_shown: bool = False
    is_cancelled: bool = False
    leaving: Trigger | None = None
    warnings: list[str] = field(default_factory=list)
    noted: list[str] = field(default_factory=list)
    failure: RouteFailed | None = None
    first_failure: RouteFailed | None = None
    decision: Decision | None = None
    usage: Usage = field(default_factory=Usage)
    cloud: CloudUse | None = None
    micro_usd: int = 0
    consent_id: str = ""
    reservation_id: str = ""
    n_switches: int = 0
    n_discarded_tokens: int = 0
    audit_id: str = ""
    is_unrecorded: bool = False
    started_s: float = field(default_factory=perf_counter)
    clock_s: float = field(default_factory=time)
    first_s: float | None = None

    @classmethod
    def begin(cls, request: Request) -> Turn:
        """Return the state of an answer of which nothing is there; a missing seed is drawn."""
        seed = request.sampling.seed
        return cls(request, secrets.randbits(_SEED_BITS) if seed is None else seed)

    @property
    def text(self) -> str:
        """Return what the caller holds of the answer."""
        return "".join(self.texts)

    @property
    def n_shown(self) -> int:
        """Return how many pieces the caller holds."""
        return len(self.texts)

    @property
    def needed_tokens(self) -> int:
        """Return what a context must hold for the whole answer; 0 where that is not known."""
        longest = self.request.max_tokens
        if longest is None or self.n_prompt_tokens <= 0:
            return 0
        return self.n_prompt_tokens + max(longest, len(self.journal) + 1)

    @property
    def ttft_ms(self) -> float:
        """Return the time to the first text, or until now."""
        return ((self.first_s or perf_counter()) - self.started_s) * 1000

    @property
    def n_local_tokens(self) -> int:
        """Return how many tokens this machine made, those that were taken back included."""
        return len(self.journal) + self.n_discarded_tokens

    def bill(self, use: CloudUse, consent_id: str, reservation_id: str) -> None:
        """Add what one request to the endpoint took."""
        self.consent_id, self.reservation_id = consent_id, reservation_id
        self.micro_usd += round((use.usd or 0.0) * 1e6)
        self.cloud = use if self.cloud is None else _sum(self.cloud, use)

    def token(self, text: str) -> Token:
        """Write down a piece that is handed out next, and return it as an event."""
        if self.first_s is None:
            self.first_s = perf_counter()
        self.texts.append(text)
        return Token(len(self.texts) - 1, text, self.route or "local")

    def warn_once(self, text: str) -> None:
        """Have something said that may come up again."""
        if text not in self.noted:
            self.noted.append(text)
            self.warnings.append(text)

    def told(self) -> list[Event]:
        """Return the warnings that have come up, once."""
        said, self.warnings = self.warnings, []
        return [Warn(text) for text in said]

    def go(self, decision: Decision, what: str = "") -> list[Event]:
        """Take the route of a decision, and return what the caller is told of it.

        Args:
            decision: for `local` or `cloud`.
            what: the change made on this machine, such as a smaller batch, or "".
        """
        why = self.failure
        target: Route = "cloud" if decision.route == "cloud" else "local"
        before = self.route or ("local" if target == "cloud" else "cloud")
        is_other = self.route is not None and self.route != target
        self.route, self.decision = target, decision
        self.has_switched |= is_other
        starts_over = decision.action in ("start", "restart")
        self.degraded |= is_other and decision.action == "continue"
        self.degraded |= self.went_on and target == "local" and not starts_over
        told = self.told()
        reason = "; ".join(part for part in (decision.reason, what) if part)
        if "announce" in decision.obligations:
            from_seq = 0 if starts_over and self.n_shown else None
            told.append(Switch(before, target, reason, from_seq, self.degraded))
            self.n_switches += 1
        elif why is not None:
            told.append(Warn(f"{why.error}; going on: {reason}"))
        if starts_over:
            self._forget()
        return told

    def _forget(self) -> None:
        """Take back what was shown: what comes now begins at the first token."""
        self.n_discarded_tokens += len(self.journal)
        self.journal.clear()
        self.texts.clear()


def _sum(first: CloudUse, second: CloudUse) -> CloudUse:
    """Return two requests to one endpoint as one."""
    has_usd = first.usd is not None and second.usd is not None
    return CloudUse(
        origin=second.origin,
        model=second.model,
        prompt_tokens=first.prompt_tokens + second.prompt_tokens,
        cached_tokens=first.cached_tokens + second.cached_tokens,
        completion_tokens=first.completion_tokens + second.completion_tokens,
        usd=(first.usd or 0.0) + (second.usd or 0.0) if has_usd else None,
        bytes_out=first.bytes_out + second.bytes_out,
        bytes_in=first.bytes_in + second.bytes_in,
        estimated=first.estimated or second.estimated,
    )
