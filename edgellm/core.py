"""The words every room speaks: frozen dataclasses for models, requests, and the events of an answer.

Each crosses a pipe or an HTTP body by `to_wire` and `from_wire` and is the same on the other side.
"""

from __future__ import annotations

import dataclasses
import enum
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

from edgellm.errors import UsageError
from edgellm.routing import CloudUse  # noqa: TC001  # `from_wire` reads the annotations
from edgellm.wire import Wire, json_copy, read_fields

Route = Literal["local", "cloud"]
FinishReason = Literal["stop", "length", "cancelled", "content_filter", "tool_calls"]
Sensitivity = Literal["normal", "private"]
Tools = tuple[Mapping[str, Any], ...]
ROLES = ("system", "user", "assistant", "tool")
_MAX_COUNT = 1 << 31
_MAX_SUM = (1 << 63) - 1


class Mode(str, enum.Enum):
    """Which routes a request may take. `private` is the default: nothing leaves the machine."""

    OFFLINE = "offline"
    PRIVATE = "private"
    PREFER_LOCAL = "prefer-local"
    PREFER_CLOUD = "prefer-cloud"


class Tier(str, enum.Enum):
    """How a prefix snapshot is kept, the most exact way first.

    `exact` promises the same bits as a prefill. The others round keys and values to so many bits;
    there, too, a run that finds a snapshot and the run that made it give the same answer. `auto` is
    a wish, not a way: it becomes one of the others, or off, when model, disk and prompt are known.
    """

    OFF = "off"
    AUTO = "auto"
    EXACT = "exact"
    Q8 = "q8"
    Q6 = "q6"
    Q5 = "q5"
    Q4 = "q4"


