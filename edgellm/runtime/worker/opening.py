"""What a worker is told first: the options of a session, with all that only the program may find out.

Keys and secrets are looked up here and go over the pipe in raw frames; the worker has no keyring, no
address of a shared tier and no credentials.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgellm.core import Tier
from edgellm.paths import ENCRYPT_VARIABLE, KEY_FILE_VARIABLE, snapshots_dir
from edgellm.runtime.worker.frames import encode_json, encode_raw
from edgellm.runtime.worker.messages import TAG_KEY, TAG_SECRET, Announce, Open, to_wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from edgellm.runtime.session import SessionOptions
    from edgellm.runtime.worker.tier import TierServer
    from edgellm.store.shared.remote import RemoteTier


@dataclass(frozen=True, slots=True)
class Orders:
    """What opens a model in a worker.

    Attributes:
        frames: to be sent in this order.
        place: the shared tier, or None.
        refusal: why nothing may be exchanged with it, or ""; asked each time.
        max_bytes: the longest value.
    """

    frames: tuple[bytes, ...]
    place: RemoteTier | None = None
    refusal: Callable[[], str] = str
    max_bytes: int = 0

    def serve(self, put: Callable[[bytes], None]) -> TierServer | None:
        """Begin to serve the shared tier, where there is one."""
        if self.place is None:
            return None
        from edgellm.runtime.worker.tier import TierServer

        return TierServer(self.place, refusal=self.refusal, max_bytes=self.max_bytes, put=put)


def announcement(path: Path) -> bytes:
    """Return the frame that says which model a worker will be told to open, if it comes to that."""
    return encode_json(to_wire(Announce(os.fspath(path), _folder())))


def orders_for(path: Path, options: SessionOptions) -> Orders:
    """Return what a worker is told to open a model.

    Raises:
        UsageError: a key or the shared tier is named wrong.
        KeyUnavailable, MissingExtra: snapshots are to be encrypted or shared, and cannot be.
    """
    keeps = options.snapshot is not Tier.OFF
    key = _key(options, os.environ) if keeps else None
    share = options.snapshot_share if keeps else None
    order = _order(path, options, has_key=key is not None)
    raws = [] if key is None else encode_raw(TAG_KEY, key)
    if share is None:
        return Orders((encode_json(to_wire(order)), *raws))
    from dataclasses import replace

    from edgellm.cloud.redis_tier import RedisTier
    from edgellm.policy.permits import may_share
    from edgellm.store.shared.remote import SEAL_BYTES, Seals

    def refusal() -> str:
        return may_share(options.mode, share.url, trusted=share.trusted).reason

    Seals(share.secret)  # what is wrong with it is said here
    order = replace(
        order,
        refusal=refusal(),
        share_max_bytes=share.max_bytes,
        writes_back=share.writes_back,
        has_secret=True,
    )
    raws += encode_raw(TAG_SECRET, share.secret)
    frames = (encode_json(to_wire(order)), *raws)
    return Orders(frames, RedisTier(share.url), refusal, share.max_bytes + SEAL_BYTES)


def _order(path: Path, options: SessionOptions, *, has_key: bool) -> Open:
    engine = options.engine
    return Open(
        path=os.fspath(path),
        folder=_folder(),
        sys_path=tuple(_places(sys.path)),
        n_batch=engine.n_batch,
        n_threads=engine.n_threads,
        n_gpu_layers=engine.n_gpu_layers,
        kv_type=engine.kv_type,
        flash_attention=engine.flash_attention,
        repack=engine.repack,
        adapter_paths=tuple(place for place, _ in engine.adapters),
        adapter_scales=tuple(scale for _, scale in engine.adapters),
        n_ctx=options.n_ctx,
        snapshot=options.snapshot.value,
        snapshot_loss=options.snapshot_loss,
        snapshot_turns=options.snapshot_turns,
        snapshot_cap_bytes=options.snapshot_cap_bytes,
        chat_template=options.chat_template,
        mode=options.mode.value,
        has_key=has_key,
    )


def _places(path: Sequence[object]) -> Iterator[str]:
    """Give the places of a `sys.path`, into which programs put all sorts of things, in full."""
    for place in path:
        if isinstance(place, str) and place:
            with suppress(OSError):  # relative to a folder that is gone
                yield os.path.abspath(place)  # noqa: PTH100  # a text


def _folder() -> str:
    """Return the folder that paths are relative to, or "" where it is gone."""
    try:
        return os.getcwd()  # noqa: PTH109  # a text
    except OSError:
        return ""


def _key(options: SessionOptions, environ: Mapping[str, str]) -> bytes | None:
    """Return the key of the snapshots as the program finds it, or None without one."""
    source = options.snapshot_key
    named = environ.get(ENCRYPT_VARIABLE) or environ.get(KEY_FILE_VARIABLE)
    if source is None and not named:
        return None  # as most often; what knows of keys takes time to import
    from edgellm.store.key_sources import open_key

    key = open_key(source, snapshots_dir(), environ)
    return None if key is None else key.hand_over()
