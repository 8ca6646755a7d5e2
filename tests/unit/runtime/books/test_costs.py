"""What answers cost, and what they would have cost."""

from __future__ import annotations

from edgellm.routing import CloudUse, Endpoint
from edgellm.runtime.books.costs import Costs, costs
from edgellm.runtime.books.record import AuditRecord

ENDPOINT = Endpoint("https://api.example.com/v1", "m", usd_per_mtok_in=1, usd_per_mtok_out=2)
HERE = AuditRecord("app", prompt_tokens=1000, completion_tokens=100)
THERE = AuditRecord(
    "app",
    route="cloud",
    prompt_tokens=10,
    completion_tokens=5,
    cloud=CloudUse("o", "m", 200, 150, 50, 0.0003, 700, 900),
    micro_usd=300,
)


def test_local_tokens_avoid_the_endpoints_price() -> None:
    """Tokens made here, at the endpoint's price, less what they cost here."""
    expected = Costs(
        n_local=2,
        n_cloud=1,
        local_prompt_tokens=2010,
        local_completion_tokens=205,
        cloud_prompt_tokens=200,
        cloud_completion_tokens=50,
        cached_tokens=150,
        bytes_out=700,
        spent_micro_usd=300,
        local_micro_usd=1108,
        avoided_micro_usd=2010 + 2 * 205 - 1108,
    )
    assert expected == costs([HERE, THERE, HERE], ENDPOINT, local_usd_per_mtok=0.5)


def test_without_prices_nothing_is_claimed() -> None:
    """No endpoint, or one of unknown price: what was avoided is not known."""
    assert costs([HERE], None).avoided_micro_usd is None
    assert costs([HERE], Endpoint("https://x", "m")).avoided_micro_usd is None
    assert 0 == costs([HERE], Endpoint("http://127.0.0.1:1", "m")).avoided_micro_usd


def test_nothing_costs_nothing() -> None:
    """An empty log sums up to zero."""
    assert Costs(avoided_micro_usd=0) == costs([], ENDPOINT)
