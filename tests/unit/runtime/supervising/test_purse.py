"""The purse: which of an endpoint's counts are booked, and which are only guessed at."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from edgellm.cloud.events import CloudEnd, Traffic
from edgellm.errors import NoRoute
from edgellm.policy.budget import need_of
from edgellm.policy.consent import Wanted, draft
from edgellm.routing import Budget, Endpoint, origin_of
from edgellm.runtime.books.breakers import BreakerBook
from edgellm.runtime.books.consents import ConsentBook
from edgellm.runtime.books.ledger import Ledger
from edgellm.runtime.supervising.purse import Purse

ENDPOINT = Endpoint("https://api.example.com/v1", "m", usd_per_mtok_in=1, usd_per_mtok_out=2)
NEED = need_of(ENDPOINT, 700, 150)


@pytest.fixture
def purse(edgellm_home: Path) -> Purse:
    """A purse with the user's leave."""
    wanted = Wanted("app", origin_of(ENDPOINT.url), "m")
    leave = draft(wanted, micro_usd_per_day=10**6, now_s=time.time())
    ConsentBook(edgellm_home).grant(leave)
    return Purse(ENDPOINT, Budget(), "app", edgellm_home)


@pytest.mark.parametrize(
    ("prompt", "completion"),
    [(None, None), (200, None), (None, 50), (0, 50), (200, 0), (0, 0), (200, 1)],
)
def test_what_is_not_counted_stays_put_aside(
    purse: Purse, edgellm_home: Path, prompt: int | None, completion: int | None
) -> None:
    """Half a count, one of nothing, or one too low for the text that came settles for no less."""
    _, reservation = purse.put_aside(NEED)
    end = CloudEnd("stop", prompt, None, completion)
    use = purse.settle(reservation, purse.taken(Traffic(690, 900), end, 1000))
    assert use.estimated
    assert Ledger(edgellm_home).today().micro_usd == NEED.most.micro_usd


def test_whole_counts_are_booked(purse: Purse, edgellm_home: Path) -> None:
    """The bill takes the place of what was put aside."""
    _, reservation = purse.put_aside(NEED)
    end = CloudEnd("stop", 200, None, 50)
    use = purse.settle(reservation, purse.taken(Traffic(690, 900), end, 1000))
    assert (use.estimated, use.usd) == (False, 300e-6)
    assert Ledger(edgellm_home).today().micro_usd == 300


def half_open(home: Path, purse: Purse) -> None:
    """Let the endpoint's breaker open so long ago that a careful try is due."""
    purse.know_key("key")
    book = BreakerBook(home, clock=lambda: time.time() - 100)
    for _ in range(5):
        book.note_failure(purse.origin, "server", settings=purse.settings)
    assert purse.breaker() == "half_open"


def test_a_careful_try_that_cannot_be_paid_for_is_given_back(
    purse: Purse, edgellm_home: Path
) -> None:
    """Nothing was sent, so the next request need not wait until the claim has run out."""
    half_open(edgellm_home, purse)
    with pytest.raises(NoRoute):
        purse.put_aside(need_of(ENDPOINT, 10**9, 150))
    assert purse.breaker() == "half_open"
    purse.put_aside(NEED)
    assert purse.breaker() == "open"
    with pytest.raises(NoRoute, match="carefully"):  # which leaves the other's claim alone
        purse.put_aside(need_of(ENDPOINT, 10**9, 150))
    assert purse.breaker() == "open"


def test_a_careful_try_that_said_nothing_is_given_back(purse: Purse, edgellm_home: Path) -> None:
    """The caller stopped it before the endpoint showed how it fares."""
    half_open(edgellm_home, purse)
    purse.put_aside(NEED)
    purse.stopped()
    assert purse.breaker() == "half_open"
