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
    from edgellm.runtime.worker.spawning import SPAWNER

    if options.isolation == "none":
        from edgellm.runtime.local import open_session as open_local
        from edgellm.runtime.supervising.recorded import Recorded

        SPAWNER.let_go()
        return Recorded(open_local(path, options), options)
    with SPAWNER.ahead() as tell:  # it imports while this process does, and reads the header too
        from edgellm.runtime.supervising.assembling import open_supervisor
        from edgellm.runtime.worker.opening import announcement

        tell(announcement(path))
        return open_supervisor(path, options)
