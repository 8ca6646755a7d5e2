"""One record of the audit log: what was decided for an answer and what left for it, and no text.

An answer has one record, written at its end. Before each request to an endpoint another one of the same
turn is written, with the most that may leave: where a program is killed behind it, that one stays open.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from edgellm.core import Mode
from edgellm.routing import CloudUse  # noqa: TC001  # `from_wire` reads the annotations
from edgellm.wire import Wire

MAX_PHRASE: Final = 200
"""Longer phrases and names are cut off: none of ours is, and what is might be somebody's text."""
SENDING: Final = "sending"
"""`finish` of what is written before something is sent."""


@dataclass(frozen=True, slots=True)
class AuditRecord(Wire):
    """What is kept of one answer.

    Attributes:
        app: the program that asked.
        mode: that counted.
        route: where the answer ended; `none` where it was refused.
        action: as decided.
        reason: why, as decided.
        trigger: what the last decision rested on, or "".
        model: name of the local model, never a prompt.
        finish: how the answer ended, or the `code` of the error; `SENDING` before something is sent.
        n_switches: how often it went on elsewhere, in another process included.
        degraded: whether it may differ from the undisturbed one.
        prompt_tokens: read on this machine, or taken from a snapshot.
        completion_tokens: made on this machine.
        cloud: what was taken of an endpoint, or None where nothing was sent.
        micro_usd: what it cost, in millionths of a dollar.
        consent_id: under which consent it was sent, or "".
        reservation_id: which part of the budget was taken, or "".
        turn: name of the answer, which its end has in common with what was written before a request;
            "" where no endpoint was asked.
        time_s: when the record was written, in seconds since 1970; the log fills it in.
        prompt: keyed hash of the conversation; the log fills it in.
    """

    app: str
    mode: str = Mode.PRIVATE.value
    route: str = "local"
    action: str = "start"
    reason: str = ""
    trigger: str = ""
    model: str = ""
    finish: str = ""
    n_switches: int = 0
    degraded: bool = False
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cloud: CloudUse | None = None
    micro_usd: int = 0
    consent_id: str = ""
    reservation_id: str = ""
    turn: str = ""
    time_s: float = 0.0
    prompt: str = ""

    @property
    def is_open(self) -> bool:
        """Whether this says that something is sent, and not how the answer ended."""
        return self.finish == SENDING

    def __post_init__(self) -> None:
        for name in ("app", "reason", "model", "finish"):
            object.__setattr__(self, name, getattr(self, name)[:MAX_PHRASE])
