"""What the store answers: a hit or a miss with its code, saved or skipped with its reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from edgellm.core import Tier

if TYPE_CHECKING:
    from pathlib import Path

    from edgellm.store.state import Anchor, KVState

ALREADY_STORED: Final = "already stored"

MissCode = Literal[
    "not_stored",  # nothing lies under this name
    "corrupt",  # it failed a check, and was removed
    "incompatible",  # whole, but for another reader, model or owner
    "too_coarse",  # kept in a coarser tier than the one asked for
    "unreadable",  # the system would not open or read it
    "no_memory",  # there was not enough to read it into
    "base_missing",  # it leans on a snapshot that is gone, and was removed
    "foreign_tokens",  # other tokens lie under this name
]


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """What a snapshot file says of itself.

    Attributes:
        key: its name without the extension.
        path: where it lies.
        fields: the hard fields of its fingerprint: model, engine, settings.
        n_tokens: length of the prefix.
        n_bytes: length of the file.
        created_s: when it was written, Unix seconds.
        tier: how it is stored.
        parent: the snapshot it leans on, or None for a file that is whole by itself.
        cuts: where its prefix was cut before its end.
    """

    key: str
    path: Path
    fields: tuple[tuple[str, str], ...]
    n_tokens: int
    n_bytes: int
    created_s: int
    tier: Tier = Tier.EXACT
    parent: Anchor | None = None
    cuts: tuple[int, ...] = ()

    def field(self, name: str) -> str:
        """Return one field of the fingerprint, or "" without it."""
        return dict(self.fields).get(name, "")


@dataclass(frozen=True, slots=True)
class Hit:
    """A snapshot that passed every check.

    Attributes:
        state: the memory as it was saved, unpacked where the tier packs: what the landing gave, or
            fresh arrays.
        info: about the file.
        soft_changes: what differs now and may change the rounding, such as `threads: 4, now 2`.
        anchor: what a longer snapshot may lean on.
        find_s: time to find, read and check it on this machine's disk.
        n_links: of how many files its rows came, its own among them.
    """

    state: KVState
    info: SnapshotInfo
    soft_changes: tuple[str, ...] = ()
    anchor: Anchor = field(kw_only=True)
    find_s: float = field(default=0.0, kw_only=True, compare=False)
    n_links: int = field(default=1, kw_only=True)


@dataclass(frozen=True, slots=True)
class Miss:
    """No usable snapshot.

    Attributes:
        reason: one phrase, such as `not stored` or `corrupt: ...`.
        code: what kind of reason it is; it never changes its meaning.
    """

    reason: str
    code: MissCode


@dataclass(frozen=True, slots=True)
class Saved:
    """A snapshot was written.

    Attributes:
        path: where.
        n_bytes: how long it is.
        anchor: what a longer one may lean on.
        save_s: time to write it on this machine's disk, without waiting for others that write.
    """

    path: Path
    n_bytes: int
    anchor: Anchor
    save_s: float = field(default=0.0, compare=False)

    @property
    def is_stored(self) -> bool:
        """Whether there is a file now that serves."""
        return True


@dataclass(frozen=True, slots=True)
class Skipped:
    """A snapshot was not written.

    Attributes:
        reason: one phrase.
        failed: whether something is wrong, such as the disk; False where nothing was to be done.
        anchor: of the file that is there already, where it holds the very bits that were handed in
            and a longer snapshot may lean on it.
    """

    reason: str
    failed: bool = False
    anchor: Anchor | None = None

    @property
    def is_stored(self) -> bool:
        """Whether there is a file that serves, and therefore nothing was written."""
        return self.reason == ALREADY_STORED
