"""Snapshots from a pack, put aside until an engine here has said the same behind them.

Each pack has a folder of its own, `imports/ID` below the store's root, with the manifest and a store
of the usual form. It appears there by one rename, whole and verified, or not at all. A snapshot
moves into the store proper when it is admitted; nothing else ever looks into these folders.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from edgellm.errors import SnapshotCorrupt, SnapshotError
from edgellm.fileio import fsync_dir, rename_over
from edgellm.store.disk import names
from edgellm.store.disk.files import Files, refuse_foreign_folders
from edgellm.store.disk.folder import make_folder, snapshots_in
from edgellm.store.packs.pack import digest_of
from edgellm.store.packs.pack_format import MAX_MANIFEST_BYTES, parse_manifest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from edgellm.store.packs.pack_format import Manifest, PackedFile

MAX_PACKS: Final = 64
MANIFEST_NAME: Final = "manifest"


@dataclass(frozen=True, slots=True)
class Waiting:
    """A snapshot that was imported and never used.

    Attributes:
        files: those of its pack.
        manifest: of its pack.
        entry: what the manifest says of it.
        ids: its prefix as little-endian int32.
        path: where it lies.
        cuts: all places strictly inside the prefix where it was cut, ascending.
    """

    files: Files
    manifest: Manifest
    entry: PackedFile
    ids: bytes
    path: Path
    cuts: tuple[int, ...] = ()

    def tokens(self) -> list[int]:
        """Return its prefix."""
        return [int(token) for token in np.frombuffer(self.ids, "<i4")]

    def line(self) -> list[tuple[PackedFile, bytes, tuple[int, ...]]]:
        """Return it and what it leans on, the shortest first, with their tokens and cuts."""
        found: list[tuple[PackedFile, bytes, tuple[int, ...]]] = []
        entry: PackedFile | None = self.entry
        while entry is not None:
            ids = self.ids[: entry.n_tokens * names.TOKEN_BYTES]
            found.insert(0, (entry, ids, names.cuts_below(self.cuts, entry.n_tokens)))
            entry = self.manifest.file(entry.parent)
        return found

    def is_needed(self, key: str) -> bool:
        """Return whether a snapshot that waits leans on this one."""
        return any(
            other.parent == key and os.path.lexists(self.path.with_name(other.key + names.SUFFIX))
            for other in self.manifest.files
        )


class Imports:
    """The packs that wait below a store's root.

    Args:
        files: of the store proper.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self.root = files.root / names.IMPORTS_DIR

    def waiting(self, digest: str, ids: bytes, cuts: tuple[int, ...] = ()) -> Waiting | None:
        """Return the imported snapshot of exactly this prefix that waits for its first use.

        None where the store proper has a file for them.

        Args:
            digest: of the engine's fingerprint.
            ids: the prefix as little-endian int32.
            cuts: all places strictly inside it where it is cut, ascending.
        """
        folders = self._folders()  # asked at every prompt, and nearly always empty
        if not folders or os.path.lexists(self._files.path(digest, ids, cuts)):
            return None
        key = names.key_of(digest, ids, cuts=cuts)
        for folder in folders:
            files = self.pack_files(folder)
            path = files.path(digest, ids, cuts)
            if not os.path.lexists(path):
                continue
            manifest = _read_manifest(files)
            entry = None if manifest is None else manifest.file(key)
            if manifest is not None and entry is not None and manifest.digest == digest:
                return Waiting(files, manifest, entry, ids, path, cuts)
        return None

    def admit(self, waiting: Waiting) -> bool:
        """Move a snapshot into the store proper, and what it leans on before it.

        Returns:
            False where it leans on one of which the store has another form; it stays aside.

        Raises:
            OSError, SnapshotError: the system refused, or a folder is not ours.
        """
        digest, line = waiting.manifest.digest, waiting.line()
        moves = []
        for entry, ids, cuts in line:
            path = self._files.path(digest, ids, cuts)
            if not os.path.lexists(path):
                moves.append((entry, waiting.files.path(digest, ids, cuts), path))
            elif entry is not waiting.entry and digest_of(self._files, path)[1] != entry.sha256:
                return False
        for entry, src, dst in moves:
            make_folder(dst.parent, self._files.fault)
            if entry is not waiting.entry or waiting.is_needed(entry.key):
                self._copy(
                    waiting.files, src, dst, [path for _, _, path in moves]
                )  # the longer ones still need it there
            else:
                self._files.fault("rename", str(dst))
                rename_over(src, dst)
                fsync_dir(dst.parent)
        for entry, ids, cuts in reversed(line):
            if not waiting.is_needed(entry.key):
                self._remove(waiting.files, waiting.files.path(digest, ids, cuts))
        return True

    def drop(self, waiting: Waiting) -> None:
        """Remove a snapshot that was put aside; what leans on it is of no use then."""
        self._remove(waiting.files, waiting.path)

    def packs(self) -> Iterator[tuple[str, Manifest, int]]:
        """Give the packs that wait: id, manifest, and how many of their snapshots still do."""
        for folder in self._folders():
            manifest = _read_manifest(self.pack_files(folder))
            if manifest is not None:
                there = (
                    self._files.root / path.relative_to(folder) for path in snapshots_in(folder)
                )
                yield folder.name, manifest, sum(not os.path.lexists(path) for path in there)

    def is_broken(self, folder: Path) -> bool:
        """Return whether a folder is a pack of our own that nobody can use, whatever the key."""
        if not (_is_pack(folder.name) and is_own_folder(folder)):
            return False
        try:
            _manifest_of(self.pack_files(folder))
        except (SnapshotCorrupt, FileNotFoundError, EOFError):
            return True
        except (SnapshotError, OSError):  # of another version, under another key, or a bad disk
            return False
        return False

    def remove_all(self, left: list[tuple[Path, str]]) -> int:
        """Remove all packs and return how many snapshots were waiting in them.

        Args:
            left: gets the packs of which something could not be removed, and why.
        """
        waiting = {name: n_waiting for name, _, n_waiting in self.packs()}
        n_removed = 0
        for folder in self._folders():
            why = _removal_failure(folder)
            if why:
                left.append((folder, f"cannot be deleted: {why}"))
            else:
                n_removed += waiting.get(folder.name, 0)
        return n_removed

    def _folders(self) -> list[Path]:
        """Return the folders of packs, real ones of our own alone."""
        try:
            if not is_own_folder(self.root):
                return []
            found = [path for path in self.root.iterdir() if _is_pack(path.name)]
        except OSError:
            return []
        return [folder for folder in sorted(found)[:MAX_PACKS] if is_own_folder(folder)]

    def pack_files(self, folder: Path) -> Files:
        """Return the files of a pack's own store."""
        return Files(
            folder, secret=self._files.secret, fault=self._files.fault, room=self._files.room
        )

    def _remove(self, files: Files, path: Path) -> None:
        """Remove a file that waits, and its pack where it was the last one."""
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
            path.parent.rmdir()  # works only on an empty folder
        if not any(snapshots_in(files.root)):
            shutil.rmtree(files.root, ignore_errors=True)

    def _copy(self, files: Files, src: Path, dst: Path, keep: Collection[Path]) -> None:
        """Copy a file that waits; `keep` are those that must not go for it.

        Raises:
            OSError, SnapshotError: the system refused, or there is no room for it.
        """
        with self._files.room.made(src.lstat().st_size, keep) as refused:
            if refused is not None:
                raise SnapshotError(refused.reason, path=dst)
            self._copied(files, src, dst)

    def _copied(self, files: Files, src: Path, dst: Path) -> None:
        with files.opened(src) as file, self._files.writer(dst) as out:
            left = file.n_bytes
            buffer = memoryview(bytearray(min(1 << 20, left)))
            while left:
                piece = buffer[: min(left, len(buffer))]
                file.fill(piece)
                out.write(piece)
                left -= len(piece)


