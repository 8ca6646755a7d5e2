"""What this CPU can do, as Linux names it, and what the engine's kernels need of it.

Empty flags mean that nobody told them; then nothing is called slow or missing. The tables are ggml's of
llama.cpp 0c1e57098: `ggml_vec_dot_*` of ggml-cpu/arch/{x86,arm}/quants.c, arch-fallback.h and vec.cpp
for the types, `ggml_cpu_has_*` of ggml-cpu.c for what a build takes for granted.
"""

from __future__ import annotations

import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_CPUINFO: Final = Path("/proc/cpuinfo")
_MAX_CPUINFO_BYTES: Final = 8 << 20  # a thousand CPUs of some kilobytes each
_LINES: Final = ("flags", "Features")  # x86, ARM
_VENDOR: Final = "vendor_id"
_NO_KERNEL: Final = ""
_X86_NEEDS: Final[Mapping[str, str]] = {
    "q1_0": "ssse3",
    "q4_0": "ssse3",
    "tq1_0": "avx2",
    "tq2_0": "avx2",
    "f16": "f16c",
    "f32": "sse2",
    "q2_0": _NO_KERNEL,
    **dict.fromkeys(
        (
            *("q4_1", "q5_0", "q5_1", "q8_0", "q2_K", "q3_K", "q4_K", "q5_K", "q6_K"),
            *("iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq1_s", "iq1_m"),
            *("iq4_nl", "iq4_xs", "mxfp4", "nvfp4", "bf16"),
        ),
        "avx",
    ),
}
_ARM_NEEDS: Final[Mapping[str, str]] = {
    **dict.fromkeys(_X86_NEEDS, "asimd"),
    "bf16": _NO_KERNEL,
}
_BUILD_NEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    "sse3": ("pni",),
    "avx512": ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
    "avx512_vbmi": ("avx512vbmi",),
    "neon": ("asimd",),
    "dotprod": ("asimddp",),
    "matmul_int8": ("i8mm",),
    "fp16_va": ("asimdhp",),
    **{
        name: (name,)
        for name in (
            *("ssse3", "avx", "avx2", "avx_vnni", "avx512_vnni", "avx512_bf16", "amx_int8"),
            *("bmi2", "fma", "f16c", "sve", "sme", "sme2"),
        )
    },
}
BUILD_FEATURES: Final = tuple(_BUILD_NEEDS)
"""What can be asked of a build of ggml, as the ends of its `ggml_cpu_has_*` functions."""
_SYSCTL_NAMES: Final[Mapping[str, str]] = {
    "hw.optional.AdvSIMD": "asimd",
    "hw.optional.arm.FEAT_DotProd": "asimddp",
    "hw.optional.arm.FEAT_I8MM": "i8mm",
    "hw.optional.arm.FEAT_FP16": "asimdhp",
    "hw.optional.arm.FEAT_BF16": "bf16",
    "hw.optional.arm.FEAT_AES": "aes",
    "hw.optional.arm.FEAT_SME": "sme",
    "hw.optional.arm.FEAT_SME2": "sme2",
    "hw.optional.avx1_0": "avx",
    "hw.optional.avx2_0": "avx2",
    "hw.optional.avx512f": "avx512f",
    "hw.optional.bmi2": "bmi2",
    "hw.optional.f16c": "f16c",
    "hw.optional.fma": "fma",
    "hw.optional.sse3": "pni",
    "hw.optional.supplementalsse3": "ssse3",
}
_SYSCTL_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class ListedCpus:
    """What the kernel's list of CPUs says, in Linux' words; empty is what nobody tells.

    Attributes:
        vendor: who made the first one.
        flags: what every one can do; cores that differ count with what all have.
    """

    vendor: str
    flags: frozenset[str]


def listed_cpus(cpuinfo: Path = _CPUINFO) -> ListedCpus:
    """Read the kernel's list, which is long on machines of many CPUs, once."""
    vendor = ""
    found: frozenset[str] | None = None
    for name, value in _cpuinfo(cpuinfo):
        if name in _LINES:
            flags = frozenset(value.split())
            found = flags if found is None else found & flags
        elif name == _VENDOR:
            vendor = vendor or value
    return ListedCpus(vendor, found or frozenset())


def cpu_flags(cpuinfo: Path = _CPUINFO, system: str = "") -> frozenset[str]:
    """Return what every CPU here can do, in Linux' names; empty where nobody tells.

    Args:
        cpuinfo: the kernel's list.
        system: as `platform.system()` has it, "" is this one.
    """
    if (system or platform.system()) == "Darwin":
        return sysctl_flags(_sysctl())
    return listed_cpus(cpuinfo).flags


def _cpuinfo(path: Path) -> Iterator[tuple[str, str]]:
    """Give the lines of the kernel's list as names and values; none where there is no list."""
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_CPUINFO_BYTES).decode("ascii", "replace")
    except OSError:
        return
    for line in text.splitlines():
        name, _, value = line.partition(":")
        yield name.strip(), value.strip()


def sysctl_flags(text: str) -> frozenset[str]:
    """Return the same from the output of `sysctl hw.optional` on macOS."""
    pairs = (line.partition(":") for line in text.splitlines())
    return frozenset(
        _SYSCTL_NAMES[name.strip()]
        for name, _, value in pairs
        if value.strip() == "1" and name.strip() in _SYSCTL_NAMES
    )


def slow_types(types: Iterable[str], flags: frozenset[str]) -> tuple[str, ...]:
    """Return those of some types of weights that are computed by plain C here, in their order."""
    if not flags:
        return ()
    needs = _ARM_NEEDS if is_arm(flags) else _X86_NEEDS
    return tuple(name for name in types if name in needs and needs[name] not in flags)


def missing_flags(build: Iterable[str], flags: frozenset[str]) -> tuple[str, ...]:
    """Return what a build of the engine takes for granted and this CPU lacks.

    Args:
        build: ends of the `ggml_cpu_has_*` functions that return 1.
        flags: of the CPU.
    """
    if not flags:
        return ()
    needed = [flag for name in build for flag in _BUILD_NEEDS.get(name, ())]
    return tuple(flag for flag in needed if flag not in flags)


def is_arm(flags: frozenset[str]) -> bool:
    """Return whether flags are those of an ARM CPU."""
    return bool(flags & {"asimd", "neon"})


def _sysctl() -> str:
    try:
        done = subprocess.run(
            ["/usr/sbin/sysctl", "hw.optional"],
            capture_output=True,
            text=True,
            timeout=_SYSCTL_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout
