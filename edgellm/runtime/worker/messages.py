"""What a program and its worker say to each other: frozen dataclasses, read back field by field.

A call (an answer, a warming) has a number. All that belongs to it carries that number, so that what
comes late from a call that was given up is known and dropped.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003  # `from_wire` reads the annotations
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

from edgellm.core import Message, ModelInfo, Request, SnapshotUse  # noqa: TC001  # likewise
from edgellm.engines.base import FlashAttention  # noqa: TC001  # likewise
from edgellm.errors import UsageError
from edgellm.routing import Phase  # noqa: TC001  # likewise
from edgellm.runtime.session import SessionFacts  # noqa: TC001  # likewise
from edgellm.wire import Wire

TAG_KEY: Final = 1
"""Tag of the raw frame behind `Open` that holds the key of the snapshots."""
TAG_SECRET: Final = 2
"""Tag of the raw frame behind `Open` that holds the secret of the shared tier."""
FIRST_TIER_TAG: Final = 16
"""Exchanges with the shared tier are numbered from here, and their number is their raw frames' tag."""


@dataclass(frozen=True, slots=True)
class Announce(Wire):
    """To the worker, first or never: a model that it may soon be told to open; fields as of `Open`."""

    type: ClassVar[str] = "announce"
    path: str
    folder: str


@dataclass(frozen=True, slots=True)
class Open(Wire):
    """To the worker, once: load a model. Fields as in `SessionOptions` and `EngineSettings`.

    Attributes:
        folder: what paths are relative to, or "".
        sys_path: where the program finds modules; the worker looks there after its own places.
        refusal: why nothing may be exchanged with the shared tier, or "".
        share_max_bytes: the longest value that is exchanged; None without a shared tier.
        has_key, has_secret: whether raw frames with these follow.
    """

    type: ClassVar[str] = "open"
    path: str
    folder: str
    sys_path: tuple[str, ...]
    n_batch: int
    n_threads: int
    n_gpu_layers: int | None
    kv_type: str
    flash_attention: FlashAttention
    repack: bool
    adapter_paths: tuple[str, ...]
    adapter_scales: tuple[float, ...]
    n_ctx: int | None
    snapshot: str
    snapshot_loss: float
    snapshot_turns: bool
    snapshot_cap_bytes: int | None
    chat_template: str | None
    mode: str
    refusal: str = ""
    share_max_bytes: int | None = None
    writes_back: bool = False
    has_key: bool = False
    has_secret: bool = False


@dataclass(frozen=True, slots=True)
class Stream(Wire):
    """To the worker: answer a request.

    Attributes:
        call: its number.
        request: the request, with a seed where it is to be resumable.
        journal: tokens that were chosen before; their text is not sent again.
        clock_s: the time that templates see, in seconds since 1970; None is now.
    """

    type: ClassVar[str] = "stream"
    call: int
    request: Request
    journal: tuple[int, ...] = ()
    clock_s: float | None = None


@dataclass(frozen=True, slots=True)
class Warm(Wire):
    """To the worker: read a conversation's prefix and keep it."""

    type: ClassVar[str] = "warm"
    call: int
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Cancel(Wire):
    """To the worker: end a call soon, begun or not."""

    type: ClassVar[str] = "cancel"
    call: int


@dataclass(frozen=True, slots=True)
class Close(Wire):
    """To the worker: wait for snapshots, free the model, end."""

    type: ClassVar[str] = "close"


@dataclass(frozen=True, slots=True)
class TierAnswer(Wire):
    """To the worker: what the shared tier said; `n_bytes` follow in raw frames.

    Attributes:
        tag: of the exchange.
        size: of a value, where that was asked and there is one.
        n_bytes: of a piece that was read.
        error: why it failed, or None.
    """

    type: ClassVar[str] = "tier_answer"
    tag: int
    size: int | None = None
    n_bytes: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Opened(Wire):
    """From the worker: the model is loaded; `enforced` names what keeps the worker apart."""

    type: ClassVar[str] = "opened"
    model: ModelInfo
    facts: SessionFacts
    enforced: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StepMade(Wire):
    """From the worker: a piece of an answer, or only a sign of life.

    Attributes:
        call: the answer's number; 0 while the model is being opened.
        phase: what the worker is doing.
        events: in the form of `event_to_wire`; all of them arrive, or none.
        ids: the tokens whose text, if they have any, is in `events`.
        facts: with the last one of a call.
        prompt_tokens: as in a `Step`.
    """

    type: ClassVar[str] = "step"
    call: int
    phase: Phase
    events: tuple[Mapping[str, Any], ...] = ()
    ids: tuple[int, ...] = ()
    facts: SessionFacts | None = None
    prompt_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Warmed(Wire):
    """From the worker: the end of a warming."""

    type: ClassVar[str] = "warmed"
    call: int
    use: SnapshotUse
    facts: SessionFacts


@dataclass(frozen=True, slots=True)
class Raised(Wire):
    """From the worker: a call, or the opening, ended with an error; see `raising.py`."""

    type: ClassVar[str] = "raised"
    call: int
    error: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Broke(Wire):
    """From the worker, as its last word: what it could not go on after, such as `MemoryError`."""

    type: ClassVar[str] = "broke"
    exception: str


@dataclass(frozen=True, slots=True)
class TierCall(Wire):
    """From the worker: do this with the shared tier; what is to be written follows in raw frames."""

    type: ClassVar[str] = "tier_call"
    tag: int
    op: Literal["size", "read", "write"]
    name: str
    start: int = 0
    n_bytes: int = 0


_KINDS: Final[dict[str, type[Wire]]] = {
    kind.type: kind
    for kind in (
        *(Announce, Open, Stream, Warm, Cancel, Close, TierAnswer),
        *(Opened, StepMade, Warmed, Raised, Broke, TierCall),
    )
}


def to_wire(message: Wire) -> dict[str, Any]:
    """Return a message as an object with its type."""
    return {"type": message.type, **message.to_wire()}  # type: ignore[attr-defined]  # each has one


def from_wire(value: Mapping[str, Any]) -> Wire:
    """Return the message that an object holds.

    Raises:
        UsageError: the type or a field is unknown, missing or wrong.
    """
    named = value.get("type")
    kind = _KINDS.get(named) if isinstance(named, str) else None
    if kind is None:
        raise UsageError(f"no message is called {named!r:.80}")
    return kind.from_wire(value)
