"""Finding one snapshot: whatever is on the disk, the answer is a hit that is right, or a miss."""

from __future__ import annotations

import hashlib
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from edgellm.errors import SnapshotCorrupt, SnapshotError, SnapshotIncompatible
from edgellm.store.answers import Hit, Miss, SnapshotInfo
from edgellm.store.disk.files import discard, refuse_foreign_folders
from edgellm.store.file.chain import BaseMissing
from edgellm.store.file.read import read_snapshot
from edgellm.store.format.tiers import serves

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgellm.core import Tier
    from edgellm.store.answers import MissCode
    from edgellm.store.disk.files import Files
    from edgellm.store.format.header import SnapshotHeader
    from edgellm.store.state import Fingerprint, Landing


class TooCoarse(SnapshotIncompatible):
    """A whole snapshot that somebody with less to ask could use."""


class ForeignTokens(SnapshotIncompatible):
    """A whole snapshot of other tokens."""


def find(
    files: Files,
    fingerprint: Fingerprint,
    ids: bytes,
    tier: Tier,
    landing: Landing | None = None,
    *,
    cuts: Sequence[int] = (),
    keep_damaged: bool = False,
) -> Hit | Miss:
    """Read and verify the snapshot of exactly this prefix; see `SnapshotStore.lookup`.

    Args:
        files: of the store.
        fingerprint: of the engine that asks.
        ids: the prefix as little-endian int32.
        tier: the coarsest that will do.
        landing: where the engine wants the rows, or None for fresh arrays.
        cuts: all places strictly inside the prefix where it was cut, ascending.
        keep_damaged: leave a damaged file, for who only asks.
    """
    if not files.room.place.readable:
        return Miss(files.room.place.problem, "unreadable")
    begun = perf_counter()
    digest = fingerprint.digest()
    path = files.path(digest, ids, cuts)

    def accept(header: SnapshotHeader) -> None:
        refuse_others(header, digest, ids, cuts)
        if not serves(header.tier, tier):
            raise TooCoarse(f"kept as {header.tier.value}, {tier.value} is asked")

    try:
        refuse_foreign_folders(path)
        found = read_snapshot(path, accept, open_file=files.opened, landing=landing)
    except (SnapshotError, OSError, MemoryError) as err:
        if isinstance(err, FileNotFoundError) and files.is_kept_plain(digest, ids, cuts):
            return Miss(
                "incompatible: kept plain, and this store is used with a key", "incompatible"
            )
        return _miss(path, err, keep_damaged=keep_damaged)
    if found.token_ids != ids:  # the hash found it, the tokens decide
        return Miss("incompatible: other tokens under this name", "foreign_tokens")
    files.room.used(found.paths)
    info = info_of(path, found.header, found.n_bytes)
    changes = _soft_changes(found.fingerprints, fingerprint)
    return Hit(
        found.state,
        info,
        changes,
        anchor=found.anchor,
        find_s=perf_counter() - begun,
        n_links=len(found.paths),
    )


def _miss(path: Path, err: SnapshotError | OSError | MemoryError, *, keep_damaged: bool) -> Miss:
    """Say why a file cannot be used; one that is damaged is removed."""
    if isinstance(err, FileNotFoundError):
        return Miss("not stored", "not_stored")
    if isinstance(err, (SnapshotCorrupt, BaseMissing)):
        return _useless(path, err, keep_damaged=keep_damaged)
    if isinstance(err, TooCoarse):
        return Miss(err.message, "too_coarse")
    if isinstance(err, SnapshotError):
        code: MissCode = "foreign_tokens" if isinstance(err, ForeignTokens) else "incompatible"
        return Miss(f"incompatible: {err.message}", code)
    if isinstance(err, OSError):
        return Miss(f"unreadable: {err.strerror or err}", "unreadable")
    return Miss("not enough memory to read it", "no_memory")


def _useless(path: Path, err: SnapshotCorrupt | BaseMissing, *, keep_damaged: bool) -> Miss:
    """Remove what will never be of use, and the file of a chain that is to blame for it."""
    culprit = Path(err.path or path)
    if not keep_damaged:
        discard(path)
    if isinstance(err, BaseMissing):
        return Miss(f"incomplete: {err.message}", "base_missing")
    if culprit == path:
        return Miss(f"corrupt: {err.message}", "corrupt")
    if not keep_damaged:
        discard(culprit)
    return Miss(f"corrupt: in {culprit.stem}, which it leans on: {err.message}", "corrupt")


def refuse_others(
    header: SnapshotHeader, digest: str, ids: bytes, cuts: Sequence[int] = ()
) -> None:
    """Refuse a whole snapshot that is not the one that was asked for.

    Raises:
        SnapshotIncompatible: it is of another model or engine; `ForeignTokens` for other tokens,
            and for the same ones cut elsewhere.
    """
    if header.fingerprint.digest() != digest:
        raise SnapshotIncompatible("another model or engine under this name")
    if header.tokens_sha256 != hashlib.sha256(ids).hexdigest():
        raise ForeignTokens("other tokens under this name")
    if header.cuts != tuple(cuts):
        raise ForeignTokens("tokens that were cut elsewhere under this name")


def info_of(path: Path, header: SnapshotHeader, n_bytes: int) -> SnapshotInfo:
    """Return what a file says of itself."""
    return SnapshotInfo(
        key=path.stem,
        path=path,
        fields=header.fingerprint.hard,
        n_tokens=header.n_tokens,
        n_bytes=n_bytes,
        created_s=header.created_s,
        tier=header.tier,
        parent=header.parent,
        cuts=header.cuts,
    )


def _soft_changes(stored: tuple[Fingerprint, ...], now: Fingerprint) -> tuple[str, ...]:
    """Say what differs from now in a file or in one that it leans on, each thing once."""
    after = dict(now.soft)
    changes: dict[str, None] = {}
    for before in (dict(fingerprint.soft) for fingerprint in stored):
        for name in sorted(before.keys() | after.keys()):
            if before.get(name) != after.get(name):
                was, new = before.get(name, "unknown"), after.get(name, "unknown")
                changes[f"{name}: {was}, now {new}"] = None
    return tuple(changes)
