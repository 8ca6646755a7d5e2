"""Opening a session: in a worker, whose end the program survives, or in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from edgellm.runtime.session import Session, SessionOptions


def open_session(path: Path, options: SessionOptions) -> Session:
    """Load a model with the engine that its file asks for, where `options.isolation` says.

    Raises:
        ModelNotFound, ModelCorrupt, ModelUnsupported: the file is refused.
        EngineUnavailable: no engine is installed, or no process can be started.
        DoesNotFit, EngineFailed: it cannot be loaded.
        OutOfMemory, WorkerDied: the process that was to hold it ended.
        NoRoute: neither this machine nor an endpoint may answer now.
        UsageError, TemplateError: an option or `EDGELLM_HOME` is wrong.
        KeyUnavailable, MissingExtra: snapshots are to be encrypted, and cannot be.
        RecordsDamaged: the books are not what was written.
    """
    if options.isolation == "none":
        from edgellm.runtime.local import open_session as open_local
        from edgellm.runtime.supervising.recorded import Recorded

        return Recorded(open_local(path, options), options)
    from edgellm.runtime.worker.spawning import SPAWNER

    with SPAWNER.ahead():  # it imports while the model's header is read here
        from edgellm.runtime.supervising.assembling import open_supervisor

        return open_supervisor(path, options)
