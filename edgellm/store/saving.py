"""Saving one state: written once, whole or not at all, and never a reason for an error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgellm.errors import DoesNotFit, SnapshotError
from edgellm.store import layout
from edgellm.store.answers import Saved, Skipped
from edgellm.store.files import refuse_foreign_folders
from edgellm.store.finding import refuse_others
from edgellm.store.folder import make_folder
from edgellm.store.read import read_info
from edgellm.store.state import Anchor
from edgellm.store.tiers import serves
from edgellm.store.write import plan, tier_of, write_snapshot

if TYPE_CHECKING:
    from pathlib import Path

    from edgellm.core import Tier
    from edgellm.store.files import Files
    from edgellm.store.state import Fingerprint, KVState, PackedState


def store_state(
    files: Files,
    fingerprint: Fingerprint,
    ids: bytes,
    state: KVState | PackedState,
    created_s: int,
) -> Saved | Skipped:
    """Write a state unless it is there already; see `SnapshotStore.save`.

    Args:
        files: of the store.
        fingerprint: of the engine that made the state.
        ids: the prefix as little-endian int32.
        state: the memory after exactly these tokens, as its tier keeps it.
        created_s: the time to write down.
    """
    digest = fingerprint.digest()
    path = files.path(digest, ids)
    try:
        if _is_stored(files, path, digest, ids, tier_of(state)):
            return Skipped("already stored")
        header = plan(fingerprint, ids, state, created_s)
        n_bytes = files.outer_bytes(layout.file_bytes(header, len(header.encode())))
        with files.room.made(n_bytes) as refused:
            if refused is not None:
                return refused
            make_folder(path.parent, files.fault)
            n_bytes, identity = write_snapshot(files, path, header, ids, state)
            files.room.used(path)
    except (SnapshotError, DoesNotFit) as err:
        return Skipped(err.message, failed=True)
    except OSError as err:
        return Skipped(f"cannot write: {err.strerror or err} in {files.root}", failed=True)
    except MemoryError:
        return Skipped("not enough memory to write it", failed=True)
    return Saved(path, n_bytes, Anchor(path.stem, state.n_tokens, identity))


def _is_stored(files: Files, path: Path, digest: str, ids: bytes, tier: Tier) -> bool:
    try:
        refuse_foreign_folders(path)
        header = read_info(path, open_file=files.opened)[0]
        refuse_others(header, digest, ids)
    except (SnapshotError, OSError):
        return False
    return serves(header.tier, tier)
