"""The GPUs there are and the memory they have, asked of the system's own tools: no library is loaded.

On boards and Macs whose GPU shares the host's memory, the driver's own figure for free memory leaves
out page cache, or is not given at all: there the host's MemAvailable counts, once, for both.
"""

from __future__ import annotations

import platform
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

GpuKind = Literal["cuda", "metal"]

_ROOT: Final = Path("/")
_MODEL: Final = "proc/device-tree/model"
_COMPATIBLE: Final = "proc/device-tree/compatible"
_MEMINFO: Final = "proc/meminfo"
_TOOL_S: Final = 5.0
_MIB: Final = 1 << 20
_NVIDIA_FIELDS: Final = "name,memory.total,memory.free,compute_cap,driver_version"
_NVIDIA: Final = (
    "nvidia-smi",
    f"--query-gpu={_NVIDIA_FIELDS}",
    "--format=csv,noheader,nounits",
)
_APPLE: Final = ("/usr/sbin/sysctl", "machdep.cpu.brand_string", "hw.memsize", "iogpu")
_TEGRA: Final = {"tegra194": "7.2", "tegra234": "8.7", "tegra264": "11.0"}
"""Compute capability by chip. Source: https://developer.nvidia.com/cuda-gpus."""
_APPLE_SMALL_BYTES: Final = 36 << 30
_MAX_FILE_BYTES: Final = 1 << 16


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
        bandwidth_gb_s: of its memory, in 10^9 bytes a second; None where it is not known.
        note: what is peculiar about its figures, or "".
    """

    name: str
    kind: GpuKind
    total_bytes: int | None
    free_bytes: int | None
    compute_capability: str = ""
    unified: bool = False
    driver: str = ""
    bandwidth_gb_s: float | None = None
    note: str = ""


def gpus(root: Path = _ROOT, system: str = "") -> tuple[GpuFacts, ...]:
    """Return the GPUs of this machine; none where none can be asked.

    Args:
        root: where `proc` is.
        system: as `platform.system()` has it, "" is this one.
    """
    if (system or platform.system()) == "Darwin":
        return apple_gpus(_output(_APPLE), platform.machine())
    return jetson_gpus(root) or nvidia_gpus(_output(_NVIDIA))


def nvidia_gpus(text: str) -> tuple[GpuFacts, ...]:
    """Return the GPUs in the output of `nvidia-smi`; see `_NVIDIA` for its columns.

    A GPU that says `[N/A]` or `[Not Supported]` of its memory has none of its own, as on GB10.
    """
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != _NVIDIA_FIELDS.count(",") + 1:
            continue
        total, free = _mib(cells[1]), _mib(cells[2])
        unified = total is None
        found.append(
            GpuFacts(
                name=cells[0],
                kind="cuda",
                total_bytes=total,
                free_bytes=None if unified else free,
                compute_capability=cells[3] if re.fullmatch(r"\d+\.\d+", cells[3]) else "",
                unified=unified,
                driver=cells[4],
                note="it shares the host's memory" if unified else "",
            )
        )
    return tuple(found)


def jetson_gpus(root: Path = _ROOT) -> tuple[GpuFacts, ...]:
    """Return the integrated GPU of a Jetson board, by its device tree; none elsewhere.

    What the GPU holds is in `NvMapMemUsed` of /proc/meminfo; it is gone from MemAvailable already.
    """
    chips = _read(root / _COMPATIBLE).split("\0")
    chip = next((name.removeprefix("nvidia,") for name in chips if name[7:] in _TEGRA), "")
    if not chip:
        return ()
    used = re.search(r"^NvMapMemUsed:\s*(\d+) kB", _read(root / _MEMINFO), re.MULTILINE)
    held = f", and holds {int(used.group(1)) >> 10} MiB of it (NvMapMemUsed)" if used else ""
    return (
        GpuFacts(
            name=device_tree(root) or chip,
            kind="cuda",
            total_bytes=None,
            free_bytes=None,
            compute_capability=_TEGRA[chip],
            unified=True,
            note=f"it shares the host's memory{held}",
        ),
    )


def apple_gpus(text: str, machine: str) -> tuple[GpuFacts, ...]:
    """Return the GPU of a Mac with Apple's own chip, from the output of `sysctl`; none otherwise.

    Metal hands out two thirds of the memory, three quarters on larger machines, unless
    `iogpu.wired_limit_mb` says otherwise.
    """
    values = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    memory = _whole(values.get("hw.memsize", ""))
    if machine != "arm64" or not memory:
        return ()
    limit = _whole(values.get("iogpu.wired_limit_mb", "")) or 0
    share = memory * 2 // 3 if memory <= _APPLE_SMALL_BYTES else memory * 3 // 4
    return (
        GpuFacts(
            name=values.get("machdep.cpu.brand_string", "Apple GPU").strip(),
            kind="metal",
            total_bytes=limit * _MIB or share,
            free_bytes=limit * _MIB or share,
            unified=True,
            note="iogpu.wired_limit_mb is set" if limit else "by Metal's usual share of the memory",
        ),
    )


def device_tree(root: Path = _ROOT) -> str:
    """Return what a board calls itself, "" on machines without a device tree."""
    return _read(root / _MODEL).rstrip("\0").strip()


def _mib(text: str) -> int | None:
    number = _whole(text)
    return None if number is None else number * _MIB


def _whole(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


def _output(command: Sequence[str]) -> str:
    """Return what a tool prints, "" where it is not there, fails or hangs."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TOOL_S, check=False, errors="replace"
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_FILE_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
