"""Snapshots found by the text of a conversation: an empty file beside each, whose name says both.

Token ids that an engine sampled cannot always be had again from their text, so who holds the text
of a conversation cannot compute the name of its snapshot. The file's name begins with a hash of the
text and ends with the snapshot's key. There is nothing in it, so nothing in it can be wrong, and
whether it still leads anywhere can be seen in the listing of its folder.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import numpy as np

from edgellm.errors import SnapshotError
from edgellm.fileio import PRIVATE_FILE_MODE
from edgellm.store.disk import names
from edgellm.store.disk.files import discard, refuse_foreign_folders
from edgellm.store.disk.folder import all_names
from edgellm.store.file.read import read_tokens

if TYPE_CHECKING:
    from pathlib import Path

    from edgellm.store.disk.files import Files


def note_text(files: Files, path: Path, text: str) -> None:
    """Let a snapshot be found by its text, if the system lets us.

    Args:
        files: of the store.
        path: where the snapshot lies.
        text: what `Files.text` gave.
    """
    note = path.with_name(f"{text}-{path.stem}{names.TEXT_SUFFIX}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    with contextlib.suppress(OSError):  # it stays a snapshot that its tokens find
        files.fault("note", str(note))
        os.close(os.open(note, flags, PRIVATE_FILE_MODE))


def keys_with_text(root: Path) -> frozenset[str]:
    """Return the keys of the snapshots that a text finds: those after turns of conversations."""
    notes = (path for path in all_names(root) if path.name.endswith(names.TEXT_SUFFIX))
    return frozenset(note.stem.rpartition("-")[2] for note in notes)


class Texts:
    """The snapshots of one fingerprint that a text finds, as one look at their folder saw them.

    Args:
        files: of the store.
        digest: of the fingerprint, 64 hex digits.
    """

    def __init__(self, files: Files, digest: str) -> None:
        self._files = files
        self._digest = digest
        self._folder = files.folder(digest)
        self._notes: dict[str, list[str]] = {}
        if not files.room.place.readable:
            return
        with contextlib.suppress(OSError, SnapshotError):
            refuse_foreign_folders(self._folder / "any")
            for name in os.listdir(self._folder):  # noqa: PTH208  # a thousand paths cost more
                if name.endswith(names.TEXT_SUFFIX):
                    self._notes.setdefault(name.partition("-")[0], []).append(name)

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self._notes)

    def find(self, text_sha256: str) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Return the token ids of the newest snapshot of a text and its cuts, or None.

        A file that leads nowhere is removed.

        Args:
            text_sha256: 64 hex digits.

        Raises:
            ValueError: the hash of the text is no such number.
        """
        found: list[tuple[int, Path]] = []
        for name in self._notes.get(self._files.text(self._digest, text_sha256), ()):
            note = self._folder / name
            with contextlib.suppress(OSError):  # gone since
                found.append((note.lstat().st_mtime_ns, note))
        for _, note in sorted(found, reverse=True):
            prefix = _followed(self._files, self._digest, note)
            if prefix is not None:
                return prefix
        return None


def _followed(
    files: Files, digest: str, note: Path
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    name = names.target_name(note.name)
    if name is None:
        return None
    target = note.with_name(name)
    try:
        header, ids = read_tokens(target, open_file=files.opened)
    except FileNotFoundError:
        discard(note)
        return None
    except (SnapshotError, OSError, MemoryError):  # a lookup says what is wrong with it
        return None
    if header.fingerprint.digest() != digest or files.path(digest, ids, header.cuts) != target:
        return None
    return tuple(np.frombuffer(ids, "<i4").tolist()), header.cuts
