"""Takes values off the front of the engine's state bytes; running out of them is an error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from edgellm.errors import SnapshotIncompatible
from edgellm.ggml_types import TYPES_BY_ID
from edgellm.store.state import ELEMENT_BYTES

if TYPE_CHECKING:
    import struct

    from numpy.typing import NDArray

_DTYPES: Final[dict[int, type[np.unsignedinteger[Any]]]] = {2: np.uint16, 4: np.uint32}


class Reader:
    """A place in a blob that only moves forward.

    Args:
        blob: shape (n_bytes,).
    """

    def __init__(self, blob: NDArray[np.uint8]) -> None:
        self._blob = blob
        self.at = 0

    @property
    def n_left(self) -> int:
        """Return how many bytes were not taken yet."""
        return int(self._blob.size) - self.at

    def bytes(self, n: int) -> NDArray[np.uint8]:
        """Take `n` bytes, as a view.

        Raises:
            SnapshotIncompatible: there are fewer.
        """
        if not 0 <= n <= self.n_left:
            raise SnapshotIncompatible(
                f"the engine's state ends at byte {self._blob.size}, {n} more expected at {self.at}"
            )
        self.at += n
        return self._blob[self.at - n : self.at]

    def unpack(self, form: struct.Struct) -> tuple[int, ...]:
        """Take the whole numbers of `form`."""
        return form.unpack(self.bytes(form.size).tobytes())

    def u32(self) -> int:
        """Take one number."""
        return int.from_bytes(self.bytes(4).tobytes(), "little")

    def peek_u32(self) -> int | None:
        """Return the next number without taking it, None at the end."""
        if self.n_left < 4:  # its bytes
            return None
        return int.from_bytes(self._blob[self.at : self.at + 4].tobytes(), "little")


def type_name(type_id: int) -> str:
    """Return ggml's name of an element type.

    Raises:
        SnapshotIncompatible: there is no such type.
    """
    known = TYPES_BY_ID.get(type_id)
    if known is None:
        raise SnapshotIncompatible(f"KV type {type_id} is not known")
    return known.name


def dtype_of(name: str) -> type[np.unsignedinteger[Any]]:
    """Return what rows of a type are made of: raw elements, or bytes for types of blocks."""
    return _DTYPES.get(ELEMENT_BYTES.get(name, 1), np.uint8)


def as_elements(data: NDArray[np.uint8], name: str) -> NDArray[Any]:
    """View rows of bytes as rows of a type's elements; bytes at an odd address are copied.

    Raises:
        SnapshotIncompatible: a row does not hold whole elements.
    """
    dtype = np.dtype(dtype_of(name))
    if data.shape[1] % dtype.itemsize:
        raise SnapshotIncompatible(f"rows of {data.shape[1]} bytes do not hold {name} values")
    if data.ctypes.data % dtype.itemsize:
        data = data.copy()
    return data.view(dtype)
