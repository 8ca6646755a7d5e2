"""The watchdog: an answer against its own best speed, against pressure, and against silence."""

from __future__ import annotations

import pytest

from edgellm.policy.progress import (
    FIRST_SIGN_S,
    MIN_STALL_S,
    SLOW_FOR_S,
    Progress,
    pace,
    stall_limit_s,
    with_sign,
)


def answered(gap_s: float, n: int = 20, start_s: float = 100.0) -> Progress:
    """An answer of n tokens, one each `gap_s`."""
    progress = Progress.begin(start_s)
    for i in range(n):
        progress = with_sign(progress, start_s + 1 + i * gap_s, n_tokens=1)
    return progress


def test_an_even_answer_is_fine() -> None:
    """At its own speed nothing is said, however slow that speed is."""
    for gap_s in (0.01, 0.5, 20.0):
        progress = answered(gap_s)
        assert pace(progress, progress.last_sign_s + gap_s) == "fine"


def test_tokens_at_a_quarter_of_the_speed_are_slow_after_five_seconds() -> None:
    """One late token is chance; a run of them is thrash."""
    progress = answered(0.05)
    now_s = progress.last_sign_s
    seen = []
    for _ in range(30):
        now_s += 0.25
        progress = with_sign(progress, now_s, n_tokens=1)
        seen.append(pace(progress, now_s))
    n_fine = seen.count("fine")
    assert seen == ["fine"] * n_fine + ["slow"] * (30 - n_fine)
    assert SLOW_FOR_S / 0.25 - 1 <= n_fine <= SLOW_FOR_S / 0.25


def test_getting_fast_again_ends_it() -> None:
    """A burst of disk traffic that passed is forgotten."""
    progress = answered(0.05)
    now_s = progress.last_sign_s + SLOW_FOR_S + 1
    assert pace(progress, now_s) == "slow"
    progress = with_sign(progress, now_s, n_tokens=1)
    progress = with_sign(progress, now_s + 0.05, n_tokens=1)
    assert pace(progress, now_s + 0.06) == "fine"


def test_a_slow_stretch_does_not_become_the_measure() -> None:
    """The baseline is the best speed seen: thrash for long is still thrash."""
    progress = answered(0.05)
    now_s = progress.last_sign_s
    for _ in range(60):
        now_s += 0.5
        progress = with_sign(progress, now_s, n_tokens=1)
    assert progress.baseline_gap_s == pytest.approx(0.05)
    assert pace(progress, now_s) == "slow"


@pytest.mark.parametrize(("pressure", "word"), [(None, "fine"), (20.0, "fine"), (20.1, "slow")])
def test_pressure_of_memory_is_slow_at_once(pressure: float | None, word: str) -> None:
    """Above 20 % of time lost by all, before any speed is known."""
    assert pace(Progress.begin(5.0), 6.0, pressure) == word


def test_silence_is_a_stall_in_the_end() -> None:
    """Before anything came the limit is long; then it follows the longest silence so far."""
    begun = Progress.begin(0.0)
    assert pace(begun, FIRST_SIGN_S) == "fine"
    assert pace(begun, FIRST_SIGN_S + 1) == "stalled"
    quick = answered(0.05)
    assert stall_limit_s(quick) == MIN_STALL_S
    assert pace(quick, quick.last_sign_s + MIN_STALL_S + 1) == "stalled"
    slow = answered(30.0)
    assert stall_limit_s(slow) == pytest.approx(600)


def test_chunks_of_the_prompt_are_signs_of_life() -> None:
    """A long prompt is read in silence of tokens, not of signs."""
    progress = Progress.begin(0.0)
    for i in range(1, 50):
        progress = with_sign(progress, i * 40.0)
        assert pace(progress, i * 40.0 + 39) == "fine"
    assert progress.n_tokens == 0


def test_a_clock_that_stands_still_breaks_nothing() -> None:
    """Several tokens at one time, and time 0, are no division by zero."""
    progress = Progress.begin(0.0)
    for _ in range(40):
        progress = with_sign(progress, 0.0, n_tokens=3)
    assert pace(progress, 0.0) == "fine"
