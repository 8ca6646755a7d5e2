"""Session: a loaded model that answers requests. The doors speak to this protocol only.

A session may run the engine in this process or stand for one elsewhere; nothing in the protocol
tells. Events of a stream end with exactly one `Done` or `Failure`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from edgellm.core import Mode, Tier
from edgellm.engines.base import EngineSettings
from edgellm.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType

    from edgellm.core import (
        Done,
        Event,
        Message,
        ModelInfo,
        Request,
        SnapshotUse,
        Tools,
    )
    from edgellm.routing import Budget, Endpoint, OnFailure, Phase, ShareOptions
    from edgellm.store.key_sources import KeySource

Isolation = Literal["worker", "none"]
"""Where the engine runs: a process of its own, whose end the program survives, or this one."""


@dataclass(frozen=True, slots=True)
class CloudOptions:
    """An endpoint that a session may ask, where mode, consent and budget say so.

    Attributes:
        endpoint: where, and what it costs.
        budget: the most that may be spent there.
        api_key: what opens it, or a function that returns that when it is needed; never shown, and
            no process that holds a model sees it.
    """

    endpoint: Endpoint
    budget: Budget
    api_key: str | Callable[[], str | None] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How to open a session.

    Attributes:
        engine: settings of the engine.
        n_ctx: context in tokens; None takes min(the model's, max(4096, prompt + 1024)).
        snapshot: the tier of prefix snapshots, or off; `auto` decides by what was measured.
        snapshot_loss: mean KL divergence that `auto` may cost, in nats; 0 keeps the same answer.
        snapshot_turns: keep the state after each answer too, for conversations that are taken up
            again by another process.
        snapshot_cap_bytes: what snapshots may take in all; None takes the store's own limit.
        snapshot_key: the key they are encrypted under, or where it is: `keyring`, `file:PATH`, 32
            bytes, or a function that returns them; None leaves it to the environment. Never shown.
        snapshot_share: a place where machines share snapshots, or None.
        chat_template: Jinja source that replaces the model's own, or None.
        mode: which routes requests may take.
        isolation: where the engine runs; `none` is this process.
        cloud: the endpoint that may be asked, or None.
        on_failure: what becomes of an answer whose beginning was shown when its route fails.
        deadline_s: how long the first token may take, from the request; None waits.
        force: try it although the plan says that it does not fit, or it rests after deaths.
        app: the program's name, under which consent is given and spending is booked.
    """

    engine: EngineSettings = field(default_factory=EngineSettings)
    n_ctx: int | None = None
    snapshot: Tier = Tier.AUTO
    snapshot_loss: float = 0.0
    snapshot_turns: bool = False
    snapshot_cap_bytes: int | None = None
    chat_template: str | None = None
    mode: Mode = Mode.PRIVATE
    isolation: Isolation = "worker"
    snapshot_key: KeySource | None = field(default=None, repr=False)
    snapshot_share: ShareOptions | None = None
    cloud: CloudOptions | None = None
    on_failure: OnFailure = "resume-local"
    deadline_s: float | None = None
    force: bool = False
    app: str = "edgellm"


@dataclass(frozen=True, slots=True)
class SessionFacts(Wire):
    """What was resolved when the model was opened, for `--stats`.

    Attributes:
        engine: library and version, such as `llama.cpp 0.3.36 (0c1e570)`.
        n_ctx: context in tokens; it grows when a prompt needs more.
        n_batch: tokens per decode call.
        n_threads: CPU threads.
        n_gpu_layers: layers on a GPU.
        kv_type: type of keys and values.
        flash_attention: `on` or `off`, as resolved.
        kernels: which kernel row the store uses.
        load_ms: time to open the model.
        shared: what was exchanged with a shared tier so far, or "".
    """

    engine: str
    n_ctx: int
    n_batch: int
    n_threads: int
    n_gpu_layers: int
    kv_type: str
    flash_attention: str
    kernels: str
    load_ms: float
    shared: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """A piece of an answer as whoever keeps a journal of it needs it.

    Attributes:
        event: what is to be shown, or None for a sign of life.
        ids: tokens that were chosen, and whose text, where they complete any, is the event's. All
            of them in order are the journal, from which the answer can be gone on with.
        phase: what comes next.
        prompt_tokens: of the prompt, in the steps before it is read; 0 in all others.
    """

    event: Event | None
    ids: tuple[int, ...] = ()
    phase: Phase = "decode"
    prompt_tokens: int = 0


class Session(Protocol):
    """A loaded model. One answer at a time; `cancel` and `close` may come from any thread.

    A request made while another answer is unfinished fails with `UsageError`.
    """

    model: ModelInfo

    def facts(self) -> SessionFacts:
        """Return the resolved settings."""

    def stream(self, request: Request) -> Iterator[Event]:
        """Answer a request piece by piece.

        Closing the iterator early stops the answer. A request that continues the conversation of
        the one before decodes only what is new.
        """

    def generate(self, request: Request) -> Done:
        """Answer a request whole.

        Raises:
            EdgeLLMError: the answer failed.
        """

    def warm(self, messages: Sequence[Message], tools: Tools = ()) -> SnapshotUse:
        """Read what stays of a conversation whatever is asked, and wait until the disk has it.

        Returns:
            What happened: code `stored` when it was written now, `hit` when it was there already,
            another one where it cannot or need not be kept.

        Raises:
            EdgeLLMError: the prompt or the engine failed, or `cancel` came.
        """

    def cancel(self) -> None:
        """End the answer asked for last, begun or not, with finish reason `cancelled`."""

    def close(self) -> None:
        """Cancel what is running, wait for snapshots at most two seconds, then free the model."""

    def __enter__(self) -> Session:
        """Return the session itself."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the session."""
