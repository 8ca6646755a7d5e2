"""How much time was lost waiting for memory, as the kernel's pressure stall information tells it.

A service manager may name the file to look at in `$MEMORY_PRESSURE_WATCH`; /dev/null there means that
nobody is to look.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

WATCH_VARIABLE: Final = "MEMORY_PRESSURE_WATCH"
_MACHINE: Final = Path("/proc/pressure/memory")
_MAX_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class Pressure:
    """Shares of time lost to memory, in percent over the last ten seconds.

    Attributes:
        some_avg10: at least one task waited.
        full_avg10: all tasks waited at once: nothing was done.
    """

    some_avg10: float
    full_avg10: float


def pressure_file(
    environ: Mapping[str, str] | None = None, machine: Path = _MACHINE
) -> Path | None:
    """Return the file to read pressure from, or None when nobody is to look.

    Args:
        environ: variables; None takes this process's.
        machine: the file of the whole machine, where no other is named.

    Source: systemd.io/MEMORY_PRESSURE; a FIFO or socket named there carries no figures, so that the
    machine's are read instead.
    """
    named = (os.environ if environ is None else environ).get(WATCH_VARIABLE, "")
    if not named:
        return machine
    if named == os.devnull:
        return None
    path = Path(named)
    return path if path.is_absolute() and path.is_file() else machine


def read_pressure(path: Path | None) -> Pressure | None:
    """Read one pressure file; None where there is none or its lines make no sense.

    Source: `some avg10=0.00 avg60=0.00 avg300=0.00 total=0`, Linux accounting/psi.rst.
    """
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES).decode("ascii", "replace")
    except OSError:  # a kernel without it answers EOPNOTSUPP when it is read
        return None
    found = {line.partition(" ")[0]: _avg10(line) for line in text.splitlines()}
    some, full = found.get("some"), found.get("full")
    return None if some is None or full is None else Pressure(some, full)


def _avg10(line: str) -> float | None:
    for part in line.split():
        name, _, value = part.partition("=")
        if name == "avg10" and value.isascii() and value.replace(".", "", 1).isdigit():
            return float(value)
    return None
