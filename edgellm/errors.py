"""Every error edgellm raises on purpose, as one tree.

EdgeLLMError
├── UsageError                  a flag, an argument or a variable is wrong
├── ModelError
│   ├── ModelNotFound
│   ├── ModelCorrupt            the bytes contradict themselves
│   └── ModelUnsupported        the bytes are fine, nobody here can run them
├── ConvertError
│   ├── UnknownArchitecture
│   ├── TensorMismatch          names or shapes differ from the family's recipe
│   └── VerifyFailed            the written file is not what was meant
├── PromptError
│   ├── TemplateError           the chat template failed, or was stopped
│   └── PromptTooLong           the prompt does not fit the context
├── SnapshotError
│   ├── SnapshotCorrupt
│   ├── SnapshotIncompatible
│   └── PackRefused             snapshots from elsewhere: damaged, or nobody trusted vouches for them
├── KeyUnavailable              encryption was asked for, and its key cannot be had
├── DoesNotFit                  memory or disk
│   └── OutOfMemory             memory ran out while it was used
├── EngineError
│   ├── EngineUnavailable       the library is not installed, or cannot load
│   ├── EngineFailed
│   ├── WorkerDied              the process that held the model ended: it crashed, or was killed
│   └── Cancelled               somebody asked the engine to stop
├── NoRoute                     neither this machine nor an endpoint can and may answer
├── EndpointError               an endpoint failed, or refused
├── RecordsDamaged              the audit log, consents or budget contradict themselves
├── RecordsUnavailable          they cannot be kept here: no permission, or a read-only disk
├── MissingExtra                an optional dependency is not installed
└── FetchError

Each class carries the process exit code and a stable `code` for `--json` lines. This module imports
nothing at run time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

if TYPE_CHECKING:
    from os import PathLike

    from edgellm.routing import Phase

EndpointFailure = Literal[
    "connect",  # no connection: nothing was sent
    "timeout",  # of one phase; the message names it
    "rate_limit",
    "quota",  # money or quota is used up: waiting does not help
    "auth",
    "not_found",
    "invalid",  # the request is refused as it stands
    "too_long",  # prompt and answer exceed the model's context
    "server",  # 5xx, or an error within the stream
    "protocol",  # what came is no answer of such an endpoint
    "incomplete",  # the stream ended before the answer did
    "redirect",
    "certificate",
]
EXIT_FAILURE = 1
EXIT_BAD_INPUT = 2
EXIT_NOT_FOUND = 3
EXIT_DOES_NOT_FIT = 4
EXIT_VERIFY_FAILED = 5
EXIT_NO_ROUTE = 6
EXIT_INTERRUPTED = 130


class EdgeLLMError(Exception):
    """Base of every error raised on purpose.

    Attributes:
        message: what happened, where, the numbers.
        hint: the next step for the person reading, or "".
        path: the file it is about, or None.
    """

    exit_code: ClassVar[int] = EXIT_FAILURE
    code: ClassVar[str] = "error"

    def __init__(
        self, message: str, *, path: str | PathLike[str] | None = None, hint: str = ""
    ) -> None:
        super().__init__(message)
        self.message = message
        self.path = None if path is None else str(path)
        self.hint = hint

    def __str__(self) -> str:
        """Return `path: message; hint`, whichever parts are there."""
        where = f"{self.path}: " if self.path and self.path not in self.message else ""
        then = f"; {self.hint}" if self.hint else ""
        return f"{where}{self.message}{then}"


class UsageError(EdgeLLMError):
    """A flag, an argument or an environment variable has a value that cannot be used."""

    exit_code = EXIT_BAD_INPUT
    code = "usage"


class ModelError(EdgeLLMError):
    """A model file cannot be used."""

    exit_code = EXIT_BAD_INPUT
    code = "model"


class ModelNotFound(ModelError):
    """There is no model at that path."""

    exit_code = EXIT_NOT_FOUND
    code = "model_not_found"


class ModelCorrupt(ModelError):
    """The file's own numbers contradict each other or its size."""

    code = "model_corrupt"


class ModelUnsupported(ModelError):
    """The file is whole, but no engine here can run it."""

    code = "model_unsupported"


class ConvertError(EdgeLLMError):
    """A checkpoint cannot be converted."""

    exit_code = EXIT_BAD_INPUT
    code = "convert"


class UnknownArchitecture(ConvertError):
    """No converter family knows this architecture."""

    code = "unknown_architecture"


class TensorMismatch(ConvertError):
    """Tensors are missing, unknown, or of another shape than the family's recipe says."""

    code = "tensor_mismatch"


class VerifyFailed(ConvertError):
    """The written file was reopened and differs from what was meant."""

    exit_code = EXIT_VERIFY_FAILED
    code = "verify_failed"


class PromptError(EdgeLLMError):
    """The prompt cannot be made into tokens."""

    exit_code = EXIT_BAD_INPUT
    code = "prompt"


class TemplateError(PromptError):
    """The chat template failed, or did more than its bounds allow."""

    code = "template"


class PromptTooLong(PromptError):
    """The prompt leaves no room for an answer in the context."""

    code = "prompt_too_long"


