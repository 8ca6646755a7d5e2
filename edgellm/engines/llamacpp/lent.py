"""Memory for a state's bytes, lent again and again: fresh memory costs more than what is put there.

A state is as large as what the engine keeps of a prompt, and the system clears each page of fresh memory
when it is first written to; on a virtual machine its host may do so once more. That took up to twice as
long as reading, checking and handing over the state. So the last piece is kept, and whoever comes
next writes over it. It is marked as free for the system to take back as soon as nobody has it (`MADV_FREE`):
who needs memory gets it, and what was kept is then fresh memory like any other.
Invariant: one piece is never lent twice at a time; it comes back when the last view of it is gone.
"""

from __future__ import annotations

import contextlib
import mmap
import weakref
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

MIN_BYTES: Final = 32 << 20
"""Of a state worth a mapping of its own: smaller pieces the allocator keeps itself (glibc's
`DEFAULT_MMAP_THRESHOLD_MAX`), and at less cost."""

MAX_KEPT_BYTES: Final = 256 << 20
"""Of a piece that is kept. Until the system wants it back it counts as this process's memory, which a
user who looks for the cause of a full machine should not find here."""

_FREE: Final[int | None] = getattr(mmap, "MADV_FREE", None)
_HUGE: Final[int | None] = getattr(mmap, "MADV_HUGEPAGE", None)


class Lender:
    """Lends memory, and keeps the last piece that came back."""

    def __init__(self) -> None:
        self._kept: list[mmap.mmap] = []

    @property
    def n_kept_bytes(self) -> int:
        """Return how much is kept for the next one."""
        return sum(len(memory) for memory in self._kept)

    def lend(self, n_bytes: int) -> NDArray[np.uint8]:
        """Return memory that holds anything, shape (n_bytes,).

        Raises:
            MemoryError: there is not enough.
        """
        if _FREE is None or not MIN_BYTES <= n_bytes <= MAX_KEPT_BYTES:
            return np.empty(n_bytes, np.uint8)
        memory = self._taken(n_bytes) or _mapped(n_bytes)
        lent = np.frombuffer(memory, np.uint8, n_bytes)  # what is a view of it keeps it alive
        weakref.finalize(lent, self._take_back, memory).atexit = False
        return lent

    def _taken(self, n_bytes: int) -> mmap.mmap | None:
        """Return what is kept, if it is large enough; else it goes, so that the larger one stays."""
        try:
            memory = self._kept.pop()  # at once: another thread may ask as well
        except IndexError:
            return None
        return memory if len(memory) >= n_bytes else None

    def _take_back(self, memory: mmap.mmap) -> None:
        if not self._kept and _FREE is not None:
            with contextlib.suppress(OSError):  # without it, nothing may be kept
                memory.madvise(_FREE)
                self._kept.append(memory)


def _mapped(n_bytes: int) -> mmap.mmap:
    """Return fresh memory in large pages where there are any: one clearing for 512 small ones."""
    try:
        memory = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as err:
        raise MemoryError(f"no {n_bytes} bytes for a state") from err
    if _HUGE is not None:
        with contextlib.suppress(OSError):  # a system may be built without them
            memory.madvise(_HUGE)
    return memory


STATES: Final = Lender()
"""Of this process: however many engines it has, one piece is kept."""
