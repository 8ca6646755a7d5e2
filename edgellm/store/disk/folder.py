"""What lies in a store's folders, found by names alone: listing, removing, making.

Only names that the store itself gives are ever touched, and no link is followed out of it.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from edgellm.errors import SnapshotError, SnapshotIncompatible
from edgellm.fileio import PRIVATE_DIR_MODE, open_regular, private_dir, temp_owner
from edgellm.store.disk import names
from edgellm.store.format import layout

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from edgellm.fileio import Fault


def all_names(root: Path) -> Iterator[Path]:
    """List what lies in the store's own folders; a link leads out of the store."""
    version = root / names.VERSION_DIR
    if version.is_symlink():
        return
    for folder in sorted(version.glob("*")):
        if names.is_folder_name(folder.name) and not folder.is_symlink():
            yield from sorted(folder.glob("*"))


def snapshots_in(root: Path) -> Iterator[Path]:
    """Give every file that has the name of a snapshot, ordered by folder and name."""
    return (path for path in all_names(root) if names.is_file_name(path.name))


def plain_in(root: Path) -> list[Path]:
    """Return the snapshots that are not encrypted: all that a store with a key can do is remove them."""
    return [path for path in snapshots_in(root) if _start_of(path) == layout.MAGIC]


def _start_of(path: Path) -> bytes:
    try:
        with open_regular(path) as (file, _):
            return file.read(len(layout.MAGIC))
    except OSError:
        return b""


def remove_files(
    root: Path, keys: Collection[str] | None, left: list[tuple[Path, str]] | None = None
) -> int:
    """Delete the snapshots of these keys, or all of them with what writers left behind.

    What cannot be deleted keeps nothing else from going.

    Args:
        root: the store's folder.
        keys: of the snapshots; None for all of them.
        left: gets what could not be deleted, and why; without it that is an error, at the end.

    Returns:
        How many snapshots were deleted.

    Raises:
        SnapshotError: one could not be deleted, and there is no `left`.
    """
    n_removed = 0
    failures: list[tuple[Path, str]] = [] if left is None else left
    for path in all_names(root):
        is_snapshot = names.is_file_name(path.name)
        if not _goes(path, keys):
            continue
        try:
            path.unlink()
        except FileNotFoundError:
            continue
        except OSError as err:
            failures.append((path, f"cannot be deleted: {err.strerror or err}"))
            continue
        n_removed += is_snapshot
        with contextlib.suppress(OSError):
            path.parent.rmdir()  # works only on an empty folder
    if failures and left is None:
        path, why = failures[0]
        raise SnapshotError(f"{why}; of {len(failures)} in all", path=path)
    return n_removed


def _goes(path: Path, keys: Collection[str] | None) -> bool:
    """Return whether a file goes with the snapshots of these keys; None for all of them."""
    name = names.target_name(path.name) or path.name  # what finds a snapshot goes with it
    if not names.is_file_name(name):
        return keys is None and temp_owner(path) is not None
    return keys is None or name.removesuffix(names.SUFFIX) in keys


def make_folder(folder: Path, fault: Fault) -> None:
    """Make the folder of a fingerprint, private as it must be.

    Raises:
        SnapshotIncompatible: it or the one above is a link.
        OSError: the system refused.
    """
    fault("mkdir", str(folder))
    private_dir(folder)
    for level in (folder, folder.parent):
        if level.is_symlink():
            raise SnapshotIncompatible(f"the folder {level} is a link")
        level.chmod(PRIVATE_DIR_MODE)  # a copied home may have opened it
