"""How long an endpoint asks to wait: `retry-after-ms`, or `Retry-After` in seconds or as a date.

No cap here: whoever waits decides how long is too long.
"""

from __future__ import annotations

import math
import time
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def asked_wait_s(headers: Mapping[str, str], now_s: float | None = None) -> float | None:
    """Return the wait in seconds, 0 for a time that is over, or None where nothing readable is asked.

    Args:
        headers: of the answer, named in any case.
        now_s: seconds since 1970 by this machine's clock; the server's own `Date` goes before it.
    """
    named = {name.lower(): value.strip() for name, value in headers.items()}
    in_ms = _number(named.get("retry-after-ms", ""))
    if in_ms is not None:
        return in_ms / 1000
    asked = named.get("retry-after", "")
    in_s = _number(asked)
    if in_s is not None:
        return in_s
    until_s = _date_s(asked)
    if until_s is None:
        return None
    told_s = _date_s(named.get("date", ""))
    return max(0.0, until_s - (told_s or (time.time() if now_s is None else now_s)))


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return max(0.0, value) if math.isfinite(value) else None


def _date_s(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp() if text else None
    except (TypeError, ValueError, IndexError, OverflowError):
        return None
