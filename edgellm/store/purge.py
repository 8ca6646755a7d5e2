"""Purging: every file that the store ever wrote goes, of any version, and nothing else does.

What goes has a name that the store gives, in a place where it puts it. Links are removed as names and
never followed; what has another name or another owner is told and left.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from edgellm.fileio import temp_owner
from edgellm.store.checkup import Finding
from edgellm.store.disk.eviction import CLOCK_NAME
from edgellm.store.disk.flight import LOCKS_DIR
from edgellm.store.disk.names import IMPORTS_DIR
from edgellm.store.ledger import LEDGER_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Rule = Callable[[tuple[str, ...]], bool]

_VERSION: Final = re.compile(r"v[0-9]{1,4}")
_HEX: Final = re.compile(r"[0-9a-f]{16,64}(-[0-9a-f]{16,64})*")
_TOP_FILES: Final = (LEDGER_NAME, CLOCK_NAME)
_TOP_FOLDERS: Final = (LOCKS_DIR, IMPORTS_DIR)
_STEM: Final = re.compile(r"[0-9A-Za-z_-]{1,80}")
_TEMP: Final = re.compile(r"\.(.+)\.[0-9]{1,10}\.[0-9a-f]+\.tmp", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Purged:
    """What became of a store.

    Attributes:
        n_files: how many were removed, links and temporaries among them.
        n_bytes: what they held; nothing for a link.
        left: what is still there, and why.
    """

    n_files: int
    n_bytes: int
    left: tuple[Finding, ...]


def purge(root: Path, caches: Sequence[Path] = ()) -> Purged:
    """Remove all files of a store, then the folders that are empty.

    No key is needed, and no file is opened.

    Args:
        root: the store's folder; it may be missing.
        caches: folders of files whose names are those of fingerprints, with any extension.
    """
    n_files = n_bytes = 0
    left: list[Finding] = []
    found = [*_walk(root, _in_store)]
    for cache in caches:
        found += _walk(cache, _in_cache)
    for path, is_ours in found:
        try:
            status = path.lstat()
            problem = _problem(status, is_ours=is_ours)
            if not problem and stat.S_ISDIR(status.st_mode):
                if not any(path in finding.path.parents for finding in left):
                    path.rmdir()
            elif not problem:
                path.unlink()
                n_files += 1
                n_bytes += status.st_size if stat.S_ISREG(status.st_mode) else 0
        except FileNotFoundError:
            continue
        except OSError as err:
            problem = f"cannot be removed: {err.strerror or err}"
        if problem:
            left.append(Finding(path, problem, fixed=False, fixable=False))
    return Purged(n_files, n_bytes, tuple(left))


def _walk(top: Path, is_ours: Rule) -> Iterator[tuple[Path, bool]]:
    """Give all that is below a folder, and it, each after what is in it."""
    yield from _inside(top, (), is_ours)
    if top.is_dir() and not top.is_symlink():  # a link to the store's folder is the user's
        yield top, True


def _inside(folder: Path, above: tuple[str, ...], is_ours: Rule) -> Iterator[tuple[Path, bool]]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return  # not there, or not ours to look into: its own removal will say so
    for entry in entries:
        path, names = Path(entry.path), (*above, entry.name)
        ours = is_ours(names)
        if ours and entry.is_dir(follow_symlinks=False):
            yield from _inside(path, names, is_ours)
        yield path, ours


def _in_store(names: tuple[str, ...]) -> bool:
    """Return whether the store makes a file of that name at that place below its root."""
    *folders, name = names
    name = _final(name)
    if not folders:
        return name in _TOP_FILES or bool(_VERSION.fullmatch(name)) or name in _TOP_FOLDERS
    if folders[0] in _TOP_FOLDERS:
        return bool(_STEM.fullmatch(name.split(".")[0]))
    inner = all(_HEX.fullmatch(folder) for folder in folders[1:])
    return bool(_VERSION.fullmatch(folders[0])) and inner and _is_hex_file(name)


def _in_cache(names: tuple[str, ...]) -> bool:
    return len(names) == 1 and _is_hex_file(_final(names[0]))


def _is_hex_file(name: str) -> bool:
    return bool(_HEX.fullmatch(name.partition(".")[0]))


def _final(name: str) -> str:
    """Return the name that a temporary was going to get, or the name itself."""
    match = _TEMP.fullmatch(name)
    return match[1] if match and temp_owner(Path(name)) is not None else name


def _problem(status: os.stat_result, *, is_ours: bool) -> str:
    if not is_ours:
        return "not of this store"
    if hasattr(os, "geteuid") and os.geteuid() != status.st_uid:
        return f"belongs to user {status.st_uid}"
    return ""
