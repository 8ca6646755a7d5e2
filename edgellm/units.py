"""Bytes and rates as people write them; numbers in, text out, and back."""

from __future__ import annotations

import re
from typing import Final

from edgellm.errors import UsageError

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30

_FACTORS: Final = {
    "": 1,
    "b": 1,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "k": KIB,
    "m": MIB,
    "g": GIB,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
}
_BYTES: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")
_STEP: Final = 1000


def format_bytes(n_bytes: int) -> str:
    """Return `n_bytes` in decimal units with one decimal, such as `91.7 MB`."""
    if n_bytes < _STEP:
        return f"{n_bytes} B"
    value = float(n_bytes)
    for unit in ("kB", "MB", "GB", "TB"):
        value /= _STEP
        if value < _STEP or unit == "TB":
            return f"{value:.1f} {unit}"
    raise AssertionError  # the loop always returns at TB


def parse_bytes(text: str) -> int:
    """Read `500MB`, `2GiB`, `64k` or a bare number of bytes.

    Raises:
        UsageError: the text is not a number with a known unit.
    """
    match = _BYTES.fullmatch(text)
    factor = _FACTORS.get(match.group(2).lower()) if match else None
    if match is None or factor is None:
        known = ", ".join(unit for unit in _FACTORS if unit)
        raise UsageError(
            f"{text!r} is not a size in bytes", hint=f"use a number and one of {known}"
        )
    return int(float(match.group(1)) * factor)


def format_rate(n: float, seconds: float, unit: str) -> str:
    """Return `n / seconds` as `12.3 unit/s`, or `-` when no time has passed."""
    return f"{n / seconds:.1f} {unit}/s" if seconds > 0 else "-"