def _read_manifest(files: Files) -> Manifest | None:
    """Return what is said of a pack that was put aside, or None where that cannot be used."""
    try:
        return _manifest_of(files)
    except (SnapshotError, OSError, EOFError):
        return None


def _manifest_of(files: Files) -> Manifest:
    """Return what is said of a pack that was put aside.

    Raises:
        SnapshotError, OSError, EOFError: that cannot be used.
    """
    refuse_foreign_folders(files.root / MANIFEST_NAME)
    with files.opened(files.root / MANIFEST_NAME) as file:
        if file.n_bytes > MAX_MANIFEST_BYTES:
            raise SnapshotCorrupt(f"its manifest has {file.n_bytes} bytes")
        raw = bytearray(file.n_bytes)
        file.fill(raw)
    return parse_manifest(bytes(raw))


def _removal_failure(folder: Path) -> str:
    """Remove a folder with all that is in it; return why that does not work, or ""."""
    try:
        shutil.rmtree(folder)
    except OSError as err:
        return err.strerror or str(err)
    return ""


def _is_pack(name: str) -> bool:
    return names.is_file_name(name + names.SUFFIX)


def is_own_folder(path: Path) -> bool:
    """Return whether a path is a real folder of our own, and no link to one."""
    try:
        status = path.lstat()
    except OSError:
        return False
    is_ours = not hasattr(os, "geteuid") or status.st_uid == os.geteuid()
    return is_ours and path.is_dir() and not path.is_symlink()
