"""The breakers' steps: what opens them, how long they rest, what closes them."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm.errors import EndpointFailure
from edgellm.policy import breaker
from edgellm.policy.breaker import (
    FIRST_REST_S,
    LONGEST_REST_S,
    N_REMEMBERED,
    CloudHealth,
    LocalHealth,
    after_answer,
    after_death,
    after_failure,
    after_look,
    after_warm_up,
    at_trial,
    cloud_state,
    local_state,
)

T = 1_800_000_000.0


def dead_twice() -> LocalHealth:
    return after_death(after_death(LocalHealth(), T - 10), T)


def failed(health: CloudHealth, n: int, at: float = T, kind: EndpointFailure = "server"):
    for _ in range(n):
        health = after_failure(health, at, kind, settings="s")
    return health


def test_two_deaths_in_ten_minutes_open_it() -> None:
    """One death is an accident, two within ten minutes are not, two further apart are."""
    once = after_death(LocalHealth(), T)
    assert "closed" == local_state(once)
    assert "open" == local_state(after_death(once, T + 599))
    assert "closed" == local_state(after_death(once, T + 601))


def test_half_open_needs_two_looks_after_the_rest() -> None:
    """Looks before the rest is over do not count, nor two that are less than 5 s apart."""
    health = dead_twice()
    early = after_look(after_look(health, T + 10, fits=True), T + 50, fits=True)
    assert health == early
    once = after_look(health, T + 60, fits=True)
    assert "open" == local_state(once)
    assert "open" == local_state(after_look(once, T + 64, fits=True))
    twice = after_look(once, T + 65, fits=True)
    assert "half_open" == local_state(twice)
    assert "open" == local_state(after_look(twice, T + 66, fits=False))
    between = after_look(once, T + 62, fits=False)
    assert "open" == local_state(after_look(between, T + 70, fits=True))


def test_the_careful_try_closes_it_or_doubles_the_rest() -> None:
    """A decode that went well closes it; a death in it opens it for twice as long, up to 30 min."""
    ready = after_look(after_look(dead_twice(), T + 60, fits=True), T + 65, fits=True)
    assert "closed" == local_state(after_warm_up(ready))
    health = ready
    rests = []
    for n in range(7):
        health = after_death(health, T + 1000 * n)
        rests.append(health.rest_s)
        assert "open" == local_state(health)
    assert [120, 240, 480, 960, 1800, 1800, 1800] == rests


def test_five_failures_in_a_row_open_an_endpoint() -> None:
    """Four do not; an answer between them starts the count anew."""
    assert "closed" == cloud_state(failed(CloudHealth(), 4), T, "s")
    assert "open" == cloud_state(failed(CloudHealth(), 5), T, "s")
    assert "closed" == cloud_state(failed(after_answer(failed(CloudHealth(), 4)), 4), T, "s")


def test_half_of_the_last_twenty_open_it() -> None:
    """Failures that alternate with answers open it when twenty are known, and not before."""
    health = CloudHealth()
    states = []
    for _ in range(N_REMEMBERED // 2):
        health = failed(after_answer(health), 1)
        states.append(cloud_state(health, T, "s"))
    assert ["closed"] * 9 + ["open"] == states


def test_after_the_rest_one_try_is_let_through() -> None:
    """Half open after a minute; while one tries, others wait; a failed try doubles the rest."""
    health = failed(CloudHealth(), 5)
    assert "open" == cloud_state(health, T + FIRST_REST_S - 1, "s")
    assert "half_open" == cloud_state(health, T + FIRST_REST_S, "s")
    trying = at_trial(health, T + 60)
    assert "open" == cloud_state(trying, T + 61, "s")
    assert "half_open" == cloud_state(trying, T + 60 + 121, "s")  # it never came back
    again = failed(trying, 1, T + 61)
    assert "open" == cloud_state(again, T + 61 + 119, "s")
    assert "half_open" == cloud_state(again, T + 61 + 120, "s")
    assert "closed" == cloud_state(after_answer(trying), T + 61, "s")


def test_an_endpoint_that_says_when_is_left_until_then() -> None:
    """`Retry-After` is honoured at the first failure, and no longer than an hour."""
    health = after_failure(CloudHealth(), T, "rate_limit", settings="s", retry_after_s=30)
    assert "open" == cloud_state(health, T + 29, "s")
    assert "closed" == cloud_state(health, T + 30, "s")
    long = after_failure(CloudHealth(), T, "rate_limit", settings="s", retry_after_s=1e9)
    assert "open" == cloud_state(long, T + 3599, "s")
    assert "closed" == cloud_state(long, T + 3601, "s")


def test_a_refused_key_waits_for_other_settings() -> None:
    """401 and 403 open it at once, for any time, until address or key are others."""
    health = after_failure(CloudHealth(), T, "auth", settings="s")
    assert "open" == cloud_state(health, T + 10**7, "s")
    assert "closed" == cloud_state(health, T, "other")


def test_used_up_money_rests_for_long() -> None:
    """A quota does not come back in a minute."""
    health = after_failure(CloudHealth(), T, "quota", settings="s")
    assert "open" == cloud_state(health, T + LONGEST_REST_S - 1, "s")
    assert "half_open" == cloud_state(health, T + LONGEST_REST_S, "s")


@pytest.mark.parametrize("kind", get_args(EndpointFailure))
def test_which_failures_count(kind: EndpointFailure) -> None:
    """All say something of the endpoint, no connection too, but for what was wrong with the request."""
    is_counted = kind not in ("invalid", "too_long")
    assert ("open" if is_counted else "closed") == cloud_state(
        failed(CloudHealth(), 5, kind=kind), T, "s"
    )


def test_a_clock_that_was_set_back_keeps_nobody_out() -> None:
    """States from the future count as rested; the careful try finds out."""
    assert "half_open" == cloud_state(failed(CloudHealth(), 5), T - 10**6, "s")
    limited = after_failure(CloudHealth(), T, "rate_limit", settings="s", retry_after_s=30)
    assert "closed" == cloud_state(limited, T - 10**6, "s")
    looked = after_look(dead_twice(), T - 10**6, fits=True)
    assert "half_open" == local_state(after_look(looked, T - 10**6 + 5, fits=True))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["answer", "trial", *get_args(EndpointFailure)]), st.floats(-100, 4000)
        ),
        max_size=60,
    )
)
def test_any_history_can_be_written_down(history) -> None:
    """After any steps the state survives its JSON form, is bounded, and an answer closes it."""
    health, now_s = CloudHealth(), T
    for what, step_s in history:
        now_s += step_s
        if what == "answer":
            health = after_answer(health)
        elif what == "trial":
            health = at_trial(health, now_s)
        else:
            health = after_failure(health, now_s, what, settings="s", retry_after_s=step_s)
        assert health == CloudHealth.from_wire(health.to_wire())
        assert len(health.outcomes) <= N_REMEMBERED
        assert FIRST_REST_S <= health.rest_s <= LONGEST_REST_S
    assert "closed" == cloud_state(after_answer(health), now_s, "s")


def test_what_is_left_of_a_rest() -> None:
    """Until the next careful try may be due; nothing of a rest that waiting does not end."""
    rests = LocalHealth(opened_s=1000.0, rest_s=60.0)
    assert [breaker.local_rest_s(rests, at_s) for at_s in (1000.0, 1059.0, 1060.0)] == [60, 1, 0]
    assert breaker.local_rest_s(LocalHealth(), 5.0) == 0
    there = CloudHealth(opened_s=1000.0, rest_s=60.0)
    assert [breaker.cloud_rest_s(there, at_s) for at_s in (1010.0, 1060.0)] == [50, 0]
    later = CloudHealth(opened_s=1000.0, rest_s=60.0, not_before_s=1200.0)
    assert breaker.cloud_rest_s(later, 1010.0) == 190
    tried = CloudHealth(opened_s=1000.0, rest_s=60.0, trial_s=1070.0)
    assert breaker.cloud_rest_s(tried, 1080.0) == breaker.TRIAL_S - 10
    assert breaker.cloud_rest_s(CloudHealth(refused="key", opened_s=1000.0), 1010.0) == 0
    assert breaker.cloud_rest_s(CloudHealth(not_before_s=1e9), 1010.0) == 0  # of another clock
