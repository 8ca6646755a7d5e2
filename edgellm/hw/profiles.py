"""Device profiles: what is known of a kind of machine without having it, read from `devices/*.toml`.

A profile is a prior: it lets a model be planned for another machine, and gives a bandwidth until this
one's was measured. Every field is held against the schema below; a file with one too many is refused.
"""

from __future__ import annotations

import importlib.resources
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from edgellm.errors import UsageError
from edgellm.hw.cpu import CpuShare
from edgellm.hw.gpu import GpuFacts
from edgellm.hw.machine import MachineFacts
from edgellm.hw.profile_fields import Table, parsed

if TYPE_CHECKING:
    from collections.abc import Mapping
    from importlib.resources.abc import Traversable

    from edgellm.hw.gpu import GpuKind

Kind = Literal["board", "laptop", "desktop"]

_PLACE: Final = "edgellm.devices"
_SUFFIX: Final = ".toml"
_TOP: Final = {"name", "kind", "source_url", "verified", "notes", "memory", "cpu", "gpu", "match"}
_MEMORY: Final = {"total_gib", "usable_gib", "usable_evidence", "bandwidth_gb_s", "unified"}
_CPU: Final = {"isa", "n_cpus", "flags"}
_GPU: Final = {"name", "kind", "compute_capability", "memory_gib", "bandwidth_gb_s"}
_MATCH: Final = {"device_tree", "cpu", "gpu"}
_SEEN_LOW: Final = 0.8  # the system shows less than is built in
_SEEN_HIGH: Final = 1.02
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{1,39}")


@dataclass(frozen=True, slots=True)
class Profile:
    """One kind of machine.

    Attributes:
        id: the file's name, which `--device` takes.
        name: for people.
        kind: what it stands on.
        total_bytes: of the host's memory.
        usable_bytes: of it, for a model, on a machine that does nothing else.
        usable_evidence: where that figure comes from.
        bandwidth_gb_s: of the host's memory, in 10^9 bytes a second, by its data sheet.
        unified: whether the GPU shares that memory.
        isa: of the CPU, in words.
        n_cpus: threads worth starting.
        flags: of the CPU as Linux names them, those that kernels ask for.
        gpu: what an engine can use besides, or None.
        source_url: where memory and bandwidth are from.
        verified: whether both were read there; what was computed from a bus's width and clock, or is
            known from elsewhere, is not.
        notes: what else to know, or "".
        match: texts to know such a machine by: of its device tree, its CPU, its GPU.
    """

    id: str
    name: str
    kind: Kind
    total_bytes: int
    usable_bytes: int
    usable_evidence: str
    bandwidth_gb_s: float
    unified: bool
    isa: str
    n_cpus: int
    flags: frozenset[str]
    gpu: GpuFacts | None
    source_url: str
    verified: bool
    notes: str
    match: Mapping[str, str]

    def machine(self) -> MachineFacts:
        """Return such a machine's facts, as a plan takes them."""
        return MachineFacts(
            available_bytes=self.usable_bytes,
            total_bytes=self.total_bytes,
            limited_by="profile",
            share=CpuShare(self.n_cpus, self.n_cpus, None),
            gpus=() if self.gpu is None else (self.gpu,),
            unified=self.unified and self.gpu is not None,
            flags=self.flags,
            bandwidth_gb_s=self.bandwidth_gb_s,
            profile=self.id,
        )


def profile_ids() -> tuple[str, ...]:
    """Return the names of all profiles, in order."""
    files = importlib.resources.files(_PLACE).iterdir()
    return tuple(
        sorted(file.name.removesuffix(_SUFFIX) for file in files if file.name.endswith(_SUFFIX))
    )


def profile(name: str) -> Profile:
    """Return one profile.

    Raises:
        UsageError: there is none of that name, or its file is not what the schema says.
    """
    if name not in profile_ids():
        near = [other for other in profile_ids() if name.lower() in other]
        hint = f"did you mean {', '.join(near[:5])}?" if near else "run `edgellm devices`"
        raise UsageError(f"there is no device profile {name!r}", hint=hint)
    return read_profile(importlib.resources.files(_PLACE) / f"{name}{_SUFFIX}")


def profiles() -> tuple[Profile, ...]:
    """Return all profiles, in the order of their names."""
    return tuple(profile(name) for name in profile_ids())


def recognised(told: Mapping[str, str], total_bytes: int) -> Profile | None:
    """Return the profile of a machine that says these things of itself.

    Args:
        told: of `device_tree`, `cpu` and `gpu`, what is known.
        total_bytes: of its memory; systems show a little less than is built in.
    """
    fitting = [
        found
        for found in profiles()
        if found.match
        and all(text.lower() in told.get(key, "").lower() for key, text in found.match.items())
        and _SEEN_LOW < total_bytes / found.total_bytes < _SEEN_HIGH
    ]
    # `Apple M4` is in `Apple M4 Pro` too: the longer text knows better.
    return max(fitting, key=lambda found: len("".join(found.match.values())), default=None)


def read_profile(file: Traversable) -> Profile:
    """Read one file.

    Raises:
        UsageError: it is no TOML, or a field is missing, unknown, of the wrong type or out of range.
    """
    name = file.name.removesuffix(_SUFFIX)
    table = Table(file.name, "", parsed(file), _TOP)
    if not _NAME.fullmatch(name):
        raise UsageError(f"{file.name}: a profile is named with small letters, digits and hyphens")
    memory, cpu = table.table("memory", _MEMORY), table.table("cpu", _CPU)
    total, usable = memory.gib("total_gib"), memory.gib("usable_gib")
    if usable > total:
        raise UsageError(f"{file.name}: memory.usable_gib is more than memory.total_gib")
    unified = memory.flag("unified")
    gpu = table.table("gpu", _GPU) if "gpu" in table.values else None
    match = table.table("match", _MATCH) if "match" in table.values else None
    return Profile(
        id=name,
        name=table.text("name"),
        kind=table.one_of("kind", ("board", "laptop", "desktop")),
        total_bytes=total,
        usable_bytes=usable,
        usable_evidence=memory.text("usable_evidence"),
        bandwidth_gb_s=memory.number("bandwidth_gb_s", 1, 10_000),
        unified=unified,
        isa=cpu.text("isa"),
        n_cpus=int(cpu.number("n_cpus", 1, 512)),
        flags=frozenset(cpu.texts("flags")),
        gpu=None if gpu is None else _gpu(gpu, usable, unified=unified),
        source_url=table.url("source_url"),
        verified=table.flag("verified"),
        notes=table.text("notes") if "notes" in table.values else "",
        match={} if match is None else {key: match.text(key) for key in match.values},
    )


def _gpu(table: Table, usable: int, *, unified: bool) -> GpuFacts:
    """Return the GPU; with unified memory what it may take is what the model may take."""
    own = None if unified else table.gib("memory_gib")
    given = "compute_capability" in table.values
    kind: GpuKind = table.one_of("kind", ("cuda", "metal"))
    return GpuFacts(
        name=table.text("name"),
        kind=kind,
        total_bytes=own,
        free_bytes=usable if unified else own,
        compute_capability=table.text("compute_capability") if given else "",
        unified=unified,
        bandwidth_gb_s=None if unified else table.number("bandwidth_gb_s", 1, 10_000),
    )
