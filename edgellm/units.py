"""Bytes and rates as people write them: numbers in, text out."""

from __future__ import annotations

from typing import Final

_STEP: Final = 1000


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


def format_rate(n: float, seconds: float, unit: str) -> str:
    """Return `n / seconds` as `12.3 unit/s`, or `-` when no time has passed."""
    return f"{n / seconds:.1f} {unit}/s" if seconds > 0 else "-"
