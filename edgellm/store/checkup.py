"""Checking a whole store: every file is read, and what does not belong is named or removed.

Only what is ours by place and name is ever removed; the rest is reported and left alone.
"""

from __future__ import annotations

import functools
import os
import shutil
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from edgellm.errors import SnapshotCorrupt, SnapshotError
from edgellm.fileio import PRIVATE_DIR_MODE, PRIVATE_FILE_MODE, process_alive, temp_owner
from edgellm.store.disk import names
from edgellm.store.disk.flight import LOCKS_DIR
from edgellm.store.disk.survey import ORPHAN_AGE_S
from edgellm.store.file.chain import BaseMissing
from edgellm.store.file.read import read_snapshot
from edgellm.store.ledger import LEDGER_NAME
from edgellm.store.packs.imports import MANIFEST_NAME, Imports

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from edgellm.store.disk.files import Files
    from edgellm.store.file.read import Snapshot

    Remedy = Callable[[], None]

_OWN_NAMES: Final = (LOCKS_DIR, LEDGER_NAME)
_OPEN_TO_OTHERS: Final = 0o077


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be.

    Attributes:
        path: the file or folder.
        problem: one phrase.
        fixed: whether it was removed or mended just now.
        fixable: whether `fix` would try to.
    """

    path: Path
    problem: str
    fixed: bool
    fixable: bool = True


@dataclass(frozen=True, slots=True)
class _Problem:
    path: Path
    text: str
    remedy: Remedy | None = None


def check_store(files: Files, *, fix: bool, clock: Callable[[], float]) -> list[Finding]:
    """Read every snapshot completely and report what is wrong.

    Costs one read of each file, and one more of what it leans on for each that leans. Reported
    and, with `fix`, mended: files that fail a check, lean on one that is gone, lie under a wrong
    name, are links or have several names, texts' files that lead nowhere, temporaries whose writer
    is dead or that are over an hour old, packs whose manifest is damaged or gone (all removed), and
    modes that let others in (set to 0600 and 0700).
    Only reported: unknown files and versions, files of other users, files that need a later version.

    Args:
        files: of the store; its folder may be missing.
        fix: mend what can be mended.
        clock: gives the time to judge temporaries by, Unix seconds.
    """
    found = (_finding(problem, fix) for problem in _walk(files, clock))
    return [finding for finding in found if finding is not None]


def _finding(problem: _Problem, fix: bool) -> Finding | None:
    """Mend a problem if that is asked; None where another process has removed the file meanwhile."""
    if not os.path.lexists(problem.path):
        return None
    if not fix or problem.remedy is None:
        fixable = problem.remedy is not None and _is_own(problem.path)
        return Finding(problem.path, problem.text, fixed=False, fixable=fixable)
    try:
        problem.remedy()
    except FileNotFoundError:
        return None
    except OSError as err:
        return Finding(problem.path, f"{problem.text} ({err.strerror})", fixed=False)
    return Finding(problem.path, problem.text, fixed=True)


def _walk(
    files: Files, clock: Callable[[], float], own: Collection[str] = _OWN_NAMES
) -> Iterator[_Problem]:
    root = files.root
    if not root.exists():
        return
    yield from _mode(root, PRIVATE_DIR_MODE)
    for version in _children(root):
        if version.name == names.IMPORTS_DIR and _is_folder(version):
            yield from _imports(files, version, clock)
            continue
        if version.name in own:
            yield from _mode(
                version, PRIVATE_DIR_MODE if _is_folder(version) else PRIVATE_FILE_MODE
            )
            continue
        if temp_owner(version) is not None:
            yield from _entry(files, version, clock)
            continue
        if version.name != names.VERSION_DIR or not _is_folder(version):
            yield _Problem(version, "not a version of the store that is known here")
            continue
        yield from _mode(version, PRIVATE_DIR_MODE)
        for folder in _children(version):
            if not names.is_folder_name(folder.name) or not _is_folder(folder):
                yield _Problem(folder, "not a folder of this store")
                continue
            yield from _mode(folder, PRIVATE_DIR_MODE)
            for path in sorted(_children(folder), key=_is_text):  # what they lead to comes first
                yield from _entry(files, path, clock)


def _imports(files: Files, folder: Path, clock: Callable[[], float]) -> Iterator[_Problem]:
    """Judge what waits for its first use: each pack is a store of its own, with a manifest."""
    yield from _mode(folder, PRIVATE_DIR_MODE)
    imports = Imports(files)
    usable = {name for name, _, _ in imports.packs()}
    for pack in _children(folder):
        owner = temp_owner(pack)
        if owner is not None:
            if not process_alive(owner):
                remedy = functools.partial(shutil.rmtree, pack)
                yield _Problem(pack, "left behind by an import that is gone", remedy)
        elif pack.name in usable:
            yield from _walk(imports.pack_files(pack), clock, (MANIFEST_NAME,))
        elif imports.is_broken(pack):
            remedy = functools.partial(shutil.rmtree, pack)
            yield _Problem(pack, "a pack without a manifest that can be used", remedy)
        else:
            yield _Problem(pack, "not a pack that is known here")


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:  # as of any name here: another process may remove it at any moment
        return []


def _is_text(path: Path) -> bool:
    return names.target_name(path.name) is not None


def _is_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except FileNotFoundError:
        return False


def _is_own(path: Path) -> bool:
    """Return whether this user may change what is there."""
    user = getattr(os, "geteuid", lambda: 0)()
    try:
        return user in (0, path.lstat().st_uid)
    except OSError:
        return True


def _mode(path: Path, wanted: int) -> Iterator[_Problem]:
    try:
        mode = stat.S_IMODE(path.lstat().st_mode)
    except FileNotFoundError:
        return
    if os.name != "nt" and mode & _OPEN_TO_OTHERS:
        yield _Problem(path, f"open to others (mode {mode:04o})", lambda: path.chmod(wanted))


def _entry(files: Files, path: Path, clock: Callable[[], float]) -> Iterator[_Problem]:
    """Judge one name in a folder of snapshots; it may vanish at any moment."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    owner = temp_owner(path)
    if owner is not None:
        old = clock() - status.st_mtime > ORPHAN_AGE_S
        if stat.S_ISDIR(status.st_mode):
            yield _Problem(path, "not a regular file")
        elif old or not process_alive(owner):
            yield _Problem(path, "left behind by a writer that is gone", path.unlink)
    elif _is_text(path):
        yield from _text(path, status)
    elif not names.is_file_name(path.name):
        yield _Problem(path, "not a file of this store")
    else:
        yield from _snapshot(files, path, status)


