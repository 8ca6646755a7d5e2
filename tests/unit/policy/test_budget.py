"""What a request may cost, in whole numbers, and what a budget says to it."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm.policy.budget import (
    ANSWER_TOKENS,
    Amount,
    Limits,
    Need,
    Prices,
    allowance,
    cost,
    format_usd,
    limits_of,
    micro_usd,
    need_of,
    prices_of,
    signal,
)
from edgellm.routing import Budget, Endpoint

THERE = Endpoint("https://api.example.com/v1", "m", usd_per_mtok_in=0.15, usd_per_mtok_out=0.6)
NOTHING = Amount()


def test_a_dollar_a_million_is_a_unit_a_token() -> None:
    """Prices of a million tokens in dollars are millionths of a dollar for one, rounded up."""
    assert Prices(150_000, 600_000) == prices_of(THERE)
    assert 15 + 60 == cost(Prices(150_000, 600_000), 100, 100)
    assert 1 == cost(Prices(150_000, 600_000), 1, 0)
    assert 0 == cost(Prices(0, 0), 10**9, 10**9)


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.integers(0, 10**9), st.integers(0, 10**9))
def test_costs_are_never_below_the_bill(price_in, price_out, n_in, n_out) -> None:
    """The cost in whole units is at least the exact product of price and tokens."""
    endpoint = replace(THERE, usd_per_mtok_in=price_in, usd_per_mtok_out=price_out)
    prices = prices_of(endpoint)
    assert prices is not None
    bill = Fraction(str(price_in)) * n_in + Fraction(str(price_out)) * n_out
    assert cost(prices, n_in, n_out) >= bill
    assert cost(prices, n_in, n_out) <= bill + 1 + Fraction(n_in + n_out, 10**6)


@given(st.floats(0, 1e6))
def test_limits_are_never_above_what_was_said(usd: float) -> None:
    """A limit in whole units is at most the amount as it was written, and less than one unit off."""
    exact = Fraction(str(usd)) * 10**6
    assert micro_usd(usd) <= exact < micro_usd(usd) + 1


def test_binary_fractions_cost_nobody_a_unit() -> None:
    """Ten cents are a hundred thousand units, though no binary fraction is ten cents."""
    assert 100_000 == micro_usd(0.1)
    assert Prices(100_000, 300_000) == prices_of(
        replace(THERE, usd_per_mtok_in=0.1, usd_per_mtok_out=0.3)
    )


@pytest.mark.parametrize("url", ["http://127.0.0.1:8080", "http://localhost:1", "http://[::1]:1"])
def test_a_server_on_this_machine_without_prices_costs_nothing(url: str) -> None:
    """Loopback is free unless somebody put a price on it."""
    assert Prices(0, 0) == prices_of(Endpoint(url, "m"))
    assert Prices(1_000_000, 0) == prices_of(Endpoint(url, "m", usd_per_mtok_in=1))


def test_half_a_price_elsewhere_is_none() -> None:
    """An endpoint whose answers have no known price has no price."""
    assert prices_of(Endpoint("https://x", "m", usd_per_mtok_in=1)) is None
    assert prices_of(Endpoint("https://x", "m")) is None


def test_an_unknown_price_is_refused_unless_allowed() -> None:
    """Nobody is asked whose price is not known, until the user says so."""
    need = need_of(Endpoint("https://x", "m"), 100, 10)
    refused = allowance(need, Limits(), NOTHING, NOTHING)
    assert ("unpriced", True) == (refused.state, "not known" in refused.reason)
    assert "enough" == allowance(need, Limits(allow_unpriced=True), NOTHING, NOTHING).state


def test_the_most_a_request_can_take() -> None:
    """A token has a byte or more; an answer without a limit is given one, which the request carries."""
    need = need_of(THERE, 2000, 100)
    assert Amount(2000 * 15 // 100 + 60, 2100, 2000) == need.most
    assert ("https://api.example.com", "m", 100) == (need.origin, need.model, need.answer_tokens)
    assert ANSWER_TOKENS == need_of(THERE, 1, None).answer_tokens


LIMITS = [
    ("usd_per_day", Limits(micro_usd_per_day=10), Amount(7, 0, 0), NOTHING),
    ("usd_per_request", Limits(micro_usd_per_request=3), NOTHING, NOTHING),
    ("the consent", Limits(app_micro_usd_per_day=10), Amount(7, 0, 0), Amount(7, 0, 0)),
    ("tokens_per_day", Limits(tokens_per_day=10), Amount(0, 6, 0), NOTHING),
    ("bytes_per_day", Limits(bytes_per_day=10), Amount(0, 0, 5), NOTHING),
]


@pytest.mark.parametrize(("name", "limits", "day", "app_day"), LIMITS)
def test_each_limit_stops_at_its_number(name, limits, day, app_day) -> None:
    """A request that reaches a limit exactly is allowed; one unit more is not, and says which."""
    need = Need("https://x", "m", Amount(3, 4, 5), Prices(1, 1), 1)
    assert "enough" == allowance(need, limits, day, app_day).state
    over = replace(need, most=need.most + Amount(1, 1, 1))
    refused = allowance(over, limits, day, app_day)
    assert "exceeded" == refused.state
    assert name in refused.reason


@pytest.mark.parametrize(
    "budget",
    [
        Budget(usd_per_day=0),
        Budget(usd_per_request=0.0),
        Budget(tokens_per_day=0),
        Budget(bytes_per_day=0),
    ],
)
def test_a_budget_of_nothing_allows_nothing(budget: Budget) -> None:
    """A limit of 0 forbids endpoints altogether, also free ones."""
    need = need_of(Endpoint("http://127.0.0.1:1", "m"), 10, 10)
    assert "exceeded" == allowance(need, limits_of(budget), NOTHING, NOTHING).state


def test_no_limit_is_no_limit() -> None:
    """Without a budget only the price has to be known."""
    need = need_of(THERE, 10**9, 10**9)
    assert "enough" == allowance(need, limits_of(Budget()), Amount(10**15), NOTHING).state


@pytest.mark.parametrize(
    ("used", "expected"),
    [(0, "below"), (79, "below"), (80, "approaching"), (99, "approaching"), (100, "reached")],
)
def test_the_signal_has_three_states(used: int, expected: str) -> None:
    """The nearest limit gives the state; without limits there is nothing to approach."""
    limits = Limits(micro_usd_per_day=100, tokens_per_day=10**9)
    assert expected == signal(Amount(used, used, used), limits)
    assert "below" == signal(Amount(used, used, used), Limits())
    assert "reached" == signal(NOTHING, Limits(bytes_per_day=0))


@pytest.mark.parametrize(
    ("micro", "expected"),
    [(0, "$0.00"), (500_000, "$0.50"), (1, "$0.000001"), (12_340_000, "$12.34")],
)
def test_money_for_people(micro: int, expected: str) -> None:
    """Dollars with two digits or as many as there are."""
    assert expected == format_usd(micro)
