"""SnapshotStore: the folder of prefix snapshots, asked by fingerprint and tokens.

There is no index file: a snapshot's name is computed from what is asked, the folder lists the rest,
and each file's header is the truth about it. Nothing on the disk can raise an error from `lookup`
or `save`, or give a state that is not exactly the one saved: what cannot be used is a miss. There
is one file for each prefix, of whatever tier.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgellm.core import Tier
from edgellm.errors import DoesNotFit, SnapshotCorrupt, SnapshotError, SnapshotIncompatible
from edgellm.fileio import PRIVATE_DIR_MODE, no_fault, private_dir, process_alive, temp_owner
from edgellm.store import names
from edgellm.store.checkup import check_store
from edgellm.store.read import read_info, read_snapshot, refuse_foreign_folders
from edgellm.store.tiers import serves
from edgellm.store.write import plan, tier_of, write_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from edgellm.fileio import Fault
    from edgellm.store.checkup import Finding
    from edgellm.store.header import SnapshotHeader
    from edgellm.store.keys import StoreKey
    from edgellm.store.names import TokenIds
    from edgellm.store.state import Fingerprint, KVState, PackedState


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
    """

    key: str
    path: Path
    fields: tuple[tuple[str, str], ...]
    n_tokens: int
    n_bytes: int
    created_s: int
    tier: Tier = Tier.EXACT

    def field(self, name: str) -> str:
        """Return one field of the fingerprint, or "" without it."""
        return dict(self.fields).get(name, "")


@dataclass(frozen=True, slots=True)
class Hit:
    """A snapshot that passed every check.

    Attributes:
        state: the memory as it was saved, unpacked where the tier packs, in fresh arrays.
        info: about the file.
        soft_changes: what differs now and may change the rounding, such as `threads: 4, now 2`.
    """

    state: KVState
    info: SnapshotInfo
    soft_changes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Miss:
    """No usable snapshot; `reason` is one phrase, such as `not stored` or `corrupt: ...`."""

    reason: str


@dataclass(frozen=True, slots=True)
class Saved:
    """A snapshot was written: where, and how long it is."""

    path: Path
    n_bytes: int


@dataclass(frozen=True, slots=True)
class Skipped:
    """A snapshot was not written.

    Attributes:
        reason: one phrase.
        failed: whether something is wrong, such as the disk; False where nothing was to be done.
    """

    reason: str
    failed: bool = False


