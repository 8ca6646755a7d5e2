"""Snapshots that lean on shorter ones: the files of a chain, opened together and held to each other.

A file that leans on another keeps of its dense parts only the rows after that one's last. It names
the other by key and by identity, the checksum of its header, in which the checksums of all its rows
stand: so it never meets other rows than those it was made after. All files are open before the
first row is read, and one that is removed meanwhile stays readable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgellm.errors import SnapshotCorrupt, SnapshotIncompatible
from edgellm.store.disk import names
from edgellm.store.file.opening import blamed, read_header
from edgellm.store.format import layout
from edgellm.store.format.layout import MAX_LINKS
from edgellm.store.format.tiers import serves

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack
    from pathlib import Path

    from edgellm.store.disk.files import Opener, OpenFile
    from edgellm.store.format.header import SnapshotHeader
    from edgellm.store.state import Anchor


class BaseMissing(SnapshotIncompatible):
    """A whole file whose base is gone or is another one by now; it can never be used again.

    Attributes:
        base: what it leans on.
    """

    def __init__(self, message: str, *, path: Path, base: Anchor) -> None:
        super().__init__(message, path=path)
        self.base = base


@dataclass(frozen=True, slots=True)
class Link:
    """One open file of a chain.

    Attributes:
        path: its name.
        file: open behind its header.
        header: what it says.
        digest: 16 bytes, the checksum of its header.
    """

    path: Path
    file: OpenFile
    header: SnapshotHeader
    digest: bytes


def open_chain(
    stack: ExitStack,
    path: Path,
    open_file: Opener,
    accept: Callable[[SnapshotHeader], None] = lambda _: None,
) -> list[Link]:
    """Open a file and all that it leans on.

    Args:
        stack: closes them.
        path: the file that is asked for.
        open_file: opens a file of the store.
        accept: is given its header before another file is opened, and raises to stop.

    Returns:
        The file asked for, what it leans on, and so on; the last one is whole by itself.

    Raises:
        BaseMissing: a file of the chain is gone or was replaced.
        SnapshotCorrupt: a file fails a check, or does not fit to the one that leans on it; `path`
            of the error says which one is to blame.
        SnapshotIncompatible, OSError: a file cannot be opened or is for a later version.
    """
    links = [_opened(stack, path, open_file)]
    accept(links[0].header)
    while (parent := links[-1].header.parent) is not None:
        if len(links) == MAX_LINKS:
            raise SnapshotCorrupt(f"more than {MAX_LINKS} files in a row", path=path)
        links.append(_opened_base(stack, links[-1], parent, open_file))
    return links


def base_path(path: Path, parent: Anchor) -> Path:
    """Return where the file lies that the one at `path` leans on."""
    return path.with_name(parent.key + names.SUFFIX)


def misfit(base: SnapshotHeader, header: SnapshotHeader) -> str:
    """Say why one file's rows cannot go on from another's, or "" where they can."""
    if base.n_tokens >= header.n_tokens:
        return f"{header.n_tokens} tokens cannot lean on {base.n_tokens}"
    if base.fingerprint.digest() != header.fingerprint.digest():
        return "its base is of another model or engine"
    if base.cuts != tuple(cut for cut in header.cuts if cut < base.n_tokens):
        return "its base was cut elsewhere"
    if not serves(base.tier, header.tier):
        return f"kept as {header.tier.value} on a base kept as {base.tier.value}"
    return "" if _rows(base) == _rows(header) else "its base has other layers"


def _opened(stack: ExitStack, path: Path, open_file: Opener) -> Link:
    with blamed(path):
        file = stack.enter_context(open_file(path))
        header, digest = read_header(file)
    return Link(path, file, header, digest)


def _opened_base(stack: ExitStack, link: Link, parent: Anchor, open_file: Opener) -> Link:
    try:
        base = _opened(stack, base_path(link.path, parent), open_file)
    except FileNotFoundError as err:
        message = f"leans on {parent.key}, which is gone"
        raise BaseMissing(message, path=link.path, base=parent) from err
    if base.digest.hex() != parent.identity:
        message = f"leans on {parent.key}, which is another by now"
        raise BaseMissing(message, path=link.path, base=parent)
    if base.header.n_tokens != parent.n_tokens:
        raise SnapshotCorrupt(f"{parent.key} is not of {parent.n_tokens} tokens", path=link.path)
    if problem := misfit(base.header, link.header):
        raise SnapshotCorrupt(problem, path=link.path)
    return base


def _rows(header: SnapshotHeader) -> list[tuple[object, ...]]:
    """Return what must be the same in two files whose rows follow each other."""
    rows: list[tuple[object, ...]] = []
    for part in header.parts:
        rows.append((part.kind,))
        if layout.is_cut(part):
            rows += [(row.layer, row.role, row.type, row.shape[1]) for row in part.sections]
    return rows