def _text(path: Path, status: os.stat_result) -> Iterator[_Problem]:
    """Judge a file that leads from a text to a snapshot; there is nothing in it."""
    target = path.with_name(names.target_name(path.name) or "")
    if not stat.S_ISREG(status.st_mode):
        yield _Problem(path, "not a regular file")
    elif status.st_size:
        yield _Problem(path, f"has {status.st_size} bytes and should have none", path.unlink)
    elif not target.exists():
        yield _Problem(path, "leads to a snapshot that is gone", path.unlink)
    else:
        yield from _mode(path, PRIVATE_FILE_MODE)


def _snapshot(files: Files, path: Path, status: os.stat_result) -> Iterator[_Problem]:
    if stat.S_ISLNK(status.st_mode):
        yield _Problem(path, "a link", path.unlink)
        return
    if not stat.S_ISREG(status.st_mode):
        yield _Problem(path, "not a regular file")
        return
    if status.st_nlink > 1:
        yield _Problem(path, f"has {status.st_nlink} names", path.unlink)
        return
    yield from _mode(path, PRIVATE_FILE_MODE)
    yield from _content(files, path)


def _content(files: Files, path: Path) -> Iterator[_Problem]:
    """Read a snapshot, with what it leans on."""
    try:
        snapshot = read_snapshot(path, open_file=files.opened)
    except FileNotFoundError:
        return
    except SnapshotCorrupt as err:
        where = "" if err.path == str(path) else f"in {err.path}, which it leans on: "
        yield _Problem(path, f"corrupt: {where}{err.message}", path.unlink)
    except BaseMissing as err:
        yield _Problem(path, f"incomplete: {err.message}", path.unlink)
    except SnapshotError as err:
        yield _Problem(path, f"incompatible: {err.message}")
    except OSError as err:
        yield _Problem(path, f"unreadable: {err.strerror or err}")
    except MemoryError:
        yield _Problem(path, "not enough memory to read it")
    else:
        if not _in_place(files, path, snapshot):
            yield _Problem(path, "lies under a wrong name", path.unlink)


def _in_place(files: Files, path: Path, snapshot: Snapshot) -> bool:
    header = snapshot.header
    return path == files.path(header.fingerprint.digest(), snapshot.token_ids, header.cuts)
