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
_BYTES: Final = re.compile(r"\s*([0-9]{1,18})(?:\.([0-9]{1,9}))?\s*([a-zA-Z]*)\s*")
_STEP: Final = 1000
_MAX_DECIMALS: Final = 9


def format_bytes(n_bytes: int) -> str:
    """Return `n_bytes` in decimal units with one decimal, such as `91.7 MB`."""
    if n_bytes < _STEP:
        return f"{n_bytes} B"
    value = float(n_bytes)
    for unit in ("kB", "MB", "GB"):
        value /= _STEP
        if round(value, 1) < _STEP:
            return f"{value:.1f} {unit}"
    return f"{value / _STEP:.1f} TB"


def parse_bytes(text: str) -> int:
    """Read `500MB`, `2GiB`, `64k` or a bare number of bytes.

    Raises:
        UsageError: the text is not a number with a known unit.
    """
    match = _BYTES.fullmatch(text)
    factor = _FACTORS.get(match.group(3).lower()) if match else None
    if match is None or factor is None:
        known = ", ".join(unit for unit in _FACTORS if unit)
        raise UsageError(
            f"{text!r} is not a size in bytes", hint=f"use a number and one of {known}"
        )
    # Whole numbers throughout: a float loses bits above 2**53.
    billionths = int(match.group(1) + (match.group(2) or "").ljust(_MAX_DECIMALS, "0"))
    return billionths * factor // 10**_MAX_DECIMALS


def format_rate(n: float, seconds: float, unit: str) -> str:
    """Return `n / seconds` as `12.3 unit/s`, or `-` when no time has passed."""
    return f"{n / seconds:.1f} {unit}/s" if seconds > 0 else "-"
