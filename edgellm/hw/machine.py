"""What this machine can give to a model, as one value: memory and who limits it, GPUs, CPUs, bandwidth."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from edgellm.hw.bandwidth import cpu_name, remembered
from edgellm.hw.builds import engine_folder, gpu_kinds, has_gpu_code
from edgellm.hw.cpu import cpu_share
from edgellm.hw.flags import cpu_flags
from edgellm.hw.gpu import device_tree, gpus
from edgellm.hw.memory import host_total_bytes, memory_facts

if TYPE_CHECKING:
    from edgellm.hw.cpu import CpuShare
    from edgellm.hw.gpu import GpuFacts
    from edgellm.hw.profiles import Profile

LimitedBy = Literal["host", "cgroup", "rlimit", "profile"]

_ROOT: Final = Path("/")


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
        may_offload: whether it has code for GPUs, which may be there though no tool told of them.
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
    may_offload: bool = False


def machine(root: Path = _ROOT, *, with_profile: bool = False) -> MachineFacts:
    """Return the facts of this machine, as of now.

    Bandwidth is what was measured here, else what the profile of such a machine says, else unknown.

    Args:
        root: where `proc` is.
        with_profile: look for one, which reads them all and no fit needs.
    """
    memory = memory_facts()
    there = gpus(root)
    engine = engine_folder()
    kinds = gpu_kinds(engine)
    usable = tuple(gpu for gpu in there if gpu.kind in kinds)
    profile = _profile(root, there) if with_profile else None
    prior = None if profile is None else profile.bandwidth_gb_s
    return MachineFacts(
        available_bytes=memory.available_bytes,
        total_bytes=memory.total_bytes,
        limited_by=memory.limited_by,
        share=cpu_share(),
        gpus=usable,
        unified=any(gpu.unified for gpu in usable),
        flags=cpu_flags(root / "proc/cpuinfo"),
        bandwidth_gb_s=remembered() or prior,
        profile=None if profile is None else profile.id,
        idle_gpus=tuple(gpu for gpu in there if gpu.kind not in kinds),
        may_offload=has_gpu_code(engine),
    )


def _profile(root: Path, there: tuple[GpuFacts, ...]) -> Profile | None:
    from edgellm.hw.profiles import recognised  # it makes these facts as well

    told = {
        "device_tree": device_tree(root),
        "cpu": cpu_name(root / "proc/cpuinfo"),
        "gpu": there[0].name if there else "",
    }
    return recognised(told, host_total_bytes())
