"""A reader of little-endian counts, strings and arrays that takes no more than the file has.

Every length is compared with the bytes that are left in the file before memory is taken for it,
in Python integers, which cannot wrap. The file is read ahead in pieces, never mapped: a file that
shrinks under a map would kill the process.
"""

from __future__ import annotations

import itertools
import struct
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, Final, overload

import numpy as np

from edgellm.errors import ModelCorrupt
from edgellm.fileio import read_exactly

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

MAX_HEADER_BYTES: Final = 128 << 20  # the largest vocabularies in use take less than 20 MiB
MAX_STRINGS: Final = 1 << 21  # all arrays together; the largest have 0.8 million
_CHUNK_BYTES: Final = 1 << 20
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")


class StringArray(Sequence[str]):
    """An array of strings that is decoded only where it is looked at.

    A vocabulary may hold bytes that are no UTF-8 on their own: `raw` gives them as they are, text
    shows U+FFFD in their place.
    """

    __slots__ = ("_data", "_offsets")

    def __init__(self, data: bytes, offsets: array[int]) -> None:
        """Wrap `data`, where string i is the bytes `offsets[i] + 8 : offsets[i + 1]`."""
        self._data = data
        self._offsets = offsets

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self.raw(index).decode("utf-8", "replace")

    def __iter__(self) -> Iterator[str]:
        return (self[i] for i in range(len(self)))

    def raw(self, index: int) -> bytes:
        """Return the bytes of one string."""
        n = len(self)
        if not -n <= index < n:
            raise IndexError(index)
        index %= n
        return self._data[self._offsets[index] + 8 : self._offsets[index + 1]]

    def all_raw(self) -> list[bytes]:
        """Return the bytes of every string, several times faster than one by one."""
        data, offsets = self._data, self._offsets.tolist()
        return [data[at + 8 : end] for at, end in itertools.pairwise(offsets)]


class Cursor:
    """A position in a file's header that only moves forward.

    Attributes:
        pos: offset of the next byte, from the start of the file.
        where: what is being read, for error messages; the caller keeps it up to date.
    """

    def __init__(self, file: BinaryIO, file_bytes: int, path: str) -> None:
        self.pos = 0
        self.where = "the header"
        self._file = file
        self._file_bytes = file_bytes
        self._limit = min(file_bytes, MAX_HEADER_BYTES)
        self._path = path
        self._buffer = bytearray()
        self._n_strings = 0

    def corrupt(self, problem: str, hint: str = "download or convert it again") -> ModelCorrupt:
        """Return the error for a problem at the present place."""
        return ModelCorrupt(f"{self.where}: {problem}", path=self._path, hint=hint)

    @property
    def left_bytes(self) -> int:
        """Bytes between here and the end of what may be header."""
        return self._limit - self.pos

    def u32(self) -> int:
        """Read an unsigned 32-bit number."""
        return int(_U32.unpack(self.take(4))[0])

    def u64(self) -> int:
        """Read an unsigned 64-bit number."""
        return int(_U64.unpack(self.take(8))[0])

    def take(self, n_bytes: int) -> bytes:
        """Read `n_bytes`.

        Raises:
            ModelCorrupt: the file, or the room for a header, ends before.
        """
        end = self.pos + n_bytes
        self._fill(end)
        found = bytes(self._buffer[self.pos : end])
        self.pos = end
        return found

    def string(self, max_bytes: int) -> bytes:
        """Read a string with its 64-bit length, at most `max_bytes` long."""
        n_bytes = self.u64()
        if n_bytes > max_bytes:
            raise self.corrupt(f"a string of {n_bytes} bytes, at most {max_bytes} are allowed")
        return self.take(n_bytes)

    def numbers(self, dtype: str, n: int) -> NDArray[Any]:
        """Read `n` numbers as a read-only array of `dtype`, shape (n,)."""
        return np.frombuffer(self.take(n * np.dtype(dtype).itemsize), dtype=dtype)

    def strings(self, n: int) -> StringArray:
        """Read `n` strings, each with its 64-bit length."""
        self._n_strings += n
        if self._n_strings > MAX_STRINGS or n * 8 > self.left_bytes:
            raise self.corrupt(f"an array of {n} strings cannot be in {self._file_bytes} bytes")
        buffer, start, pos, limit = self._buffer, self.pos, self.pos, self._limit
        ready = len(buffer)
        offsets = array("q")
        note, length_at = offsets.append, _U64.unpack_from
        # A vocabulary has 10^5 strings: names are local and strings are stepped over, not cut out.
        for _ in range(n):
            if pos + 8 > ready:
                self._fill(pos + 8)
                ready = len(buffer)
            note(pos - start)
            pos += 8 + length_at(buffer, pos)[0]
            if pos > limit:
                break
        self._fill(pos)
        note(pos - start)
        self.pos = pos
        return StringArray(bytes(buffer[start:pos]), offsets)

    def _fill(self, end: int) -> None:
        """Have the bytes up to `end` in the buffer, reading ahead by a piece."""
        if end > self._file_bytes:
            raise self.corrupt(f"needs {end} bytes, the file has {self._file_bytes}")
        if end > self._limit:
            raise self.corrupt(f"the header is longer than {MAX_HEADER_BYTES} bytes")
        ready = len(self._buffer)
        if end <= ready:
            return
        piece = bytearray(min(self._limit, max(end, ready + _CHUNK_BYTES)) - ready)
        try:
            read_exactly(self._file, piece)
        except EOFError as err:
            raise self.corrupt(f"the file became shorter while it was read ({err})") from err
        self._buffer += piece
