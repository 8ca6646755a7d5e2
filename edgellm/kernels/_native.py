"""The ctypes door to `libedgellm_native`: the one place that knows its C ABI.

The functions behind it trust sizes and strides, so nothing passes here unchecked. ctypes drops the
GIL for the length of a call; kernels are called for a whole layer at once, where its cost vanishes.
"""

from __future__ import annotations

import ctypes
import errno
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from edgellm.kernels._numpy import rows_follow, strides_of

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

ABI_VERSION: Final = 4
CASTS: Final = ("f32_f16", "f16_f32", "f32_bf16", "bf16_f32", "bf16_f16")
_ITEM_BYTES: Final = 2
_Element = TypeVar("_Element", bound=np.generic)


class NativeUnavailable(Exception):
    """The library is not there, cannot be loaded, or speaks another ABI."""


class NativeKernels:
    """One loaded library. Its choice of row is one for the whole process."""

    def __init__(self, path: Path) -> None:
        """Load the library at `path`.

        Raises:
            NativeUnavailable: it is missing, broken, or of another ABI version.
        """
        if not path.is_file():
            raise NativeUnavailable(f"{path}: no such file")
        try:
            lib = ctypes.CDLL(str(path))
            version = int(lib.ekv_abi_version())
            if version != ABI_VERSION:
                raise NativeUnavailable(f"{path}: ABI version {version}, needed {ABI_VERSION}")
            self._isa = lib.ekv_isa
            self._isa_at = lib.ekv_isa_at
            self._force_isa = lib.ekv_force_isa
            self._transpose_f16 = lib.ekv_transpose_f16
            self._pack = (lib.ekv_pack_chan, lib.ekv_pack_tok)
            self._unpack = (lib.ekv_unpack_chan, lib.ekv_unpack_tok)
            self._fill = getattr(lib, "ekv_fill", None)  # not on Windows
            self._casts = {name: getattr(lib, f"ekv_cast_{name}") for name in CASTS}
        except (OSError, AttributeError) as err:
            raise NativeUnavailable(f"{path}: {err}") from err
        self.path = path
        size, stride, pointer = ctypes.c_size_t, ctypes.c_ssize_t, ctypes.c_void_p
        self._isa.restype = ctypes.c_char_p
        self._isa_at.argtypes = [size]
        self._isa_at.restype = ctypes.c_char_p
        self._force_isa.argtypes = [ctypes.c_char_p]
        self._transpose_f16.argtypes = [pointer, size, size, pointer, stride, stride]
        counts, packed = [size, size, ctypes.c_int, size], [pointer, pointer, pointer]
        for pack in self._pack:
            pack.argtypes = [pointer, stride, *counts, *packed]
        for unpack in self._unpack:
            unpack.argtypes = [*packed, *counts, pointer, stride, stride]
        if self._fill is not None:
            number = ctypes.c_int
            self._fill.argtypes = [number, pointer, size, pointer, pointer, size, number]
        for cast in self._casts.values():
            cast.argtypes = [pointer, size, pointer]

    def isa(self) -> str:
        """Name the row in use."""
        return _text(self._isa())

    def isas(self) -> tuple[str, ...]:
        """Name the rows that can run here, best first."""
        names: list[str] = []
        while (name := self._isa_at(len(names))) is not None:
            names.append(_text(name))
        return tuple(names)

    def force_isa(self, name: str) -> bool:
        """Use one row in every thread from now on, or the default for ""; False if it cannot run."""
        return int(self._force_isa(name.encode())) == 0

    def transpose_f16(self, x: NDArray[np.uint16], out: NDArray[np.uint16]) -> None:
        """Write `out[c, t] = x[t, c]`; both passed `_numpy.check_transpose`."""
        if x.size == 0:
            return
        n_tokens, n_channels = x.shape
        x_is_transposed = x.strides[0] == _ITEM_BYTES
        if min(x.shape) == 1 or x_is_transposed or not (x.flags.aligned and out.flags.aligned):
            # Nothing but a copy, or what C may not touch: uint16_t at an odd address.
            np.copyto(out, x.T)
            return
        if not rows_follow(x):
            x = np.ascontiguousarray(x)
        _call(
            self._transpose_f16,
            x.ctypes.data,
            n_tokens,
            n_channels,
            out.ctypes.data,
            x.strides[0] // _ITEM_BYTES,
            out.strides[0] // _ITEM_BYTES,
        )

    def pack(
        self,
        x: NDArray[np.uint16],
        axis: int,
        bits: int,
        group: int,
        codes: NDArray[np.uint8],
        scale: NDArray[np.uint16],
        minimum: NDArray[np.uint16] | None,
    ) -> None:
        """Fill new arrays of the shapes that `packed_shapes` gave; groups of at most the longer side."""
        if x.size == 0:
            return
        if not x.flags.aligned or not rows_follow(x):
            # A transposed layout is turned by the kernel, any other by numpy.
            rows = np.empty(x.shape, np.uint16)
            self.transpose_f16(x.T, rows)
            x = rows
        _call(
            self._pack[axis],
            x.ctypes.data,
            _strides(x)[0],
            *x.shape,
            bits,
            group,
            codes.ctypes.data,
            scale.ctypes.data,
            _address(minimum),
        )

    def unpack(
        self,
        codes: NDArray[np.uint8],
        scale: NDArray[np.uint16],
        minimum: NDArray[np.uint16] | None,
        axis: int,
        bits: int,
        group: int,
        out: NDArray[np.uint16],
    ) -> None:
        """Write into `out`, whose rows or columns follow one another; all were checked."""
        if out.size == 0:
            return
        if not out.flags.aligned:
            rows = np.empty(out.shape, np.uint16)
            self.unpack(codes, scale, minimum, axis, bits, group, rows)
            np.copyto(out, rows)
            return
        codes, scale = _dense(codes), _dense(scale)
        minimum = None if minimum is None else _dense(minimum)
        _call(
            self._unpack[axis],
            codes.ctypes.data,
            scale.ctypes.data,
            _address(minimum),
            *out.shape,
            bits,
            group,
            out.ctypes.data,
            *_strides(out),
        )

    @property
    def can_fill(self) -> bool:
        """Say whether there is `fill`."""
        return self._fill is not None

    def fill(
        self,
        fd: int,
        runs: ctypes.Array[ctypes.c_char],
        n_runs: int,
        taken: ctypes.c_size_t,
        room: NDArray[np.uint8],
        max_ms: int,
    ) -> bool | None:
        """Do runs that nobody has taken.

        Args:
            fd: of the file.
            runs: `EkvRun`s, whose outputs were checked.
            n_runs: how many.
            taken: how many of them somebody has taken.
            room: shape (n,); as many bytes as the longest run that is not plain.
            max_ms: after which no run is begun.

        Returns:
            None if some may be left, False if one is not what it should be, else True.
        """
        if self._fill is None:
            raise AssertionError("asked for what is not there")
        arguments = (ctypes.byref(taken), room.ctypes.data, room.size, max_ms)
        status = self._fill(fd, runs, n_runs, *arguments)
        if status not in (0, 1, -errno.EBADMSG):
            raise AssertionError(f"{self._fill.__name__} refused one of {n_runs} runs: {status}")
        return None if status == 1 else status == 0

    def cast(self, name: str, x: NDArray[Any], out: NDArray[Any]) -> None:
        """Cast all of `x` into `out`, which is C-contiguous and of the same shape."""
        if x.size == 0:
            return
        if not out.flags.aligned:
            aligned = np.empty(out.shape, out.dtype)
            self.cast(name, x, aligned)
            np.copyto(out, aligned)
            return
        x = _dense(x)  # the name keeps a copy alive: an address does not
        _call(self._casts[name], x.ctypes.data, x.size, out.ctypes.data)


def _call(function: Any, *arguments: Any) -> None:
    status = function(*arguments)
    if status != 0:
        raise AssertionError(f"{function.__name__} refused {arguments}: {status}")


def _dense(array: NDArray[_Element]) -> NDArray[_Element]:
    """Give the array itself where C may read it as it lies, else a copy."""
    if array.flags.c_contiguous and array.flags.aligned:
        return array
    return np.require(array, requirements=("C_CONTIGUOUS", "ALIGNED"))


def _address(array: NDArray[np.uint16] | None) -> int | None:
    return None if array is None else array.ctypes.data


def _strides(array: NDArray[np.uint16]) -> tuple[int, int]:
    """Give the elements from token to token and from channel to channel of what was checked."""
    found = strides_of(array.shape, array.strides)
    if found is None:
        raise AssertionError(f"strides {array.strides} of shape {array.shape}")
    return found


def _text(name: bytes | None) -> str:
    return (name or b"").decode("ascii")
