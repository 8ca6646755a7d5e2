"""Loading a model in a worker as the program wants it, with all that only the program may find out."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from edgellm.core import Mode, Tier
from edgellm.engines.base import EngineSettings
from edgellm.errors import EdgeLLMError, EngineUnavailable
from edgellm.runtime.session import SessionOptions
from edgellm.runtime.worker import messages

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from edgellm.engines.llamacpp.checked import CheckedFile
    from edgellm.runtime.local import LocalSession
    from edgellm.runtime.worker.life import Life
    from edgellm.runtime.worker.messages import Announce, Open
    from edgellm.store.shared.remote import RemoteTier
    from edgellm.store.snapshots import SnapshotStore

_NEEDED: Final = (
    *("edgellm.runtime.local", "edgellm.runtime.worker.watched"),
    # what these import when they come to it, with an answer waiting
    *("edgellm.prompt.sandbox", "edgellm.runtime.loss", "psutil"),
)


def import_ahead() -> None:
    """Import what every model needs, before it is known which one it is.

    Where something is missing it is looked for once more when the model is loaded: then the
    program's own folders are known.
    """
    with suppress(ImportError):
        for name in _NEEDED:
            import_module(name)
        from edgellm.engines.llamacpp.library import load, tell_errors

        tell_errors(_to_stderr)
        with suppress(EngineUnavailable):
            load()


def check_ahead(order: Announce) -> CheckedFile | None:
    """Check the file of a model that may be opened next; None where something is wrong with it."""
    _enter(order.folder)
    with suppress(ImportError, EdgeLLMError):
        from edgellm.engines.llamacpp.checked import CheckedFile

        return CheckedFile(Path(order.path))
    return None


def load_session(
    order: Open,
    secrets: Mapping[int, bytes],
    life: Life,
    tier: RemoteTier,
    clock: Callable[[], datetime],
    checked: CheckedFile | None = None,
) -> LocalSession:
    """Load a model in this process, as the program wants it.

    Args:
        order: what the program said.
        secrets: the raw frames behind it, by tag.
        life: is told what is being done.
        tier: the shared tier, asked where the order names one.
        clock: the time that templates see.
        checked: what is known of the model's file, or of another one.

    Raises:
        EdgeLLMError: as `runtime.local.open_session`.
    """
    _enter(order.folder)
    known = set(sys.path)
    sys.path.extend(folder for folder in order.sys_path if folder not in known)
    from time import perf_counter

    from edgellm.engines.llamacpp.library import tell_errors
    from edgellm.runtime.local import LocalSession
    from edgellm.runtime.worker.watched import WatchedEngine

    tell_errors(_to_stderr)
    started_s = perf_counter()
    options = _options(order)
    store = _open_store(order, secrets, tier)
    engine = WatchedEngine(Path(order.path), options.engine, life, checked)
    session = LocalSession(engine, options, store=store, clock=clock)
    session.room.open()
    session.load_ms = (perf_counter() - started_s) * 1000
    return session


def _enter(folder: str) -> None:
    """Let paths be relative to a folder, unless it is gone or not named."""
    if folder:
        with suppress(OSError):
            os.chdir(folder)


def _open_store(
    order: Open, secrets: Mapping[int, bytes], tier: RemoteTier
) -> SnapshotStore | None:
    """Open the store as `runtime.storing` does, with what the program found out for it."""
    from edgellm.paths import snapshots_dir
    from edgellm.store.sealed.keys import StoreKey
    from edgellm.store.shared.read_through import ReadThroughStore
    from edgellm.store.shared.remote import Seals
    from edgellm.store.snapshots import SnapshotStore

    if Tier(order.snapshot) is Tier.OFF:
        return None
    root, cap_bytes = snapshots_dir(), order.snapshot_cap_bytes
    secret = secrets.get(messages.TAG_KEY)
    key = None if secret is None else StoreKey(secret)
    if order.share_max_bytes is None:
        return SnapshotStore(root, key=key, cap_bytes=cap_bytes)
    return ReadThroughStore(
        root,
        tier,
        Seals(secrets.get(messages.TAG_SECRET, b"")),
        refusal=lambda: order.refusal,
        max_bytes=order.share_max_bytes,
        writes_back=order.writes_back,
        key=key,
        cap_bytes=cap_bytes,
    )


def _options(order: Open) -> SessionOptions:
    engine = EngineSettings(
        n_batch=order.n_batch,
        n_threads=order.n_threads,
        n_gpu_layers=order.n_gpu_layers,
        kv_type=order.kv_type,
        flash_attention=order.flash_attention,
        repack=order.repack,
        adapters=tuple(zip(order.adapter_paths, order.adapter_scales, strict=True)),
    )
    return SessionOptions(
        engine=engine,
        n_ctx=order.n_ctx,
        snapshot=Tier(order.snapshot),
        snapshot_loss=order.snapshot_loss,
        snapshot_turns=order.snapshot_turns,
        snapshot_cap_bytes=order.snapshot_cap_bytes,
        chat_template=order.chat_template,
        mode=Mode(order.mode),
    )


def _to_stderr(line: str) -> None:
    """Write a line of the engine's: it is still there when this process is not."""
    with suppress(OSError):
        os.write(2, line.encode("utf-8", "replace") + b"\n")
