"""Why the store has nothing for some tokens: what lies nearest, and in what it differs.

Nothing is changed and no array is read but those of the one file that would be used: headers and
token ids tell the rest. The work is bounded by `MAX_FILES`, the newest first.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from edgellm.errors import SnapshotError
from edgellm.store.answers import Hit
from edgellm.store.disk.folder import snapshots_in
from edgellm.store.file.read import read_tokens
from edgellm.store.finding import find

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from edgellm.core import Tier
    from edgellm.store.answers import SnapshotInfo
    from edgellm.store.disk.files import Files
    from edgellm.store.format.header import SnapshotHeader
    from edgellm.store.state import Fingerprint

MAX_FILES: Final = 4096
HIT: Final = "hit"
NOT_STORED: Final = "not_stored"
_ALIKE: Final = 0.5  # of the pairs of neighbours in the shorter of two prompts


@dataclass(frozen=True, slots=True)
class FieldChange:
    """A hard field of the fingerprint that differs; "" where a side has no such field."""

    name: str
    stored: str
    now: str


@dataclass(frozen=True, slots=True)
class Near:
    """A snapshot that is not the one asked for.

    Attributes:
        path: where it lies.
        tier: how it is kept.
        created_s: when it was written, Unix seconds.
        tokens: its prefix.
        changes: hard fields in which it differs; empty where its tokens differ instead.
        first_differing: index of the first token that differs, the shorter length where one prefix
            begins with the other; None where the tokens are the same.
        alike: whether it looks like an older form of the same prompt.
        cuts: where it was cut; None where that is no difference, because others are larger.
    """

    path: Path
    tier: Tier
    created_s: int
    tokens: tuple[int, ...]
    changes: tuple[FieldChange, ...] = ()
    first_differing: int | None = None
    alike: bool = True
    cuts: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """What the store makes of some tokens.

    Attributes:
        code: `hit`, or the code of the miss.
        problem: one phrase about the file that would be used; "" where there is none.
        path: the only place where the snapshot may lie.
        info: of the file there, for a hit.
        near: the nearest other snapshot, where nothing is stored.
        n_files: how many files were looked at.
        soft_changes: of a hit, what differs now and may change the rounding.
    """

    code: str
    problem: str
    path: Path
    info: SnapshotInfo | None = None
    near: Near | None = None
    n_files: int = 0
    soft_changes: tuple[str, ...] = ()


def explain(
    files: Files, fingerprint: Fingerprint, ids: bytes, cuts: tuple[int, ...], tier: Tier
) -> Explanation:
    """Return what a lookup of exactly this prefix would find, and if nothing, what is nearest.

    Unlike a lookup it removes nothing, so that it can be asked again.

    Args:
        files: of the store, whose folder may be missing.
        fingerprint: of the engine as it is set now.
        ids: the prefix as little-endian int32.
        cuts: all places strictly inside it where it is cut, ascending.
        tier: the coarsest that serves.
    """
    path = files.path(fingerprint.digest(), ids, cuts)
    found = find(files, fingerprint, ids, tier, cuts=cuts, keep_damaged=True)
    if isinstance(found, Hit):
        return Explanation(HIT, "", path, found.info, soft_changes=found.soft_changes)
    if found.code != NOT_STORED:
        return Explanation(found.code, found.reason, path)
    near, n_files = _nearest(files, fingerprint, ids, cuts)
    return Explanation(found.code, "", path, None, near, n_files)


def _nearest(
    files: Files, fingerprint: Fingerprint, token_ids: bytes, cuts: tuple[int, ...]
) -> tuple[Near | None, int]:
    """Return the snapshot that differs least, and how many were looked at.

    The same tokens cut elsewhere go before the same ones under another fingerprint, and those before
    other tokens.
    """
    digest = fingerprint.digest()
    asked = np.frombuffer(token_ids, "<i4")
    pairs = _pairs(asked)
    same_tokens: Near | None = None
    best: tuple[int, Near] | None = None
    n_files = 0
    for n_files, path in enumerate(_newest_first(files.root), 1):  # counted for the caller
        try:
            header, found = read_tokens(path, open_file=files.opened)
        except (SnapshotError, OSError):
            continue
        ids = np.frombuffer(found, "<i4")
        if found == token_ids:  # hundreds of tokens are never the same by chance
            changes = field_changes(header.fingerprint, fingerprint)
            if not changes and header.cuts != cuts:
                return replace(_near(path, header, ids), cuts=header.cuts), n_files
            if changes and (same_tokens is None or len(changes) < len(same_tokens.changes)):
                same_tokens = _near(path, header, ids, changes=changes)
        elif header.fingerprint.digest() == digest:
            # Neighbours, because two prompts of one language share most of their single tokens.
            shared = len(np.intersect1d(pairs, _pairs(ids), assume_unique=True))
            first = _first_differing(asked, ids)
            if best is None or (shared, first) > (best[0], best[1].first_differing or 0):
                alike = shared >= _ALIKE * max(1, min(len(pairs), len(_pairs(ids))))
                best = shared, _near(path, header, ids, first=first, alike=alike)
    return same_tokens or (best[1] if best else None), n_files


def field_changes(stored: Fingerprint, now: Fingerprint) -> tuple[FieldChange, ...]:
    """Return the hard fields in which two fingerprints differ, by name."""
    before, after = dict(stored.hard), dict(now.hard)
    return tuple(
        FieldChange(name, before.get(name, ""), after.get(name, ""))
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    )


def _near(
    path: Path,
    header: SnapshotHeader,
    ids: NDArray[np.int32],
    *,
    changes: tuple[FieldChange, ...] = (),
    first: int | None = None,
    alike: bool = True,
) -> Near:
    tokens = tuple(int(token) for token in ids)
    return Near(path, header.tier, header.created_s, tokens, changes, first, alike)


def _newest_first(root: Path) -> Iterator[Path]:
    """Give the store's files, at most `MAX_FILES`, by their time of change."""
    stamped = []
    for path in snapshots_in(root):
        with contextlib.suppress(OSError):  # evicted meanwhile
            stamped.append((path.lstat().st_mtime_ns, str(path), path))
    stamped.sort(reverse=True)
    return (path for _, _, path in stamped[:MAX_FILES])


def _pairs(ids: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the pairs of neighbouring tokens, each once: what two forms of a prompt share."""
    wide = ids.astype(np.int64)
    pairs: NDArray[np.int64] = np.unique((wide[:-1] << 32) | wide[1:])
    return pairs


def _first_differing(left: NDArray[np.int32], right: NDArray[np.int32]) -> int:
    n = min(len(left), len(right))
    differ = np.flatnonzero(left[:n] != right[:n])
    return int(differ[0]) if differ.size else n
