"""A name for a model file's content: the same bytes give the same id, wherever the file lies.

The id covers the file's length, its whole header and 64 places spread evenly over the weights, so
a re-quantised or fine-tuned model gets another one although name, size and shapes agree. It is no
proof against somebody who changes weights between the places on purpose.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from edgellm.errors import DoesNotFit, ModelCorrupt, ModelNotFound, ModelUnsupported
from edgellm.fileio import open_regular, private_dir, read_exactly, write_atomic
from edgellm.paths import cache_dir

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

    from edgellm.formats.gguf import GgufHeader

N_BLOCKS: Final = 64
MAX_BLOCK_BYTES: Final = 64 << 10
MIN_BLOCK_BYTES: Final = 4 << 10
MAX_READ_BYTES: Final = 8_000_000
"""Header and blocks together; a long header makes the blocks shorter, down to the minimum."""

_DOMAIN: Final = b"edgellm content id 1\0"
_HEX64: Final = re.compile(r"[0-9a-f]{64}")
_MAX_CACHE_BYTES: Final = 4096
_SETTLED_S: Final = 2.0  # within it a later change may carry the same time stamp


def content_id(
    path: str | PathLike[str], header: GgufHeader, *, clock: Callable[[], float] = time.time
) -> str:
    """Return 64 hex digits that name the content of a GGUF file.

    They are remembered by device, inode, size and both time stamps in `cache_dir()`; a cache that
    cannot be read or written is as good as none.

    Raises:
        ModelNotFound: the file is gone.
        ModelCorrupt: it is no longer the file that `header` was read from.
    """
    try:
        with open_regular(Path(path), follow=True) as (file, status):
            _same_length(status, header, path)
            cached = _recall(status)
            if cached is not None:
                return cached
            digest = _digest(file, header)
            after = os.fstat(file.fileno())
    except FileNotFoundError as err:
        raise ModelNotFound("there is no such file", path=path) from err
    except EOFError as err:
        raise ModelCorrupt("it became shorter while it was read", path=path) from err
    except OSError as err:
        raise ModelUnsupported(f"cannot be read ({err.strerror or err})", path=path) from err
    if _stamp(after) == _stamp(status) and clock() - status.st_ctime > _SETTLED_S:
        _remember(status, digest)
    return digest


def _same_length(status: os.stat_result, header: GgufHeader, path: str | PathLike[str]) -> None:
    if status.st_size != header.file_bytes:
        raise ModelCorrupt(
            f"it had {header.file_bytes} bytes a moment ago, now {status.st_size}",
            path=path,
            hint="wait until whatever writes it is done",
        )


def _digest(file: BinaryIO, header: GgufHeader) -> str:
    digest = hashlib.sha256(_DOMAIN + header.file_bytes.to_bytes(8, "little"))
    _add(digest, file, 0, header.header_bytes)
    data_bytes = header.file_bytes - header.data_start
    block_bytes = _block_bytes(header.header_bytes)
    if data_bytes <= N_BLOCKS * block_bytes:
        _add(digest, file, header.data_start, max(data_bytes, 0))
        return digest.hexdigest()
    for i in range(N_BLOCKS):
        start = header.data_start + (data_bytes - block_bytes) * i // (N_BLOCKS - 1)
        _add(digest, file, start, block_bytes)
    return digest.hexdigest()


def _block_bytes(header_bytes: int) -> int:
    share = (MAX_READ_BYTES - header_bytes) // N_BLOCKS
    return max(MIN_BLOCK_BYTES, min(MAX_BLOCK_BYTES, share // MIN_BLOCK_BYTES * MIN_BLOCK_BYTES))


def _add(digest: hashlib._Hash, file: BinaryIO, start: int, n_bytes: int) -> None:
    piece = bytearray(n_bytes)
    file.seek(start)
    read_exactly(file, piece)
    digest.update(piece)


def _stamp(status: os.stat_result) -> list[int]:
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _cache_file(status: os.stat_result) -> Path:
    return cache_dir() / "content-ids" / f"{status.st_dev:x}-{status.st_ino:x}.json"


def _recall(status: os.stat_result) -> str | None:
    try:
        with open_regular(_cache_file(status)) as (file, cached):
            if cached.st_size > _MAX_CACHE_BYTES:
                return None
            entry = json.loads(file.read(_MAX_CACHE_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(entry, dict) or entry.get("stamp") != _stamp(status):
        return None
    found = entry.get("id")
    return found if isinstance(found, str) and _HEX64.fullmatch(found) else None


def _remember(status: os.stat_result, digest: str) -> None:
    target = _cache_file(status)
    entry = json.dumps({"stamp": _stamp(status), "id": digest})
    with contextlib.suppress(OSError, DoesNotFit):
        private_dir(target.parent)
        write_atomic(target, entry.encode())
