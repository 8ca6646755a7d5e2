"""Taking a snapshot into the store that was made elsewhere, and giving one out: plain file bytes.

What comes is read from memory exactly as a file of the store is read, chain and all, before any of it is
written down; so the store never holds, for however short a time, what was not checked.
"""

from __future__ import annotations

import contextlib
import io
from typing import TYPE_CHECKING, Final

from edgellm.errors import DoesNotFit, SnapshotCorrupt, SnapshotIncompatible
from edgellm.store.disk.files import OpenFile
from edgellm.store.disk.folder import make_folder
from edgellm.store.file.opening import blamed, read_header
from edgellm.store.file.read import read_snapshot
from edgellm.store.finding import refuse_others
from edgellm.store.format.tiers import serves

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from edgellm.core import Tier
    from edgellm.store.disk.files import Files
    from edgellm.store.format.header import SnapshotHeader
    from edgellm.store.state import Fingerprint


WAIT_S: Final = 1.0
"""How long somebody who waits for an answer is kept by other processes that are saving."""


def adopt(
    files: Files,
    fingerprint: Fingerprint,
    ids: bytes,
    content: memoryview,
    tier: Tier,
    cuts: Sequence[int] = (),
) -> None:
    """Check a snapshot that came from elsewhere and put it into the store.

    Args:
        files: of the store, which keeps no key.
        fingerprint: of the engine that is going to use it.
        ids: the prefix as little-endian int32.
        content: the bytes of the file.
        tier: the coarsest that will do.
        cuts: all places strictly inside the prefix where it was cut, ascending.

    Raises:
        BaseMissing: it leans on a snapshot that the store has not.
        SnapshotError: it fails a check, or is of another model, engine or prompt.
        DoesNotFit, OSError: it cannot be kept.
    """
    digest = fingerprint.digest()
    path = files.path(digest, ids, cuts)

    def opened(asked: Path) -> AbstractContextManager[OpenFile]:
        return _in_memory(content) if asked == path else files.opened(asked)

    def accept(header: SnapshotHeader) -> None:
        refuse_others(header, digest, ids, cuts)
        if not serves(header.tier, tier):
            raise SnapshotIncompatible(f"kept as {header.tier.value}, {tier.value} is asked")

    snapshot = read_snapshot(path, accept, open_file=opened)
    if snapshot.token_ids != ids:
        raise SnapshotIncompatible("other tokens than those asked for")
    with files.room.made(len(content), snapshot.paths[1:], wait_s=WAIT_S) as refused:
        if refused is not None:
            raise DoesNotFit(refused.reason, need_bytes=len(content))
        make_folder(path.parent, files.fault)
        with files.writer(path) as out:
            out.write(content)
    files.room.used(snapshot.paths)


def plain_bytes(files: Files, path: Path, max_bytes: int) -> bytearray:
    """Return the bytes of a file of the store as they are without a key.

    Raises:
        SnapshotError: it is longer than `max_bytes`, or cannot be used.
        OSError: it is gone or cannot be read.
    """
    try:
        with files.opened(path) as file:
            if file.n_bytes > max_bytes:
                raise SnapshotIncompatible(f"{file.n_bytes} bytes, at most {max_bytes} are shared")
            content = bytearray(file.n_bytes)
            file.fill(content)
    except EOFError as err:
        raise SnapshotCorrupt(f"the file ends early, {err}", path=path) from err
    return content


def header_of(path: Path, content: bytearray, ids_bytes: int) -> SnapshotHeader:
    """Return what a file of the store says of itself, whose plain bytes these are.

    Raises:
        SnapshotError: it fails a check, or its token ids take another number of bytes.
    """
    with blamed(path), _in_memory(memoryview(content)) as file:
        header = read_header(file)[0]
        if header.tokens.n_bytes != ids_bytes:
            raise SnapshotIncompatible(f"{header.n_tokens} tokens under the name of others")
        return header


@contextlib.contextmanager
def _in_memory(content: memoryview) -> Iterator[OpenFile]:
    yield OpenFile(io.BytesIO(content), len(content), len(content))
