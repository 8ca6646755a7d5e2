"""Filling arrays from runs of a file: read, summed, checked and unpacked, one call for all of them.

A run goes through the processor's cache once. Only the native library does this; what it leaves, a caller
reads and checks by itself, and finds out there what is wrong with a run that was refused here.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from edgellm.kernels import _choice
from edgellm.kernels._numpy import strides_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edgellm.kernels._codec import Axis
    from edgellm.kernels._native import NativeKernels

MIN_BYTES: Final = 241
"""Of a run: XXH3 sums shorter ones in other ways, which the library does not know."""

_MAX_MS: Final = 100
"""After which a call comes back between two runs, so that signals are heard on a slow disk."""

_RUN: Final = struct.Struct("=qQ16sQ")
_WHAT: Final = struct.Struct("=2i7Q2q")
"""The two halves of an `EkvRun` of `native/include/edgellm_native.h`: where it lies, what it holds."""

_SUM_BYTES: Final = 16
_PLAIN: Final = _WHAT.pack(*[0] * 11)
_TURNED: Final = 1
_PACKED: Final = {"channels": 2, "tokens": 3}


@dataclass(frozen=True, slots=True)
class PackedRun:
    """What a run holds where some first rows are exact and the others packed; see `unpack_channels`.

    Attributes:
        axis: "channels" (K) or "tokens" (V).
        bits: of a code.
        group: elements that share a scale.
        n_exact: rows that are not packed; they begin where the run does.
        scale: offset of the scales in the run, a multiple of 64, as are the two after it.
        minimum: of the minimums; at 8 bits there are none.
        codes: of the codes, which end where the run does. Zeros fill the gaps.
    """

    axis: Axis
    bits: int
    group: int
    n_exact: int
    scale: int
    minimum: int
    codes: int


class Filling:
    """Runs of one file and the arrays that they fill. Threads may share the work: each calls `do`.

    Attributes:
        is_whole: whether every run that was looked at was what it should be. If not, the arrays hold
            anything.

    Args:
        library: does it.
        fd: of the file, open for reading.
    """

    def __init__(self, library: NativeKernels, fd: int) -> None:
        self.is_whole = True
        self._library = library
        self._fd = fd
        self._table = bytearray()
        self._outs: list[NDArray[Any]] = []  # an address keeps nothing alive
        self._room_bytes = 0
        self._next = ctypes.c_size_t(0)

    def add(
        self,
        offset: int,
        n_bytes: int,
        xxh3: bytes,
        out: NDArray[Any],
        packed: PackedRun | None = None,
    ) -> bool:
        """Take a run on, before the first `do`. Zeros follow it up to a multiple of 64.

        Args:
            offset: of its first byte in the file.
            n_bytes: how many it has.
            xxh3: 16 bytes, their XXH3-128 in canonical form.
            out: shape (tokens, channels), written by `do`. Dtype uint16 where the run is packed, else
                any, with as many bytes as the run has.
            packed: how it is packed; None where it is the rows of `out`, one after the other.

        Returns:
            Whether it can be done here: not a short run, nor one for an array whose elements lie
            neither in rows nor in columns or, as halves, at odd addresses.

        Raises:
            ValueError: `out` is read-only or has another size.
        """
        flags = out.flags
        if not flags.writeable or len(xxh3) != _SUM_BYTES:
            raise ValueError(f"out is read-only, or a sum has {len(xxh3)} bytes")
        if packed is None and out.nbytes != n_bytes:
            raise ValueError(f"out has {out.nbytes} bytes, the run {n_bytes}")
        what: bytes | None = _PLAIN
        if packed is not None or not flags.c_contiguous:
            is_even = out.dtype == np.uint16 and flags.aligned
            what = _matrix(out.shape, out.strides, packed) if is_even else None
        if what is None or n_bytes < MIN_BYTES:
            return False
        if what is not _PLAIN:
            self._room_bytes = max(self._room_bytes, n_bytes)
        self._table += _RUN.pack(offset, n_bytes, xxh3, out.ctypes.data) + what
        self._outs.append(out)
        return True

    def do(self) -> None:
        """Do runs until none is left, or one is not what it should be.

        What is raised here, by a signal too, stops the threads that share the work.
        """
        try:
            room = np.empty(self._room_bytes, np.uint8)
            table = (ctypes.c_char * len(self._table)).from_buffer(self._table)
            work = (self._fd, table, len(self._outs), self._next, room, _MAX_MS)
            while (done := self._library.fill(*work)) is None:
                pass
            if not done:
                self.is_whole = False
        finally:
            self._next.value = len(self._outs)


def filling(fd: int) -> Filling | None:
    """Return an empty filling from a file, or None where nothing here can do it.

    Args:
        fd: of a regular file, open for reading; its own place in it does not matter.

    Raises:
        UsageError: a variable of `edgellm.kernels` has a value that cannot be used.
    """
    library = _choice.native()
    return Filling(library, fd) if library is not None and library.can_fill else None


@functools.lru_cache(maxsize=256)  # the layers of a model have few shapes
def _matrix(
    shape: tuple[int, int], strides: tuple[int, int], packed: PackedRun | None
) -> bytes | None:
    """Return what the library is told of a matrix of halves, or None where it has no name for it."""
    ld = strides_of(shape, strides)
    if ld is None:
        return None
    if packed is None and ld[0] != 1:
        return None  # rows with gaps
    if packed is None:
        return _WHAT.pack(_TURNED, 0, 0, *shape, 0, 0, 0, 0, *ld)
    if packed.n_exact > shape[0]:
        raise ValueError(f"{packed.n_exact} exact rows of {shape[0]}")
    rows = (packed.n_exact, shape[0] - packed.n_exact, shape[1])
    places = (packed.scale, packed.minimum, packed.codes)
    return _WHAT.pack(_PACKED[packed.axis], packed.bits, *rows, packed.group, *places, *ld)