def _number(name: str, value: object, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise UsageError(f"{name} must be between {low:g} and {high:g}, not {value!r}")


def _whole(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise UsageError(f"{name} must be a whole number between {low} and {high}, not {value!r}")


def _sequence(name: str, value: object, of: str) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise UsageError(f"{name} must be a sequence of {of}, not {type(value).__name__}")
    return tuple(value)


@dataclass(frozen=True, slots=True)
class Message(Wire):
    """One message of a conversation.

    Attributes:
        role: `system`, `user`, `assistant` or `tool`.
        content: the text.
        marks: places in `content`, in characters, where a document ends that may stay while what
            follows changes; prefix snapshots are kept there too.
        sensitivity: `private` keeps every request that holds this message on this machine.
    """

    role: str
    content: str
    marks: tuple[int, ...] = ()
    sensitivity: Sensitivity = "normal"

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise UsageError(f"role must be one of {', '.join(ROLES)}, not {self.role!r}")
        if not isinstance(self.content, str):
            raise UsageError(f"content must be text, not {type(self.content).__name__}")
        try:
            self.content.encode()
        except UnicodeEncodeError as err:
            raise UsageError(f"content has half a surrogate at character {err.start}") from err
        if self.sensitivity not in get_args(Sensitivity):
            raise UsageError(f"sensitivity must be normal or private, not {self.sensitivity!r}")
        marks = _sequence("marks", self.marks, "places in the content")
        before = 0
        for mark in marks:
            _whole("a mark", mark, before + 1, len(self.content))
            before = mark
        object.__setattr__(self, "marks", marks)


@dataclass(frozen=True, slots=True)
class Sampling(Wire):
    """How the next token is chosen. `temperature` 0 is greedy.

    Attributes:
        temperature: divides the logits; 0 takes the largest.
        top_k: keep this many of the most probable tokens; 0 keeps all.
        top_p: keep the smallest set with this much probability; 1 keeps all.
        min_p: drop tokens below this fraction of the best one's probability; 0 drops none.
        repeat_penalty: divides positive and multiplies negative logits of recent tokens; 1 is off.
        repeat_last_n: how many recent tokens the penalty looks at.
        seed: of the random numbers; None draws one, which the answer's `Done` event names.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    seed: int | None = None

    def __post_init__(self) -> None:
        _number("temperature", self.temperature, 0, 100)
        _whole("top_k", self.top_k, 0, _MAX_COUNT)
        _number("top_p", self.top_p, 0, 1)
        _number("min_p", self.min_p, 0, 1)
        _number("repeat_penalty", self.repeat_penalty, 0.01, 100)
        _whole("repeat_last_n", self.repeat_last_n, 0, _MAX_COUNT)
        if self.seed is not None:
            _whole("seed", self.seed, 0, (1 << 64) - 1)


@dataclass(frozen=True, slots=True)
class Request(Wire):
    """One question to a model: the whole conversation and how to answer it.

    Attributes:
        messages: the conversation so far, the last one from the user.
        max_tokens: stop after this many answer tokens; None answers until the end of the turn.
        stop: texts that end the answer; they are not part of it.
        sampling: how tokens are chosen.
        tools: JSON objects that describe what the model may call, for the chat template. Their text
            in the prompt follows the order of their keys as given.
    """

    messages: tuple[Message, ...]
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    sampling: Sampling = field(default_factory=Sampling)
    tools: Tools = field(default=(), hash=False)  # equal values, which cannot be keys

    def __post_init__(self) -> None:
        # Lists are copied: a request that can be changed from outside is not frozen.
        object.__setattr__(self, "messages", _sequence("messages", self.messages, "Message"))
        object.__setattr__(self, "stop", _sequence("stop", self.stop, "texts"))
        if not self.messages:
            raise UsageError("a request needs at least one message")
        for message in self.messages:
            if not isinstance(message, Message):
                raise UsageError(f"messages must be Message values, not {type(message).__name__}")
        if not isinstance(self.sampling, Sampling):
            raise UsageError(f"sampling must be a Sampling, not {type(self.sampling).__name__}")
        if self.max_tokens is not None:
            _whole("max_tokens", self.max_tokens, 1, _MAX_COUNT)
        if any(not isinstance(text, str) or not text for text in self.stop):
            raise UsageError("a stop string must be text and not empty")
        tools = _sequence("tools", self.tools, "objects")
        for n, tool in enumerate(tools):
            if not isinstance(tool, Mapping):
                raise UsageError(f"tools[{n}] must be an object, not {type(tool).__name__}")
        # Copied too: what a caller changes afterwards must not change the prompt.
        copied = tuple(json_copy(tool, f"tools[{n}]") for n, tool in enumerate(tools))
        object.__setattr__(self, "tools", copied)


@dataclass(frozen=True, slots=True)
class Usage(Wire):
    """Token counts of one answer; `reused_tokens` of the prompt were not decoded anew."""

    prompt_tokens: int = 0
    reused_tokens: int = 0
    completion_tokens: int = 0

    def __post_init__(self) -> None:
        for counted in dataclasses.fields(self):
            _whole(counted.name, getattr(self, counted.name), 0, _MAX_SUM)


@dataclass(frozen=True, slots=True)
class Timings(Wire):
    """Where the time of one answer went; `ttft_ms` runs from the request to the first token."""

    load_ms: float = 0.0
    restore_ms: float = 0.0
    prefill_ms: float = 0.0
    ttft_ms: float = 0.0
    decode_tokens_per_s: float = 0.0

    def __post_init__(self) -> None:
        for timed in dataclasses.fields(self):
            _number(timed.name, getattr(self, timed.name), 0, sys.float_info.max)


@dataclass(frozen=True, slots=True)
class SnapshotUse(Wire):
    """What the prefix store did for one answer, and why.

    Attributes:
        tier: `off` or the tier in use.
        key: name of the snapshot file without its extension, or "".
        reason: one phrase, such as `hit`, `miss: stored`, `off: recurrent memory`.
        code: the reason in one word for programs, such as `hit`, `not_stored`, `corrupt`, `off`.
    """

    tier: str = Tier.OFF.value
    key: str = ""
    reason: str = ""
    code: str = ""


@dataclass(frozen=True, slots=True)
class Token(Wire):
    """A piece of the answer: whole UTF-8 characters, never part of a stop string."""

    type: ClassVar[str] = "token"
    seq: int
    text: str
    route: Route = "local"

    def __post_init__(self) -> None:
        _whole("seq", self.seq, 0, _MAX_SUM)


@dataclass(frozen=True, slots=True)
class Switch(Wire):
    """The answer goes on elsewhere: on another route, or in a new process on this machine.

    Attributes:
        source: the route until now.
        target: the route from here on; the same one for a process that was started again.
        reason: why, one phrase.
        discard_from_seq: tokens from this one on are to be thrown away; None keeps all.
        degraded: whether what follows may differ from the undisturbed answer beyond the place.
    """

    type: ClassVar[str] = "switch"
    source: Route
    target: Route
    reason: str
    discard_from_seq: int | None = None
    degraded: bool = False

    def to_wire(self) -> dict[str, Any]:
        """Return the JSON form, whose keys are `from` and `to`."""
        return {
            "from": self.source,
            "to": self.target,
            "reason": self.reason,
            "discard_from_seq": self.discard_from_seq,
            "degraded": self.degraded,
        }

    @classmethod
    def from_wire(cls, value: Mapping[str, Any]) -> Switch:
        """Build the event again from its JSON form."""
        names = {"from": "source", "to": "target", "source": "from", "target": "to"}
        parts = {names.get(name, name): item for name, item in value.items()}
        return cls(**read_fields(cls, parts, "Switch"))


@dataclass(frozen=True, slots=True)
class Warn(Wire):
    """Something the user can act on; the answer goes on."""

    type: ClassVar[str] = "warning"
    message: str


@dataclass(frozen=True, slots=True)
class Failure(Wire):
    """The answer ended with an error; the last event of its stream."""

    type: ClassVar[str] = "error"
    code: str
    message: str
    exit: int


@dataclass(frozen=True, slots=True)
class Done(Wire):
    """The answer is complete; the last event of its stream.

    Attributes:
        text: all of it.
        finish_reason: how it ended.
        route: which made its end.
        usage: token counts on this machine.
        timings: where the time went.
        snapshot: what the prefix store did.
        seed: of the random numbers.
        degraded: whether it was made, in part, with other settings than were asked for.
        cloud: what it took of an endpoint, None where none was asked.
        audit_id: its record in the audit log, or "".
    """

    type: ClassVar[str] = "done"
    text: str
    finish_reason: FinishReason
    route: Route = "local"
    usage: Usage = field(default_factory=Usage)
    timings: Timings = field(default_factory=Timings)
    snapshot: SnapshotUse = field(default_factory=SnapshotUse)
    seed: int | None = None
    degraded: bool = False
    cloud: CloudUse | None = None
    audit_id: str = ""


Event = Token | Switch | Warn | Failure | Done
_EVENTS: dict[str, type[Wire]] = {
    "token": Token,
    "switch": Switch,
    "warning": Warn,
    "error": Failure,
    "done": Done,
}


def event_to_wire(event: Event) -> dict[str, Any]:
    """Return an event as one `--json` line: its fields with `type` first."""
    return {"type": event.type, **event.to_wire()}


def event_from_wire(value: Mapping[str, Any]) -> Event:
    """Build an event from a `--json` line.

    Raises:
        UsageError: the type or a field is unknown.
    """
    named = value.get("type") if isinstance(value, Mapping) else None
    kind = _EVENTS.get(named) if isinstance(named, str) else None
    if kind is None:
        raise UsageError(f"unknown event type {named!r}")
    return kind.from_wire(value)  # type: ignore[return-value]  # every value of _EVENTS is one


@dataclass(frozen=True, slots=True)
class ModelInfo(Wire):
    """What a model file says of itself, read from its header alone.

    Attributes:
        path: the file.
        architecture: such as `llama`.
        name: the model's own name, or the file's.
        file_bytes: size of the file.
        n_params: weights, counted from the tensor table.
        n_layers: transformer blocks.
        n_ctx_train: the longest context it was trained for, in tokens.
        n_vocab: tokens in its vocabulary.
        n_embd: width of the residual stream.
        n_heads: query heads.
        n_kv_heads: key and value heads (GQA when fewer than `n_heads`).
        weight_types: tensor type name to the number of weights stored so.
        chat_template: the Jinja source, or None.
        memory: kind of sequence memory: `dense`, `window`, or another name.
        warnings: what the user should know of a file that works, one phrase each.
    """

    path: str
    architecture: str
    name: str
    file_bytes: int
    n_params: int
    n_layers: int
    n_ctx_train: int
    n_vocab: int
    n_embd: int
    n_heads: int
    n_kv_heads: int
    weight_types: Mapping[str, int]
    chat_template: str | None = None
    memory: str = "dense"
    warnings: tuple[str, ...] = ()