class SnapshotError(EdgeLLMError):
    """A prefix snapshot cannot be used; a caller may always prefill instead."""

    code = "snapshot"


class SnapshotCorrupt(SnapshotError):
    """A snapshot file fails one of its checks."""

    code = "snapshot_corrupt"


class SnapshotIncompatible(SnapshotError):
    """A whole snapshot that does not belong to this model, engine or prompt."""

    code = "snapshot_incompatible"


class KeyUnavailable(EdgeLLMError):
    """Snapshots are to be encrypted, and there is no key; nothing is kept plain instead."""

    code = "key_unavailable"


class PackRefused(SnapshotError):
    """A pack of snapshots is damaged, or nobody who is trusted here vouches for it."""

    exit_code = EXIT_VERIFY_FAILED
    code = "pack_refused"


class DoesNotFit(EdgeLLMError):
    """Memory or disk is too small for what was asked.

    Attributes:
        need_bytes: bytes needed, or None when unknown.
        have_bytes: bytes there are, or None when unknown.
    """

    exit_code = EXIT_DOES_NOT_FIT
    code = "does_not_fit"

    def __init__(
        self,
        message: str,
        *,
        path: str | PathLike[str] | None = None,
        hint: str = "",
        need_bytes: int | None = None,
        have_bytes: int | None = None,
    ) -> None:
        super().__init__(message, path=path, hint=hint)
        self.need_bytes = need_bytes
        self.have_bytes = have_bytes


class OutOfMemory(DoesNotFit):
    """Memory ran out while a model was used.

    Attributes:
        phase: what it was doing.
        evidence: what says that it was memory, one phrase each.
    """

    code = "out_of_memory"

    def __init__(
        self,
        message: str,
        *,
        phase: Phase = "load",
        evidence: tuple[str, ...] = (),
        path: str | PathLike[str] | None = None,
        hint: str = "",
        need_bytes: int | None = None,
        have_bytes: int | None = None,
    ) -> None:
        super().__init__(
            message, path=path, hint=hint, need_bytes=need_bytes, have_bytes=have_bytes
        )
        self.phase = phase
        self.evidence = evidence


class EngineError(EdgeLLMError):
    """The inference engine cannot do what was asked."""

    code = "engine"


class EngineUnavailable(EngineError):
    """The engine's library is not installed or cannot be loaded."""

    code = "engine_unavailable"


class EngineFailed(EngineError):
    """The engine reported a failure; its last log lines are in the message."""

    code = "engine_failed"


class WorkerDied(EngineError):
    """The process that held the model ended without being asked to, and not for want of memory.

    Attributes:
        phase: what it was doing.
        signal: the number of the signal that ended it, or None.
        returncode: its exit code as the system gave it, negative for a signal.
        evidence: what is known of the cause, one phrase each.
    """

    code = "worker_died"

    def __init__(
        self,
        message: str,
        *,
        phase: Phase = "load",
        returncode: int = 0,
        evidence: tuple[str, ...] = (),
        path: str | PathLike[str] | None = None,
        hint: str = "",
    ) -> None:
        super().__init__(message, path=path, hint=hint)
        self.phase = phase
        self.returncode = returncode
        self.signal = -returncode if returncode < 0 else None
        self.evidence = evidence


class Cancelled(EngineError):
    """A decode was stopped on request; what was decoded before it stays."""

    exit_code = EXIT_INTERRUPTED
    code = "cancelled"


class NoRoute(EdgeLLMError):
    """Neither this machine nor an endpoint can and may answer.

    Attributes:
        reasons: why not, a phrase for each route.
    """

    exit_code = EXIT_NO_ROUTE
    code = "no_route"

    def __init__(
        self,
        message: str,
        *,
        reasons: tuple[str, ...] = (),
        path: str | PathLike[str] | None = None,
        hint: str = "",
    ) -> None:
        super().__init__(message, path=path, hint=hint)
        self.reasons = reasons


class EndpointError(EdgeLLMError):
    """An endpoint failed or refused; the message names the address without any secret.

    Attributes:
        kind: of the failure.
        status: HTTP status, or None without one.
        retry_after_s: when the endpoint said to come again, or None.
        may_retry: whether the same request may be sent once more without harm.
    """

    code = "endpoint"

    def __init__(
        self,
        message: str,
        *,
        kind: EndpointFailure = "server",
        status: int | None = None,
        retry_after_s: float | None = None,
        may_retry: bool = False,
        path: str | PathLike[str] | None = None,
        hint: str = "",
    ) -> None:
        super().__init__(message, path=path, hint=hint)
        self.kind = kind
        self.status = status
        self.retry_after_s = retry_after_s
        self.may_retry = may_retry


class RecordsDamaged(EdgeLLMError):
    """The audit log, a consent or the budget's ledger is not what was written."""

    exit_code = EXIT_VERIFY_FAILED
    code = "records_damaged"


class RecordsUnavailable(EdgeLLMError):
    """The audit log, consents or the budget's ledger cannot be read or written at all."""

    code = "records_unavailable"


class MissingExtra(EdgeLLMError):
    """An optional dependency is not installed; the hint names the install command."""

    code = "missing_extra"


class FetchError(EdgeLLMError):
    """Something could not be fetched."""

    code = "fetch"