class SnapshotStore:
    """The snapshots below one folder. Opening it touches nothing; saving makes the folders.

    Args:
        root: the folder; `paths.snapshots_dir()` in normal use.
        key: files are encrypted under it and named by it; plain ones are then for somebody else.
        fault: called before each step that writes, for tests.
        clock: gives the time to write down, Unix seconds.
    """

    def __init__(
        self,
        root: Path,
        *,
        key: StoreKey | None = None,
        fault: Fault = no_fault,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.root = root
        self.secret = key
        self._fault = fault
        self._clock = clock
        self._swept = False

    def key(self, fingerprint: Fingerprint, tokens: TokenIds) -> str:
        """Return the 32 hex digits that name the snapshot of these tokens.

        Raises:
            ValueError: a token id is no non-negative 32-bit number.
        """
        return names.key_of(fingerprint.digest(), names.token_ids(tokens), self.secret)

    def lookup(
        self, fingerprint: Fingerprint, tokens: TokenIds, tier: Tier = Tier.EXACT
    ) -> Hit | Miss:
        """Return the state saved for exactly these tokens, or why there is none.

        A state of a finer tier than `tier` serves as well; one of a coarser tier is a miss.
        Reads and verifies the whole file. A file that fails a check is removed, and so is, at the
        first use of the store, what killed writers left behind.

        Raises:
            ValueError: a token id is no non-negative 32-bit number.
        """
        token_ids = names.token_ids(tokens)
        digest = fingerprint.digest()
        path = names.path_of(self.root, digest, token_ids, self.secret)
        self._sweep_once()

        def accept(header: SnapshotHeader) -> None:
            _belongs(header, digest, token_ids)
            if not serves(header.tier, tier):
                raise _TooCoarse(f"kept as {header.tier.value}, {tier.value} is asked")

        try:
            refuse_foreign_folders(path)
            found = read_snapshot(path, accept)
        except FileNotFoundError:
            return Miss("not stored")
        except SnapshotCorrupt as err:
            with contextlib.suppress(OSError):
                path.unlink()
            return Miss(f"corrupt: {err.message}")
        except _TooCoarse as err:
            return Miss(err.message)
        except SnapshotError as err:
            return Miss(f"incompatible: {err.message}")
        except OSError as err:
            return Miss(f"unreadable: {err.strerror or err}")
        except MemoryError:
            return Miss("not enough memory to read it")
        if found.token_ids != token_ids:  # the hash found it, the tokens decide
            return Miss("incompatible: other tokens under this name")
        info = _info(path, found.header, found.n_bytes)
        return Hit(found.state, info, _soft_changes(found.header.fingerprint, fingerprint))

    def save(
        self, fingerprint: Fingerprint, tokens: TokenIds, state: KVState | PackedState
    ) -> Saved | Skipped:
        """Write the state after exactly these tokens, unless it is there already.

        What is there already is a file of the same tier or of a finer one; a coarser one is replaced.

        Raises:
            ValueError: a token id is no non-negative 32-bit number.
        """
        token_ids = names.token_ids(tokens)
        digest = fingerprint.digest()
        path = names.path_of(self.root, digest, token_ids, self.secret)
        self._sweep_once()
        try:
            if self._is_stored(path, digest, token_ids, tier_of(state)):
                return Skipped("already stored")
            header = plan(fingerprint, token_ids, state, int(self._clock()))
            self._make_folder(path.parent)
            return Saved(path, write_snapshot(path, header, token_ids, state, fault=self._fault))
        except (SnapshotError, DoesNotFit) as err:
            return Skipped(err.message, failed=True)
        except OSError as err:
            return Skipped(f"cannot write: {err.strerror or err} in {self.root}", failed=True)
        except MemoryError:
            return Skipped("not enough memory to write it", failed=True)

    def entries(self) -> Iterator[SnapshotInfo]:
        """Give every snapshot with a good header, ordered by folder and name.

        Only headers are read. Files that cannot be used are left out; `check` names them.
        """
        for path in self._files():
            with contextlib.suppress(SnapshotError, OSError):
                yield _info(path, *read_info(path))

    def check(self, *, fix: bool = False) -> list[Finding]:
        """Read every file completely and report what is wrong; see `check_store`."""
        return check_store(self.root, fix=fix, clock=self._clock)

    def remove(self, keys: Collection[str] | None = None) -> int:
        """Delete the snapshots of these keys, or all of them with what writers left behind.

        Returns:
            How many snapshots were deleted.

        Raises:
            SnapshotError: one could not be deleted.
        """
        n_removed = 0
        for path in self._files(temps=keys is None):
            if keys is not None and path.stem not in keys:
                continue
            try:
                path.unlink()
            except FileNotFoundError:
                continue
            except OSError as err:
                raise SnapshotError(f"cannot be deleted: {err.strerror}", path=path) from err
            n_removed += path.suffix == names.SUFFIX
            with contextlib.suppress(OSError):
                path.parent.rmdir()  # works only on an empty folder
        return n_removed

    def _files(self, *, temps: bool = False) -> Iterator[Path]:
        for path in self._names():
            if names.is_file_name(path.name) or (temps and temp_owner(path) is not None):
                yield path

    def _names(self) -> Iterator[Path]:
        """List what lies in the store's own folders; a link leads out of the store."""
        version = self.root / names.VERSION_DIR
        if version.is_symlink():
            return
        for folder in sorted(version.glob("*")):
            if names.is_folder_name(folder.name) and not folder.is_symlink():
                yield from sorted(folder.glob("*"))

    def _is_stored(self, path: Path, digest: str, token_ids: bytes, tier: Tier) -> bool:
        try:
            refuse_foreign_folders(path)
            header = read_info(path)[0]
            _belongs(header, digest, token_ids)
        except (SnapshotError, OSError):
            return False
        return serves(header.tier, tier)

    def _make_folder(self, folder: Path) -> None:
        self._fault("mkdir", str(folder))
        private_dir(folder)
        for level in (folder, folder.parent):
            if level.is_symlink():
                raise SnapshotIncompatible(f"the folder {level} is a link")
            level.chmod(PRIVATE_DIR_MODE)  # a copied home may have opened it

    def _sweep_once(self) -> None:
        """Remove what killed writers left behind: names only, no file is opened."""
        if self._swept:
            return
        self._swept = True
        with contextlib.suppress(OSError):  # a store that cannot be listed
            for path in self._names():
                owner = temp_owner(path)
                if owner is not None and not process_alive(owner):
                    with contextlib.suppress(OSError):
                        path.unlink()


class _TooCoarse(SnapshotIncompatible):
    """A whole snapshot that somebody with less to ask could use."""


def _belongs(header: SnapshotHeader, digest: str, token_ids: bytes) -> None:
    """Refuse a whole snapshot that is not the one that was asked for."""
    if header.fingerprint.digest() != digest:
        raise SnapshotIncompatible("another model or engine under this name")
    if header.tokens_sha256 != hashlib.sha256(token_ids).hexdigest():
        raise SnapshotIncompatible("other tokens under this name")


def _info(path: Path, header: SnapshotHeader, n_bytes: int) -> SnapshotInfo:
    return SnapshotInfo(
        key=path.stem,
        path=path,
        fields=header.fingerprint.hard,
        n_tokens=header.n_tokens,
        n_bytes=n_bytes,
        created_s=header.created_s,
        tier=header.tier,
    )


def _soft_changes(stored: Fingerprint, now: Fingerprint) -> tuple[str, ...]:
    before, after = dict(stored.soft), dict(now.soft)
    names = sorted(before.keys() | after.keys())
    return tuple(
        f"{name}: {before.get(name, 'unknown')}, now {after.get(name, 'unknown')}"
        for name in names
        if before.get(name) != after.get(name)
    )
