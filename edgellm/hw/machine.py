"""What this machine can give to a model, as one value: memory and who limits it, GPUs, CPUs, bandwidth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from edgellm.hw.cpu import cpu_share
from edgellm.hw.gpu import gpus
from edgellm.hw.memory import available_bytes

if TYPE_CHECKING:
    from edgellm.hw.cpu import CpuShare
    from edgellm.hw.gpu import GpuFacts

LimitedBy = Literal["host", "cgroup", "rlimit", "profile"]


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """What a plan needs to know of a machine.

    Attributes:
        available_bytes: that a process may still take of the host's memory.
        total_bytes: of the host's memory, or of what limits it.
        limited_by: what `available_bytes` comes from.
        share: CPUs and threads.
        gpus: that the installed engine can use.
        idle_gpus: that it cannot.
        unified: whether host and GPUs share one memory, which is then counted once.
        flags: the CPU's features as Linux names them; empty where they are not known.
        bandwidth_gb_s: of the memory, in 10^9 bytes a second; None where it is not known.
        profile: name of the device profile these facts come from, or None.
    """

    available_bytes: int
    total_bytes: int
    limited_by: LimitedBy
    share: CpuShare
    gpus: tuple[GpuFacts, ...] = ()
    unified: bool = False
    flags: frozenset[str] = frozenset()
    bandwidth_gb_s: float | None = None
    profile: str | None = None
    idle_gpus: tuple[GpuFacts, ...] = ()


def machine() -> MachineFacts:
    """Return the facts of this machine, as of now."""
    import psutil

    return MachineFacts(
        available_bytes=available_bytes(),
        total_bytes=int(psutil.virtual_memory().total),
        limited_by="host",
        share=cpu_share(),
        gpus=gpus(),
    )
