"""Device profiles: what is known of a kind of machine without having it, read from `devices/*.toml`.

A profile is a prior: it lets a model be planned for another machine, and gives a bandwidth until this
one's was measured. Every field is held against the schema below; a file with one too many is refused.
"""

from __future__ import annotations

import importlib.resources
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from edgellm.errors import UsageError
from edgellm.hw.cpu import CpuShare
from edgellm.hw.gpu import GpuFacts
from edgellm.hw.machine import MachineFacts

if TYPE_CHECKING:
    from collections.abc import Mapping
    from importlib.resources.abc import Traversable

    from edgellm.hw.gpu import GpuKind

Kind = Literal["board", "laptop", "desktop"]

_PLACE: Final = "edgellm.devices"
_SUFFIX: Final = ".toml"
_MAX_FILE_BYTES: Final = 1 << 16
_GIB: Final = 1 << 30
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
    table = _Table(file.name, "", _parsed(file), _TOP)
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


def _gpu(table: _Table, usable: int, *, unified: bool) -> GpuFacts:
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


def _parsed(file: Traversable) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    with file.open("rb") as stream:
        data = stream.read(_MAX_FILE_BYTES + 1)
    if len(data) > _MAX_FILE_BYTES:
        raise UsageError(f"{file.name}: a profile is at most {_MAX_FILE_BYTES} bytes long")
    try:
        return tomllib.loads(data.decode("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as err:
        raise UsageError(f"{file.name}: no TOML: {err}") from err


@dataclass(frozen=True, slots=True)
class _Table:
    """One table of a file, whose keys are known; each getter checks what it returns."""

    file: str
    where: str
    values: Mapping[str, Any]
    known: set[str]

    def __post_init__(self) -> None:
        for key in self.values:
            if key not in self.known:
                raise self._wrong(key, "is unknown")

    def table(self, key: str, known: set[str]) -> _Table:
        value = self._value(key, dict, "must be a table")
        return _Table(self.file, f"{key}.", value, known)

    def text(self, key: str) -> str:
        value: str = self._value(key, str, "must be text")
        if not value.strip():
            raise self._wrong(key, "is empty")
        return value

    def texts(self, key: str) -> list[str]:
        value: list[Any] = self._value(key, list, "must be a list of texts")
        if not all(isinstance(item, str) and item for item in value):
            raise self._wrong(key, "must be a list of texts")
        return value

    def url(self, key: str) -> str:
        value = self.text(key)
        if not re.fullmatch(r"https://[^\s]+", value):
            raise self._wrong(key, "must be an https:// address")
        return value

    def one_of(self, key: str, allowed: tuple[Any, ...]) -> Any:
        value = self.text(key)
        if value not in allowed:
            raise self._wrong(key, f"must be one of {', '.join(allowed)}")
        return value

    def flag(self, key: str) -> bool:
        value: bool = self._value(key, bool, "must be true or false")
        return value

    def number(self, key: str, low: float, high: float) -> float:
        value = self._value(key, (int, float), "must be a number")
        if isinstance(value, bool) or not low <= value <= high:
            raise self._wrong(key, f"must be a number between {low:g} and {high:g}")
        return float(value)

    def gib(self, key: str) -> int:
        return int(self.number(key, 0.25, 4096) * _GIB)

    def _value(self, key: str, kind: type | tuple[type, ...], said: str) -> Any:
        if key not in self.values:
            raise self._wrong(key, "is missing")
        if not isinstance(self.values[key], kind):
            raise self._wrong(key, said)
        return self.values[key]

    def _wrong(self, key: str, what: str) -> UsageError:
        return UsageError(f"{self.file}: {self.where}{key} {what}")
