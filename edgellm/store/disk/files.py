"""The one place where a store's files get their names, are opened for reading, and are written.

An open file is read from front to back, with parts skipped, never anywhere else: so a file that
lies in an envelope can be handed out by the same interface as a plain one.
"""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Final

from edgellm.errors import SnapshotIncompatible
from edgellm.fileio import AtomicWriter, no_fault, open_regular, read_exactly
from edgellm.store.disk import names
from edgellm.store.disk.room import Room
from edgellm.store.sealed import envelope
from edgellm.store.sealed.chunks import outer_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from edgellm.fileio import Fault
    from edgellm.store.sealed.envelope import EnvelopeWriter
    from edgellm.store.sealed.keys import StoreKey

    Opener = Callable[[Path], "AbstractContextManager[OpenFile]"]

_WRITABLE_BY_OTHERS: Final = 0o022


@dataclass(frozen=True, slots=True)
class Place:
    """A place in an open file, where others may read as well.

    Attributes:
        fd: the file.
        at: bytes before it.
    """

    fd: int
    at: int


class OpenFile:
    """A file of the store, open at its first byte.

    Attributes:
        n_bytes: length of what can be read.
        disk_bytes: what the file has on the disk, an envelope included.

    Args:
        file: unbuffered; what lies in an envelope, or the file itself.
        is_plain: whether it is the file itself.
    """

    def __init__(
        self, file: BinaryIO, n_bytes: int, disk_bytes: int, *, is_plain: bool = False
    ) -> None:
        self.n_bytes = n_bytes
        self.disk_bytes = disk_bytes
        self._file = file
        self._is_plain = is_plain

    def fill(self, into: bytearray | memoryview) -> None:
        """Read as many bytes as `into` has.

        Raises:
            EOFError: the file ends before.
            OSError: it cannot be read.
        """
        read_exactly(self._file, into)

    def skip(self, n_bytes: int) -> None:
        """Leave out the next bytes."""
        self._file.seek(n_bytes, os.SEEK_CUR)

    @property
    def place(self) -> Place | None:
        """Return where the next byte lies, or None where the file does not have it as it is read."""
        return Place(self._file.fileno(), self._file.tell()) if self._is_plain else None


class Files:
    """The files below one folder.

    Args:
        root: the folder.
        secret: the key of the store, or None for plain files.
        fault: called before each step that writes, for tests.
        room: what may be done there and how much it may take; None takes the defaults.

    Raises:
        UsageError: `EDGELLM_SNAPSHOTS_MAX` is no number of bytes.
    """

    def __init__(
        self,
        root: Path,
        *,
        secret: StoreKey | None = None,
        fault: Fault = no_fault,
        room: Room | None = None,
    ) -> None:
        self.root = root
        self.secret = secret
        self.fault = fault
        self.room = room or Room(root)

    def key(self, digest: str, ids: bytes, cuts: Sequence[int] = ()) -> str:
        """Return the key for a fingerprint's digest, token ids and the cuts inside them."""
        return names.key_of(digest, ids, self.secret, cuts)

    def path(self, digest: str, ids: bytes, cuts: Sequence[int] = ()) -> Path:
        """Return the only place where that snapshot may lie."""
        return names.path_of(self.root, digest, ids, self.secret, cuts)

    def folder(self, digest: str) -> Path:
        """Return the folder of the snapshots of a fingerprint's digest."""
        return self.root / names.VERSION_DIR / names.folder_of(digest, self.secret)

    def text(self, digest: str, text_sha256: str) -> str:
        """Return what stands for a text in names; see `names.text_of`."""
        return names.text_of(digest, text_sha256, self.secret)

    def outer_bytes(self, n_bytes: int) -> int:
        """Return what a file of `n_bytes` has on the disk, which encrypting makes longer."""
        return n_bytes if self.secret is None else outer_bytes(n_bytes)

    def is_kept_plain(self, digest: str, ids: bytes, cuts: Sequence[int] = ()) -> bool:
        """Return whether a store with a key has this prefix from a time without one."""
        if self.secret is None:
            return False
        return os.path.lexists(names.path_of(self.root, digest, ids, None, cuts))

    def opened(self, path: Path) -> AbstractContextManager[OpenFile]:
        """Open a file for reading; see `open_plain`. A store with a key reads encrypted ones."""
        return _open(path, self.secret)

    def writer(self, path: Path) -> AtomicWriter | EnvelopeWriter:
        """Return a writer of a file that appears whole or not at all.

        With a key, the file is an encrypted one from its first byte to reach the disk.
        """
        file = AtomicWriter(path, fault=self.fault)
        return file if self.secret is None else envelope.EnvelopeWriter(file, self.secret)


def open_plain(path: Path) -> AbstractContextManager[OpenFile]:
    """Open a file that is not encrypted.

    Links are not followed, and nothing that others could change is opened.

    Raises:
        SnapshotIncompatible: it has a second name, another owner, lets others write, or is
            encrypted.
        OSError: it is not there, is a link, or is not a regular file.
    """
    return _open(path, None)


@contextlib.contextmanager
def _open(path: Path, secret: StoreKey | None) -> Iterator[OpenFile]:
    with open_regular(path) as (file, status):
        _refuse_strangers(status)
        inner, n_bytes = envelope.opened(file, status.st_size, secret)
        yield OpenFile(inner, n_bytes, status.st_size, is_plain=inner is file)


def refuse_foreign_folders(path: Path) -> None:
    """Refuse a snapshot whose two folders in the store are not real ones of our own.

    Raises:
        SnapshotIncompatible: one is a link or belongs to somebody else.
        OSError: one is not there or cannot be looked at.
    """
    for folder in (path.parent.parent, path.parent):
        status = folder.lstat()
        if stat.S_ISLNK(status.st_mode):
            raise SnapshotIncompatible(f"the folder {folder} is a link")
        _refuse_owner(status, f"the folder {folder}")


def discard(path: Path) -> None:
    """Remove a file that is of no use, if the system lets us."""
    with contextlib.suppress(OSError):
        path.unlink()


def _refuse_strangers(status: os.stat_result) -> None:
    """Refuse files that somebody else could change while they are in use."""
    if status.st_nlink > 1:
        raise SnapshotIncompatible(f"the file has {status.st_nlink} names")
    _refuse_owner(status, "the file")
    if os.name != "nt" and status.st_mode & _WRITABLE_BY_OTHERS:
        mode = stat.S_IMODE(status.st_mode)
        raise SnapshotIncompatible(f"others may change the file (mode {mode:04o})")


def _refuse_owner(status: os.stat_result, what: str) -> None:
    if hasattr(os, "geteuid") and status.st_uid != os.geteuid():
        raise SnapshotIncompatible(f"{what} belongs to user {status.st_uid}")
