"""Fresh memory for a whole state, in large pages where the system has them."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LARGE_BYTES: Final = 4 << 20


def fresh_bytes(n_bytes: int) -> NDArray[np.uint8]:
    """Return writable memory, shape (n_bytes,), of any content.

    The first write to each page of fresh memory is a fault into the kernel. With pages of 4 KiB these
    faults take longer than the copy itself.
    """
    if n_bytes < _LARGE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.empty(n_bytes, np.uint8)
    pages = mmap.mmap(-1, n_bytes)
    pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.uint8)
