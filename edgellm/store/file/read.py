"""Reading one snapshot: nothing of it is given out before all of it has been checked.

The rows are read into memory of the engine's choice or our own, never mapped: a file that is cut
under a map kills the process. Memory is taken only after headers and files agree on the length to
the byte.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgellm.errors import SnapshotCorrupt
from edgellm.store.disk.files import open_plain
from edgellm.store.file.chain import open_chain
from edgellm.store.file.filling import fill_rows
from edgellm.store.file.landing import state_for
from edgellm.store.file.opening import blamed, read_header
from edgellm.store.file.taking import Runs
from edgellm.store.state import Anchor

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from edgellm.store.disk.files import Opener
    from edgellm.store.format.header import SnapshotHeader
    from edgellm.store.state import Fingerprint, KVState, Landing


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot that passed every check.

    Attributes:
        header: what its file says of itself.
        n_bytes: length of the file, without those that it leans on.
        token_ids: the prefix as little-endian int32.
        state: the memory, in the landing's rows or in views of one buffer of this object.
        anchor: what a longer snapshot may lean on.
        fingerprints: of its file and those that it leans on; they differ at most in soft fields.
        paths: of these files, its own first.
    """

    header: SnapshotHeader
    n_bytes: int
    token_ids: bytes
    state: KVState
    anchor: Anchor
    fingerprints: tuple[Fingerprint, ...]
    paths: tuple[Path, ...]


def read_snapshot(
    path: Path,
    accept: Callable[[SnapshotHeader], None] = lambda _: None,
    *,
    open_file: Opener = open_plain,
    landing: Landing | None = None,
) -> Snapshot:
    """Read a whole snapshot, with the files that it leans on.

    Args:
        path: the file; links are not followed.
        accept: is given the header before the arrays are read, and raises to stop.
        open_file: opens a file of the store.
        landing: gives the memory to read into, or None for fresh arrays.

    Raises:
        SnapshotCorrupt: a file fails a check; `path` of the error is the file that did.
        BaseMissing: a file that it leans on is gone or was replaced.
        SnapshotIncompatible: it asks for something this version cannot do.
        OSError: a file cannot be opened or read.
    """
    with contextlib.ExitStack() as stack:
        links = open_chain(stack, path, open_file, accept)
        header = links[0].header
        state = state_for(header, landing)
        ids = fill_rows(links[0], state, is_last=True)
        for link in links[1:]:
            if not ids.startswith(fill_rows(link, state, is_last=False)):
                raise SnapshotCorrupt("it leans on other tokens than its own", path=path)
        n_bytes = links[0].file.disk_bytes
    anchor = Anchor(path.stem, header.n_tokens, links[0].digest.hex())
    fingerprints = tuple(link.header.fingerprint for link in links)
    paths = tuple(link.path for link in links)
    return Snapshot(header, n_bytes, ids, state, anchor, fingerprints, paths)


def read_info(path: Path, *, open_file: Opener = open_plain) -> tuple[SnapshotHeader, int]:
    """Read and check a snapshot's header and length, not its arrays.

    Returns:
        The header and the length of the file in bytes.

    Raises:
        SnapshotCorrupt, SnapshotIncompatible, OSError: as `read_snapshot`.
    """
    with blamed(path), open_file(path) as file:
        return read_header(file)[0], file.disk_bytes


def read_tokens(path: Path, *, open_file: Opener = open_plain) -> tuple[SnapshotHeader, bytes]:
    """Read and check a snapshot's header, length and token ids, not its arrays.

    Returns:
        The header and the prefix as little-endian int32.

    Raises:
        SnapshotCorrupt, SnapshotIncompatible, OSError: as `read_snapshot`.
    """
    with blamed(path), open_file(path) as file:
        header = read_header(file)[0]
        ids = bytearray(header.tokens.n_bytes)
        Runs(file).take(header.tokens, memoryview(ids))
        return header, bytes(ids)
