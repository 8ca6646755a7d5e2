"""What an endpoint's answer is made of, as the client hands it on.

Text and reasoning never mix; a call of a tool comes whole or not at all; only `CloudEnd` says that the
answer is over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgellm.core import FinishReason


@dataclass(frozen=True, slots=True)
class CloudText:
    """A piece of the answer: whole characters. Stop strings are the receiver's to cut."""

    text: str


@dataclass(frozen=True, slots=True)
class CloudReasoning:
    """A piece of what the model thought before its answer; no part of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class CloudToolCall:
    """A tool that the model wants called.

    Attributes:
        id: by which the endpoint wants to hear of the result, or "".
        name: of the tool.
        arguments: JSON text as it came, or "".
    """

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class CloudEnd:
    """The answer is over; the last event.

    Attributes:
        finish_reason: how it ended; `cancelled` where the caller stopped it.
        prompt_tokens: by the endpoint's count, or None where it gave none.
        cached_tokens: of them, found in the endpoint's own prefix cache; None where it does not say.
        completion_tokens: of the answer, reasoning included; None where it gave none.
        bytes_out: length of the body that was sent.
        bytes_in: length of what came back, as it crossed the network.
        note: what the user should know of an answer without text, or "".
    """

    finish_reason: FinishReason
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    bytes_out: int = 0
    bytes_in: int = 0
    note: str = ""


CloudEvent = CloudText | CloudReasoning | CloudToolCall | CloudEnd


@dataclass(slots=True)
class Traffic:
    """What one request moved, counted while it runs: right after a failure as well.

    Attributes:
        bytes_out: of the body; all of it counts from the moment that sending begins.
        bytes_in: of the answer so far.
    """

    bytes_out: int = 0
    bytes_in: int = 0


@dataclass(frozen=True, slots=True)
class Probe:
    """What an endpoint says without being sent any content.

    Attributes:
        url: that was asked, without its query.
        models: names it lists, at most a thousand; empty where it keeps no list.
        lists_model: whether the configured model is among them; None without a list.
        answered_ms: until its answer was there.
    """

    url: str
    models: tuple[str, ...]
    lists_model: bool | None
    answered_ms: float
