"""How fast a folder's disk is: one file written, forced out, and read back past the page cache."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PROBE_BYTES: Final = 32 << 20
_CHUNK_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class StorageFacts:
    """What a folder's disk does.

    Attributes:
        folder: the nearest one that exists.
        free_bytes: that this user may take.
        write_bytes_per_s: with the wait until it is on the disk; None where nothing can be written.
        read_bytes_per_s: past the page cache; None where it cannot be passed by.
    """

    folder: Path
    free_bytes: int
    write_bytes_per_s: float | None = None
    read_bytes_per_s: float | None = None


def storage_facts(folder: Path, n_bytes: int = PROBE_BYTES) -> StorageFacts:
    """Measure the disk of a folder; the probe's file is gone afterwards.

    Args:
        folder: where; it need not exist, then its nearest parent counts.
        n_bytes: length of the file, a multiple of 1 MiB. A tenth of what is free is the most.

    Raises:
        OSError: not even the free space can be told.
    """
    place = _nearest(folder)
    free = shutil.disk_usage(place).free
    n_bytes = min(n_bytes, free // 10) // _CHUNK_BYTES * _CHUNK_BYTES
    if not n_bytes:
        return StorageFacts(place, free)
    try:
        fd, name = tempfile.mkstemp(prefix=".edgellm-probe-", dir=place)
    except OSError:
        return StorageFacts(place, free)
    try:
        written_s, read_s = _written_s(fd, n_bytes), _read_s(fd, n_bytes)
    except OSError:
        return StorageFacts(place, free)
    finally:
        os.close(fd)
        with contextlib.suppress(OSError):
            Path(name).unlink()
    rate = None if read_s is None else n_bytes / read_s
    return StorageFacts(place, free, n_bytes / written_s, rate)


def _nearest(folder: Path) -> Path:
    return next((place for place in (folder, *folder.parents) if place.is_dir()), folder)


def _written_s(fd: int, n_bytes: int) -> float:
    chunk = os.urandom(_CHUNK_BYTES)  # disks may squeeze zeros
    started_s = time.perf_counter()
    for _ in range(n_bytes // _CHUNK_BYTES):
        view = memoryview(chunk)
        while view:
            view = view[os.write(fd, view) :]
    os.fsync(fd)
    return max(time.perf_counter() - started_s, 1e-9)


def _read_s(fd: int, n_bytes: int) -> float | None:
    advise = getattr(os, "posix_fadvise", None)
    if advise is None:  # macOS and Windows: the cache would answer
        return None
    advise(fd, 0, n_bytes, os.POSIX_FADV_DONTNEED)
    os.lseek(fd, 0, os.SEEK_SET)
    started_s, left = time.perf_counter(), n_bytes
    while left:
        data = os.read(fd, _CHUNK_BYTES)
        if not data:
            return None
        left -= len(data)
    return max(time.perf_counter() - started_s, 1e-9)
