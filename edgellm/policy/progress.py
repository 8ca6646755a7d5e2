"""Is an answer getting on? Pure: the times of what came, the pressure of memory, and a word for it.

A model whose weights do not fit is not refused and does not fail: each token is read from the disk again,
a hundred times slower. So each answer is held against its own best speed, and against silence.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

Pace = Literal["fine", "slow", "stalled"]

FULL_PRESSURE_PERCENT: Final = 20.0
SLOW_FRACTION: Final = 0.25
"""A speed below this part of its own baseline, for `SLOW_FOR_S`, is slow."""

SLOW_FOR_S: Final = 5.0
BASELINE_TOKENS: Final = 8
"""So many tokens make a baseline; the first ones of an answer come in bursts."""

MIN_GAP_S: Final = 0.005
"""No baseline is quicker: tokens that waited for their reader come all at once."""

FIRST_SIGN_S: Final = 600.0
"""The longest silence before anything came: a large model on a slow disk loads and reads for minutes."""

STALL_FACTOR: Final = 20.0
MIN_STALL_S: Final = 60.0
"""Silence of so many times the longest gap so far, and at least so long, is a stall."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What came of one answer so far. Times are of one monotonic clock, in seconds.

    Attributes:
        started_s: when the work began.
        last_sign_s: when the last sign of life came: a token, or a chunk of the prompt read.
        longest_gap_s: the longest silence between two signs; 0 before there were two.
        n_tokens: tokens of the answer so far.
        slow_since_s: since when tokens have come slowly, None while they do not.
        baseline_gap_s: time a token at the best speed seen, None before there is one.
        window_s: when the token came that began the present measurement, None before the first.
        n_window: how many tokens there were then.
    """

    started_s: float
    last_sign_s: float
    longest_gap_s: float = 0.0
    n_tokens: int = 0
    slow_since_s: float | None = None
    baseline_gap_s: float | None = None
    window_s: float | None = None
    n_window: int = 0

    @classmethod
    def begin(cls, now_s: float) -> Progress:
        """Return the state of an answer of which nothing came yet."""
        return cls(started_s=now_s, last_sign_s=now_s)


def with_sign(progress: Progress, now_s: float, *, n_tokens: int = 0) -> Progress:
    """Return the state after a sign of life.

    Args:
        progress: the state before it.
        now_s: when it came.
        n_tokens: tokens it brought; 0 for a chunk of the prompt.
    """
    gap_s = max(0.0, now_s - progress.last_sign_s)
    has_signs = progress.last_sign_s > progress.started_s
    longest_s = max(progress.longest_gap_s, gap_s) if has_signs else progress.longest_gap_s
    seen = replace(progress, last_sign_s=now_s, longest_gap_s=longest_s)
    if not n_tokens:
        return seen
    return _measured(seen, n_tokens, gap_s / n_tokens, progress.last_sign_s)


def _measured(seen: Progress, n_tokens: int, gap_s: float, before_s: float) -> Progress:
    """Hold tokens against the baseline, and make a baseline of every few of them."""
    total, now_s = seen.n_tokens + n_tokens, seen.last_sign_s
    base_s, window_s, n_before = seen.baseline_gap_s, seen.window_s, seen.n_window
    if window_s is None or total - n_before >= BASELINE_TOKENS:
        if window_s is not None:
            mean_s = max(MIN_GAP_S, (now_s - window_s) / (total - n_before))
            base_s = mean_s if base_s is None else min(base_s, mean_s)
        window_s, n_before = now_s, total
    is_slow = base_s is not None and gap_s > base_s / SLOW_FRACTION
    since_s = before_s if seen.slow_since_s is None else seen.slow_since_s
    return replace(
        seen,
        n_tokens=total,
        baseline_gap_s=base_s,
        window_s=window_s,
        n_window=n_before,
        slow_since_s=since_s if is_slow else None,
    )


def pace(progress: Progress, now_s: float, full_pressure: float | None = None) -> Pace:
    """Say how an answer gets on.

    Args:
        progress: what came so far.
        now_s: the present.
        full_pressure: share of time, in percent over ten seconds, in which all waited for memory;
            None is unknown.

    Returns:
        `stalled` after a silence that no slowness explains, `slow` far below its own speed or under
        pressure of memory, else `fine`.
    """
    silence_s = now_s - progress.last_sign_s
    if silence_s > stall_limit_s(progress):
        return "stalled"
    if full_pressure is not None and full_pressure > FULL_PRESSURE_PERCENT:
        return "slow"
    slow_since = progress.slow_since_s
    base = progress.baseline_gap_s
    if slow_since is None and base is not None and silence_s > base / SLOW_FRACTION:
        slow_since = progress.last_sign_s
    return "slow" if slow_since is not None and now_s - slow_since >= SLOW_FOR_S else "fine"


def stall_limit_s(progress: Progress) -> float:
    """Return how long silence may last from the last sign on."""
    if not progress.longest_gap_s:
        return FIRST_SIGN_S
    return max(MIN_STALL_S, STALL_FACTOR * progress.longest_gap_s)
