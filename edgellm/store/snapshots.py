"""SnapshotStore: the folder of prefix snapshots, asked by fingerprint and tokens.

There is no index file: a snapshot's name is computed from what is asked, the folder lists the rest,
and each file's header is the truth about it. Nothing on the disk can raise an error from `lookup`
or `save`, or give a state that is not exactly the one saved: what cannot be used is a miss. There
is one file for each prefix, of whatever tier.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from edgellm.core import Tier
from edgellm.errors import SnapshotError
from edgellm.fileio import no_fault
from edgellm.store.answers import Hit, Miss, MissCode, Saved, Skipped, SnapshotInfo
from edgellm.store.checkup import check_store
from edgellm.store.disk import folder, names
from edgellm.store.disk.files import Files
from edgellm.store.disk.flight import Lease, never
from edgellm.store.disk.room import Room
from edgellm.store.file.read import read_info
from edgellm.store.finding import find, info_of
from edgellm.store.saving import Saving, store_state
from edgellm.store.texts import Texts

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from edgellm.fileio import Fault
    from edgellm.store.checkup import Finding
    from edgellm.store.disk.names import TokenIds
    from edgellm.store.disk.room import Pruned
    from edgellm.store.explain import Explanation
    from edgellm.store.sealed.keys import StoreKey
    from edgellm.store.state import Anchor, Fingerprint, KVState, Landing, PackedState

__all__ = ["Hit", "Miss", "MissCode", "Saved", "Skipped", "SnapshotInfo", "SnapshotStore"]


class SnapshotStore:
    """The snapshots below one folder. Opening it touches nothing; saving makes the folders.

    Args:
        root: the folder; `paths.snapshots_dir()` in normal use.
        key: files are encrypted under it and named by it; plain ones are then for somebody else.
        cap_bytes: the most that everything below the folder may take; None takes what
            `EDGELLM_SNAPSHOTS_MAX` says, or else 10 GiB or a tenth of the disk.
        floor_bytes: what stays free on the disk; None takes 1 GiB or a twentieth of it.
        fault: called before each step that writes, for tests.
        clock: gives the time to write down, Unix seconds.

    Attributes:
        damage: what was wrong with the first damaged snapshot that `longest` came across, or "".

    Raises:
        UsageError: `EDGELLM_SNAPSHOTS_MAX` is no number of bytes.
    """

    def __init__(
        self,
        root: Path,
        *,
        key: StoreKey | None = None,
        cap_bytes: int | None = None,
        floor_bytes: int | None = None,
        fault: Fault = no_fault,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.root = root
        self.secret = key
        self.damage = ""
        self._room = Room(root, cap_bytes=cap_bytes, floor_bytes=floor_bytes)
        self._files = Files(root, secret=key, fault=fault, room=self._room)
        self._clock = clock
        self._swept = False

    @property
    def files(self) -> Files:
        """Where its files lie and how they are opened, for packs that leave it or come in."""
        return self._files

    @property
    def trouble(self) -> str:
        """Why the store is off or only read, in words for one warning, or ""."""
        return self._room.place.trouble

    @property
    def off(self) -> str:
        """Why the store is not even read, one phrase, or ""."""
        place = self._room.place
        return "" if place.readable else place.problem

    @property
    def closed(self) -> str:
        """Why nothing can be kept, as far as that is known beforehand, one phrase, or ""."""
        return self._room.closed

    @property
    def n_plain(self) -> int:
        """How many snapshots lie in a store with a key as they were written without one."""
        return 0 if self.secret is None or self.off else len(folder.plain_in(self.root))

    @property
    def free_bytes(self) -> int:
        """What its files may still take of the disk's free space; negative where it is too full."""
        return self._room.free_bytes

    def key(self, fingerprint: Fingerprint, tokens: TokenIds, *, cuts: Sequence[int] = ()) -> str:
        """Return the 32 hex digits that name the snapshot of this prefix.

        Raises:
            ValueError: a token id is no non-negative 32-bit number, or the cuts do not ascend.
        """
        ids, inside = _prefix(tokens, cuts)
        return self._files.key(fingerprint.digest(), ids, inside)

    def lookup(
        self,
        fingerprint: Fingerprint,
        tokens: TokenIds,
        tier: Tier = Tier.EXACT,
        *,
        cuts: Sequence[int] = (),
        landing: Landing | None = None,
    ) -> Hit | Miss:
        """Return the state saved for exactly this prefix, or why there is none.

        A state of a finer tier than `tier` serves as well; one of a coarser tier is a miss.
        Reads and verifies the whole file. A file that fails a check is removed, and so is, at the
        first use of the store, what killed writers left behind.

        Args:
            fingerprint: of the engine that asks.
            tokens: the prefix.
            tier: the coarsest that will do.
            cuts: all places where its prompt is cut, ascending: those strictly inside the prefix
                belong to it, because rows depend on where decoding began anew.
            landing: gives the memory to read into; what it gave is the hit's `state`, and is left
                half filled by a miss.

        Raises:
            ValueError: a token id is no non-negative 32-bit number, or the cuts do not ascend.
        """
        ids, inside = _prefix(tokens, cuts)
        self._sweep_once()
        return find(self._files, fingerprint, ids, tier, landing, cuts=inside)

    def longest(
        self,
        fingerprint: Fingerprint,
        tokens: TokenIds,
        lengths: Sequence[int] | Mapping[int, Sequence[int]],
        tier: Tier = Tier.EXACT,
        *,
        landing: Landing | None = None,
    ) -> Hit | Miss:
        """Return the state of the longest stored `tokens[:n]`, or why the longest is missing.

        Args:
            fingerprint: of the engine that asks.
            tokens: the whole prompt.
            lengths: of the prefixes to look for, in any order; a mapping gives for each all places
                where it was cut before, else it was cut nowhere.
            tier: as in `lookup`.
            landing: as in `lookup`.

        Raises:
            ValueError: a token id is no non-negative 32-bit number, or there is no such prefix.
        """
        ids = names.token_ids(tokens)
        prefixes = names.prefixes_of(ids, lengths)
        self._sweep_once()
        first_miss = None
        for prefix, cuts in prefixes:
            found = find(self._files, fingerprint, prefix, tier, landing, cuts=cuts)
            if isinstance(found, Hit):
                return found
            if found.code == "corrupt":
                self.damage = self.damage or found.reason
            first_miss = first_miss or found
        return first_miss or Miss("no prefix to look for", "not_stored")

    def by_text(self, fingerprint: Fingerprint, text_sha256: str) -> tuple[int, ...] | None:
        """Return the token ids of the snapshot that was saved with this text hash, or None.

        A hash finds, the tokens decide: the caller compares their text with its own.

        Args:
            fingerprint: of the engine that asks.
            text_sha256: of the text, 64 hex digits.

        Raises:
            ValueError: the hash is no such number.
        """
        found = self.texts(fingerprint).find(text_sha256)
        return None if found is None else found[0]

    def texts(self, fingerprint: Fingerprint) -> Texts:
        """Return all that `by_text` could find now, for who has many texts to look for."""
        return Texts(self._files, fingerprint.digest())

    def cuts_by_text(self, fingerprint: Fingerprint, text_sha256: str) -> tuple[int, ...] | None:
        """Return where the snapshot that `by_text` finds was cut, or None without one.

        Raises:
            ValueError: the hash is no such number.
        """
        found = self.texts(fingerprint).find(text_sha256)
        return None if found is None else found[1]

    def save(
        self,
        fingerprint: Fingerprint,
        tokens: TokenIds,
        state: KVState | PackedState,
        *,
        base: Anchor | None = None,
        lossless: bool = False,
        text_sha256: str = "",
        cuts: Sequence[int] = (),
    ) -> Saved | Skipped:
        """Write the state after exactly this prefix, unless it is there already.

        What is there already is a file of the same tier or of a finer one; a coarser one is replaced.

        Args:
            fingerprint: of the engine that made the state.
            tokens: the prefix.
            state: the memory after it, as its tier keeps it.
            base: a stored snapshot of the first of these tokens, whose rows are bit for bit those
                of `state`: only the rows after it are written, where that is possible.
            lossless: spend time to make the file smaller; the bits stay.
            text_sha256: 64 hex digits, the hash under which `by_text` finds it, or "".
            cuts: all places where decoding began anew, as in `lookup`.

        Raises:
            ValueError: a token id is no non-negative 32-bit number, or the hash is none, or the
                cuts do not ascend.
        """
        ids, inside = _prefix(tokens, cuts)
        self._sweep_once()
        created_s = int(self._clock())
        job = Saving(fingerprint, ids, state, created_s, base, lossless, text_sha256, inside)
        return store_state(self._files, job)

    def lease(
        self, fingerprint: Fingerprint, tokens: TokenIds, *, cuts: Sequence[int] = ()
    ) -> Lease | None:
        """Return the right to read a prompt whose snapshot is missing; never blocks.

        It is to be kept until the snapshot is stored, or is known not to be. Where locks do not
        work, or nothing is stored anyway, everybody gets it.

        Returns:
            None where another process, or another session of this one, has it: see `await_other`.

        Raises:
            ValueError: as `key`.
        """
        name = self.key(fingerprint, tokens, cuts=cuts)
        return Lease() if self._room.closed else self._room.locks.take(name)

    def await_other(
        self,
        fingerprint: Fingerprint,
        tokens: TokenIds,
        timeout_s: float,
        stopped: Callable[[], bool] = never,
        *,
        cuts: Sequence[int] = (),
    ) -> bool:
        """Wait until whoever reads this prompt has stored it, has given up, or has died.

        Args:
            fingerprint: of the engine, as for the lease.
            tokens: the prefix, likewise.
            timeout_s: how long; reading the prompt oneself takes no longer than it takes.
            stopped: asked some fifty times a second; True ends the waiting.
            cuts: of the prompt, likewise.

        Returns:
            True when it is time to look again, and to ask for the lease again after a miss;
            False at the timeout, when stopped, or when that process is suspended.

        Raises:
            ValueError: as `key`.
        """
        return self._room.locks.wait(self.key(fingerprint, tokens, cuts=cuts), timeout_s, stopped)

    def prune(self, max_bytes: int | None = None) -> Pruned:
        """Remove what nobody can use, then the least recently used; see `Room.prune`.

        Args:
            max_bytes: what may be left; None takes the cap.

        Raises:
            SnapshotError: another process keeps the store busy, or locks do not work.
        """
        return self._room.prune(max_bytes)

    @property
    def exchanged(self) -> str:
        """Say what went to and came from a shared tier; "" for a store without one."""
        return ""

    def close(self) -> None:
        """Give back what is open beyond the files; calling it again does nothing."""

    def entries(self) -> Iterator[SnapshotInfo]:
        """Give every snapshot with a good header, ordered by folder and name.

        Only headers are read. Files that cannot be used are left out; `check` names them.
        """
        for path in folder.snapshots_in(self.root):
            with contextlib.suppress(SnapshotError, OSError):
                yield info_of(path, *read_info(path, open_file=self._files.opened))

    def explain(
        self,
        fingerprint: Fingerprint,
        tokens: TokenIds,
        tier: Tier = Tier.EXACT,
        *,
        cuts: Sequence[int] = (),
    ) -> Explanation:
        """Say what a lookup would find, and if nothing, what is nearest; removes nothing.

        Raises:
            ValueError: as `key`.
        """
        from edgellm.store.explain import explain

        return explain(self._files, fingerprint, *_prefix(tokens, cuts), tier)

    def check(self, *, fix: bool = False) -> list[Finding]:
        """Read every file completely and report what is wrong; see `check_store`."""
        return check_store(self._files, fix=fix, clock=self._clock)

    def remove(
        self, keys: Collection[str] | None = None, left: list[tuple[Path, str]] | None = None
    ) -> int:
        """Delete the snapshots of these keys, or all of them with what writers left behind.

        Args:
            keys: of the snapshots; None for all of them.
            left: gets what could not be deleted, and why.

        Returns:
            How many snapshots were deleted.

        Raises:
            SnapshotError: one could not be deleted, and there is no `left`; the others are gone.
        """
        return folder.remove_files(self.root, keys, left)

    def _sweep_once(self) -> None:
        if not self._swept:
            self._swept = True
            self._room.sweep()


def _prefix(tokens: TokenIds, cuts: Sequence[int]) -> tuple[bytes, tuple[int, ...]]:
    """Return token ids as the store's own functions take them, and the cuts inside them."""
    ids = names.token_ids(tokens)
    return ids, names.cuts_below(cuts, len(ids) // names.TOKEN_BYTES)
