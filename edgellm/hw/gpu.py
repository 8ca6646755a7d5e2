"""The GPUs there are and the memory they have, asked of the system's own tools: no library is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

GpuKind = Literal["cuda", "metal"]


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One GPU; None where it was not told.

    Attributes:
        name: as the driver calls it.
        kind: how an engine speaks to it.
        total_bytes: of its memory.
        free_bytes: of its memory, now.
        compute_capability: such as `8.9`, or "".
        unified: whether its memory is the host's own, which is then counted once.
        driver: version of the driver, or "".
    """

    name: str
    kind: GpuKind
    total_bytes: int | None
    free_bytes: int | None
    compute_capability: str = ""
    unified: bool = False
    driver: str = ""


def gpus() -> tuple[GpuFacts, ...]:
    """Return the GPUs of this machine; none where none can be asked."""
    return ()
