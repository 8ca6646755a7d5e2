"""The ctypes door to `libedgellm_native`: the one place that knows its C ABI.

The functions behind it trust sizes and strides, so nothing passes here unchecked. ctypes drops the
GIL for the length of a call; kernels are called for a whole layer at once, where its cost vanishes.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

ABI_VERSION: Final = 1
_ITEM_BYTES: Final = 2


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
        except (OSError, AttributeError) as err:
            raise NativeUnavailable(f"{path}: {err}") from err
        self.path = path
        size, stride, pointer = ctypes.c_size_t, ctypes.c_ssize_t, ctypes.c_void_p
        self._isa.restype = ctypes.c_char_p
        self._isa_at.argtypes = [size]
        self._isa_at.restype = ctypes.c_char_p
        self._force_isa.argtypes = [ctypes.c_char_p]
        self._transpose_f16.argtypes = [pointer, size, size, pointer, stride, stride]

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
        if x.strides[1] != _ITEM_BYTES or x.strides[0] < n_channels * _ITEM_BYTES:
            x = np.ascontiguousarray(x)
        status = self._transpose_f16(
            x.ctypes.data,
            n_tokens,
            n_channels,
            out.ctypes.data,
            x.strides[0] // _ITEM_BYTES,
            out.strides[0] // _ITEM_BYTES,
        )
        if status != 0:
            raise AssertionError(f"ekv_transpose_f16 refused {x.shape}, {x.strides}: {status}")


def _text(name: bytes | None) -> str:
    return (name or b"").decode("ascii")
