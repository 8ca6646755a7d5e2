"""Encrypted snapshot files: another outer form of the same bytes, in chunks that are sealed one by one.

What the outer form looks like, and how a chunk is sealed, stands in `chunks.py`. A chunk is handed out only after its tag was checked. That the last chunk is there, and is the last, is
known when it has been read: the inner file's own length and footer make a reader go there.
"""

from __future__ import annotations

import contextlib
import io
import os
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

from edgellm.errors import SnapshotCorrupt, SnapshotIncompatible
from edgellm.fileio import read_exactly
from edgellm.store.format import layout
from edgellm.store.sealed.chunks import (
    CHUNK_BYTES,
    HEADER,
    MAGIC,
    TAG_BYTES,
    Chunks,
    chunk_bytes_of,
    new_header,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from edgellm.fileio import AtomicWriter
    from edgellm.store.sealed.keys import StoreKey

    Buffer = bytes | bytearray | memoryview

_MAX_CHUNKS: Final = 1 << 32


def is_encrypted(start: bytes) -> bool:
    """Return whether a file that starts so is an encrypted one."""
    return start[: len(MAGIC)] == MAGIC


def opened(file: BinaryIO, n_bytes: int, key: StoreKey | None) -> tuple[BinaryIO, int]:
    """Return the inner file, from its start, and its length.

    Args:
        file: an unbuffered regular file.
        n_bytes: its length.
        key: of the store; with one, plain files are refused, without one, encrypted files are.

    Raises:
        SnapshotIncompatible: it is not for a store with this key, or with none.
        SnapshotCorrupt: its outer header contradicts itself or the length.
        EOFError: it ends early.
        OSError: it cannot be read.
    """
    start = bytearray(min(n_bytes, len(MAGIC)))
    file.seek(0)
    read_exactly(file, start)
    file.seek(0)
    if not is_encrypted(bytes(start)):
        if key is not None and start == layout.MAGIC:
            raise SnapshotIncompatible("a plain file, and this store is used with a key")
        return file, n_bytes
    if key is None:
        raise SnapshotIncompatible("encrypted, and no key was given")
    reader = EnvelopeReader(file, n_bytes, key)
    return cast("BinaryIO", reader), reader.n_bytes


class EnvelopeReader(io.RawIOBase):
    """The inner file of an encrypted one, read from front to back, or sought in.

    Holds two chunks of memory. What `readinto` gives has been checked, chunk by chunk.

    Args:
        file: an unbuffered regular file, at its start.
        n_bytes: its length.
        key: of the store.

    Attributes:
        n_bytes: length of the inner file.

    Raises:
        SnapshotIncompatible, SnapshotCorrupt, EOFError, OSError: as `opened`.
    """

    def __init__(self, file: BinaryIO, n_bytes: int, key: StoreKey) -> None:
        super().__init__()
        header = bytearray(HEADER.size)
        read_exactly(file, header)
        self._chunk_bytes = chunk_bytes_of(bytes(header), key)
        body_bytes = n_bytes - HEADER.size
        self._n_chunks = -(-body_bytes // (self._chunk_bytes + TAG_BYTES))
        self.n_bytes = body_bytes - self._n_chunks * TAG_BYTES
        last_bytes = self.n_bytes - (self._n_chunks - 1) * self._chunk_bytes
        if not 0 < self._n_chunks <= _MAX_CHUNKS or last_bytes < 1:
            raise SnapshotCorrupt(f"no encrypted file has {n_bytes} bytes")
        self._file = file
        self._chunks = Chunks(key, bytes(header))
        room_bytes = min(self._chunk_bytes, self.n_bytes)
        self._sealed = memoryview(bytearray(room_bytes + TAG_BYTES))
        self._plain = memoryview(bytearray(room_bytes))
        self._held = -1  # the chunk that is in `_plain`
        self._at = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the place in the inner file."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Go to a place in the inner file, counted from its start or from the place now."""
        place = offset + (self._at if whence == os.SEEK_CUR else 0)
        if whence not in (os.SEEK_SET, os.SEEK_CUR) or place < 0:
            raise ValueError("a place before the start, or one counted from the end")
        self._at = place
        return place

    def readinto(self, buffer: Any, /) -> int:
        """Fill a buffer up to the end of a chunk and return how many bytes that are; 0 at the end.

        Raises:
            SnapshotCorrupt: the chunk is not the one that was written there.
            EOFError: the file became shorter.
            OSError: it cannot be read.
        """
        into = memoryview(buffer).cast("B")
        index, skip = divmod(self._at, self._chunk_bytes)
        n = min(into.nbytes, self._length(index) - skip)
        if n <= 0:
            return 0
        if n == self._length(index) and index != self._held:
            self._load(index, into[:n])
        else:
            if index != self._held:
                self._held = -1  # until the chunk was checked
                self._load(index, self._plain[: self._length(index)])
                self._held = index
            into[:n] = self._plain[skip : skip + n]
        self._at += n
        return n

    def _length(self, index: int) -> int:
        return max(0, min(self._chunk_bytes, self.n_bytes - index * self._chunk_bytes))

    def _load(self, index: int, out: memoryview) -> None:
        sealed = self._sealed[: out.nbytes + TAG_BYTES]
        self._file.seek(HEADER.size + index * (self._chunk_bytes + TAG_BYTES))
        read_exactly(self._file, sealed)
        self._chunks.open(index, sealed, out, last=index == self._n_chunks - 1)


class EnvelopeWriter:
    """An `AtomicWriter` of an encrypted file: what is written to it never reaches the disk plain.

    Args:
        file: not entered yet.
        key: of the store.
        chunk_bytes: of the inner file, in each chunk.
        random: gives so many random bytes, for tests.
    """

    def __init__(
        self,
        file: AtomicWriter,
        key: StoreKey,
        *,
        chunk_bytes: int = CHUNK_BYTES,
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._header = new_header(key, chunk_bytes, random)
        self._chunks = Chunks(key, self._header)
        self._file = file
        self._plain = memoryview(bytearray(chunk_bytes))
        self._sealed = memoryview(bytearray(chunk_bytes + TAG_BYTES))
        self._n_held = 0
        self._index = 0

    @property
    def n_bytes(self) -> int:
        """Length of the encrypted file so far; that of the whole one after the `with` block."""
        return self._file.n_bytes

    def __enter__(self) -> EnvelopeWriter:
        """Create the temporary file and write the outer header.

        Raises:
            FileExistsError, DoesNotFit, UsageError, OSError: as `AtomicWriter`.
        """
        self._file.__enter__()
        with self._undone_by_errors():
            self._file.write(self._header)
        return self

    def write(self, data: Buffer, /) -> None:
        """Append all of `data` to the inner file.

        Raises:
            DoesNotFit, OSError: as `AtomicWriter`.
        """
        view = memoryview(data).cast("B")
        while view.nbytes:
            if self._n_held == self._plain.nbytes:  # and more follows: it is not the last
                self._flush(last=False)
            n = min(self._plain.nbytes - self._n_held, view.nbytes)
            self._plain[self._n_held : self._n_held + n] = view[:n]
            self._n_held += n
            view = view[n:]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Seal the last chunk, sync and rename, or remove the temporary when anything failed."""
        if kind is None:
            with self._undone_by_errors():
                self._flush(last=True)
        self._file.__exit__(kind, error, trace)

    @contextlib.contextmanager
    def _undone_by_errors(self) -> Iterator[None]:
        with contextlib.ExitStack() as undo:
            undo.push(self._file)
            yield
            undo.pop_all()

    def _flush(self, *, last: bool) -> None:
        if not self._n_held or self._index >= _MAX_CHUNKS:
            raise ValueError(f"chunk {self._index} of {self._n_held} bytes")
        sealed = self._sealed[: self._n_held + TAG_BYTES]
        self._chunks.seal(self._index, self._plain[: self._n_held], sealed, last=last)
        self._file.write(sealed)
        self._index, self._n_held = self._index + 1, 0
