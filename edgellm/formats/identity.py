"""A name for a model file's content: the same bytes give the same id, wherever the file lies.

Every byte counts: weights that were edited in place, a few layers merged or zeroed, keep size, header
and most of the file, and a snapshot of the old ones would give wrong answers with the new. Reading it
all costs once per file what loading it costs anyway; the id is then remembered by inode and times.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from edgellm.errors import (
    DoesNotFit,
    EdgeLLMError,
    ModelCorrupt,
    ModelNotFound,
    ModelUnsupported,
)
from edgellm.fileio import open_regular, private_dir, read_exactly, write_atomic
from edgellm.paths import cache_dir
from edgellm.threads import Started

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

    from edgellm.formats.gguf import GgufHeader

_CHUNK_BYTES: Final = 4 << 20
_DOMAIN: Final = b"edgellm content id 2\0"
_HEX: Final = re.compile(r"[0-9a-f]{32}")
_MAX_CACHE_BYTES: Final = 4096
_SETTLED_S: Final = 2.0  # within it a later change may carry the same time stamp


def content_id(
    path: str | PathLike[str], header: GgufHeader, *, clock: Callable[[], float] = time.time
) -> str:
    """Return 32 hex digits, the xxh3-128 of all bytes, that name the content of a GGUF file.

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
    import xxhash

    digest = xxhash.xxh3_128(_DOMAIN)
    buffer = memoryview(bytearray(min(_CHUNK_BYTES, header.file_bytes)))
    left = header.file_bytes
    file.seek(0)
    while left:
        piece = buffer[: min(left, len(buffer))]
        read_exactly(file, piece)
        digest.update(piece)
        left -= len(piece)
    return digest.hexdigest()


class LoadingId:
    """The content id of a file that is being loaded, worked out by a thread meanwhile.

    An engine maps its weights: who writes to their file changes them under it. From then on the id
    is one that no file has, for what is computed is of no file.
    """

    def __init__(self, path: Path, header: GgufHeader) -> None:
        self._path = path
        self._header = header
        self._before = _which(path)
        self._found: str | EdgeLLMError = ""
        self._thread: Started | None = None
        with contextlib.suppress(RuntimeError):  # without a thread who asks waits for all of it
            self._thread = Started(self._run, "edgellm-content-id")

    def _run(self) -> None:
        try:
            self._found = content_id(self._path, self._header)
        except EdgeLLMError as err:
            self._found = err
        else:
            if self._was_written_to():
                self._found = secrets.token_hex(16)

    def check_unchanged(self) -> None:
        """Make sure that the file loaded is the file named.

        Raises:
            ModelCorrupt: another file was put in its place meanwhile, or it was written to.
        """
        if _which(self._path) != self._before:
            raise ModelCorrupt(
                "the file changed while it was loaded", path=self._path, hint="start again"
            )

    def result(self) -> str:
        """Wait for the id and return it; the file is read again where its times have changed since.

        Raises:
            ModelNotFound, ModelCorrupt, ModelUnsupported: the file could not be read to its end.
        """
        if self._thread is not None:
            self._thread.join()
        if not self._found:  # there was no thread, or no memory in it: here that is an error
            self._run()
        if isinstance(self._found, EdgeLLMError):
            raise self._found
        if self._was_written_to():
            self._before = _which(self._path)
            if not self._is_still(self._found):
                self._found = secrets.token_hex(16)
        return self._found

    def _was_written_to(self) -> bool:
        """Return whether the file loaded has other times; one put in its place leaves it as it is."""
        now, before = _which(self._path), self._before
        return now is not None and before is not None and now != before and now[:2] == before[:2]

    def _is_still(self, found: str) -> bool:
        try:
            return content_id(self._path, self._header) == found
        except EdgeLLMError:
            return False


def _which(path: Path) -> list[int] | None:
    """Return what tells one state of one file from any other, None without a file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return [status.st_dev, status.st_ino, *_stamp(status)]


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
    return found if isinstance(found, str) and _HEX.fullmatch(found) else None


def _remember(status: os.stat_result, digest: str) -> None:
    target = _cache_file(status)
    entry = json.dumps({"stamp": _stamp(status), "id": digest})
    with contextlib.suppress(OSError, DoesNotFit):
        private_dir(target.parent)
        write_atomic(target, entry.encode())
