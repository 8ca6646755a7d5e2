"""Bytes and rates as people write them: numbers in, text out."""

from __future__ import annotations

import re
from typing import Final

_STEP: Final = 1000
_UNITS: Final = ("b", "kb", "mb", "gb", "tb")
_AMOUNT: Final = re.compile(
    r"\s*([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([kmgt](?:i?b)?|b)?\s*", re.IGNORECASE
)


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
    """Return the number of bytes that people write as `20GB`, `1.5 MiB`, `800k` or `4096`.

    Raises:
        ValueError: it is none of these.
    """
    match = _AMOUNT.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no number of bytes")
    number, unit = match.group(1), (match.group(2) or "b").lower()
    step = 1024 if "i" in unit else _STEP
    power = _UNITS.index(unit.replace("i", "").removesuffix("b") + "b")
    return int(float(number) * step**power) if "." in number else int(number) * step**power


def format_rate(n: float, seconds: float, unit: str) -> str:
    """Return `n / seconds` as `12.3 unit/s`, or `-` when no time has passed."""
    return f"{n / seconds:.1f} {unit}/s" if seconds > 0 else "-"
