"""The ledger: put aside, settle, release, sum up; what is damaged is refused."""

from __future__ import annotations

import contextlib
import sqlite3
import stat
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgellm.errors import (
    EXIT_NO_ROUTE,
    EdgeLLMError,
    RecordsDamaged,
    RecordsUnavailable,
)
from edgellm.policy.budget import Amount, Limits, Prices, limits_of, need_of
from edgellm.routing import Budget, CloudUse, Endpoint
from edgellm.runtime.books import ledger_file as module
from edgellm.runtime.books.ledger import BudgetExceeded, Ledger
from edgellm.runtime.books.ledger_file import FILE_NAME, LedgerFile

ENDPOINT = Endpoint("https://api.example.com/v1", "m", usd_per_mtok_in=1, usd_per_mtok_out=2)
NEED = need_of(ENDPOINT, 700, 150)  # 1,000 millionths of a dollar
NOW_S = 1_800_000_000.0
DAY_S = 24 * 3600
USE = CloudUse("https://api.example.com", "m", 200, 0, 50, bytes_out=690, bytes_in=900)


@pytest.fixture
def ledger(edgellm_home: Path, clock: Any) -> Ledger:
    return Ledger(edgellm_home, clock=clock)


def test_what_is_put_aside_counts_until_it_is_settled(ledger: Ledger) -> None:
    """The most a request could take is spent at once; the bill takes its place."""
    assert Amount() == ledger.today()
    reservation = ledger.reserve(NEED, Limits(), "app")
    assert NEED.most == reservation.most == ledger.today()
    assert 300 == ledger.settle(reservation, USE)
    assert Amount(300, 250, 690) == ledger.today() == ledger.today("app")
    assert Amount() == ledger.today("other")
    taken = ledger.totals()[0]
    assert (1, 0, "2027-01-15") == (taken.n_requests, taken.n_open, taken.day)


def test_guesses_change_nothing(ledger: Ledger) -> None:
    """Where an endpoint gave no counts the bill may be for all, so all stays spent."""
    reservation = ledger.reserve(NEED, Limits(), "app")
    assert 1000 == ledger.settle(reservation, replace(USE, estimated=True))
    assert Amount(1000, 850, 690) == ledger.today()


def test_settling_twice_is_settling_once(ledger: Ledger) -> None:
    """A second settlement, or a release after it, changes nothing."""
    reservation = ledger.reserve(NEED, Limits(), "app")
    ledger.settle(reservation, USE)
    assert 300 == ledger.settle(reservation, replace(USE, prompt_tokens=0))
    ledger.release(reservation)
    assert 300 == ledger.today().micro_usd


def test_what_was_not_sent_is_given_back(ledger: Ledger) -> None:
    """A request that never left costs nothing."""
    ledger.release(ledger.reserve(NEED, Limits(), "app"))
    assert Amount() == ledger.today()
    assert () == ledger.totals()


def test_the_budget_is_refused_with_its_numbers(ledger: Ledger) -> None:
    """What does not fit is an error of no route, that names the limit, and takes nothing."""
    limits = limits_of(Budget(usd_per_day=0.0015))
    ledger.reserve(NEED, limits, "app")
    with pytest.raises(BudgetExceeded, match=r"usd_per_day is \$0\.0015.*\$0\.002") as caught:
        ledger.reserve(NEED, limits, "app")
    assert EXIT_NO_ROUTE == caught.value.exit_code
    assert ("exceeded", "exceeded") == (
        caught.value.allowance.state,
        ledger.allowance(NEED, limits, "app").state,
    )
    assert 1000 == ledger.today().micro_usd


def test_a_programs_own_limit_is_its_own(ledger: Ledger) -> None:
    """What one program's consent allows is not used up by another."""
    limits = Limits(app_micro_usd_per_day=1500)
    ledger.reserve(NEED, limits, "one")
    ledger.reserve(NEED, limits, "two")
    with pytest.raises(BudgetExceeded, match="the consent"):
        ledger.reserve(NEED, limits, "one")


def test_an_unknown_price_is_refused(ledger: Ledger) -> None:
    """Unpriced elsewhere is refused unless allowed, and then costs 0; loopback is free."""
    unpriced = need_of(Endpoint("https://x", "m"), 10, 10)
    with pytest.raises(BudgetExceeded) as caught:
        ledger.reserve(unpriced, Limits(), "app")
    assert "unpriced" == caught.value.allowance.state
    allowed = ledger.reserve(unpriced, Limits(allow_unpriced=True), "app")
    free = ledger.reserve(need_of(Endpoint("http://127.0.0.1:1", "m"), 10, 10), Limits(), "app")
    assert [0, 0] == [ledger.settle(allowed, USE), ledger.settle(free, USE)]


def test_a_day_ends_at_midnight_utc(ledger: Ledger, clock: Any) -> None:
    """The next day begins with nothing spent; a settlement counts for the day of its request."""
    reservation = ledger.reserve(NEED, limits_of(Budget(usd_per_day=0.001)), "app")
    clock.now_s += DAY_S
    assert Amount() == ledger.today()
    ledger.settle(reservation, USE)
    assert Amount() == ledger.today()
    assert ["2027-01-15"] == [one.day for one in ledger.totals()]
    assert () == ledger.totals("2027-01-16")


def test_reading_makes_no_file_and_writing_a_private_one(ledger: Ledger) -> None:
    """The file appears with the first reservation, for its owner alone."""
    ledger.today()
    ledger.totals()
    ledger.check()
    assert not ledger.path.parent.exists()
    ledger.reserve(NEED, Limits(), "app")
    assert 0o600 == stat.S_IMODE(ledger.path.stat().st_mode)
    with contextlib.closing(sqlite3.connect(ledger.path)) as db:
        assert ("wal",) == db.execute("PRAGMA journal_mode").fetchone()


@pytest.mark.parametrize("how", ["empty", "cut", "foreign", "text", "newer", "link", "gone"])
def test_a_damaged_ledger_is_refused(how: str, ledger: Ledger, tmp_path: Path) -> None:
    """A file that may have forgotten something is no empty ledger: nothing is put aside any more."""
    ledger.reserve(NEED, Limits(), "app")
    content = ledger.path.read_bytes()
    ledger.path.unlink()
    if how == "link":
        (tmp_path / FILE_NAME).write_bytes(content)
        ledger.path.symlink_to(tmp_path / FILE_NAME)
    elif how in ("foreign", "newer"):
        db = sqlite3.connect(ledger.path)
        db.execute("CREATE TABLE taken (id TEXT)")
        db.execute(f"PRAGMA application_id = {0x45444C4D if how == 'newer' else 1}")
        db.execute("PRAGMA user_version = 2")
        db.close()
    elif how != "gone":
        damaged = {"empty": b"", "cut": content[:4096], "text": b"spent: 0\n" * 1000}
        ledger.path.write_bytes(damaged[how])
    for use in (ledger.today, ledger.totals, lambda: ledger.reserve(NEED, Limits(), "app")):
        with pytest.raises(RecordsDamaged):
            use()


def test_a_lost_reservation_is_damage(ledger: Ledger) -> None:
    """What was put aside and is not there any more cannot be settled in silence."""
    reservation = ledger.reserve(NEED, Limits(), "app")
    with pytest.raises(RecordsDamaged, match="reservation"):
        ledger.settle(replace(reservation, reservation_id="gone"), USE)


def test_a_ledger_that_is_held_is_an_error(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for ever for another process's transaction."""
    ledger.reserve(NEED, Limits(), "app")
    monkeypatch.setattr(module, "LOCK_WAIT_S", 0.05)
    other = sqlite3.connect(ledger.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(EdgeLLMError, match="held the ledger"):
        ledger.reserve(NEED, Limits(), "app")
    other.close()


def test_a_full_disk_is_said(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no damage, though SQLite ends the transaction by itself; nothing is booked."""
    ledger.reserve(NEED, Limits(), "app")
    connect = sqlite3.connect

    def full(*args: Any, **settings: Any) -> sqlite3.Connection:
        db: sqlite3.Connection = connect(*args, **settings)
        db.execute("PRAGMA max_page_count = 1")
        return db

    monkeypatch.setattr(module.sqlite3, "connect", full)
    with pytest.raises(RecordsUnavailable, match="full"):
        ledger.reserve(replace(NEED, model="m" * 100_000), Limits(), "app")
    monkeypatch.undo()
    ledger.check()


@pytest.mark.parametrize("said", ["attempt to write a readonly database", "disk I/O error"])
def test_a_place_that_cannot_be_reached_is_no_damage(ledger: Ledger, said: str) -> None:
    """SQLite's word for it becomes ours."""
    with (
        pytest.raises(RecordsUnavailable, match="EDGELLM_HOME"),
        LedgerFile(ledger.path.parents[1]).mapped(),
    ):
        raise sqlite3.OperationalError(said)


def test_absurd_counts_can_be_added_up(ledger: Ledger) -> None:
    """No server's count makes the sums fail, and the day is used up by it."""
    dear = replace(NEED, prices=Prices(10**12, 10**12))
    for _ in range(3):
        use = replace(USE, prompt_tokens=1 << 62, completion_tokens=1 << 62)
        ledger.settle(ledger.reserve(dear, Limits(), "app"), use)
    assert ledger.today().micro_usd == ledger.totals()[0].amount.micro_usd == 3 << 53
    huge = need_of(ENDPOINT, 700, 1 << 62)
    assert ledger.reserve(huge, Limits(), "app").most == huge.most


def test_an_amount_that_is_no_number_is_damage(ledger: Ledger) -> None:
    """Somebody wrote infinity into the file: its sum is not guessed."""
    ledger.reserve(NEED, Limits(), "app")
    with contextlib.closing(sqlite3.connect(ledger.path)) as db:
        db.execute("UPDATE taken SET micro_usd = 9e999")
        db.commit()
    with pytest.raises(RecordsDamaged):
        ledger.today()


@pytest.mark.parametrize("days", [1, 30])
def test_a_clock_that_was_set_back_begins_no_day_anew(
    ledger: Ledger, clock: Any, days: int
) -> None:
    """What was left of an earlier day is not there to be spent once more."""
    limits = Limits(micro_usd_per_day=1500)
    ledger.reserve(NEED, limits, "app")
    clock.now_s -= days * DAY_S
    with pytest.raises(BudgetExceeded):
        ledger.reserve(NEED, limits, "app")
    assert NEED.most == ledger.today()


def test_a_clock_that_was_far_ahead_does_not_stop_the_days(ledger: Ledger, clock: Any) -> None:
    """A machine that once believed in another year has a budget again."""
    limits = Limits(micro_usd_per_day=1500)
    clock.now_s += 400 * DAY_S
    ledger.reserve(NEED, limits, "app")
    clock.now_s -= 400 * DAY_S
    ledger.reserve(NEED, limits, "app")
    clock.now_s += DAY_S
    assert Amount() == ledger.today()


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    """Where no folder can be made nothing is put aside, and nothing was spent."""
    (tmp_path / "file").write_text("")
    ledger = Ledger(tmp_path / "file" / "home")
    assert Amount() == ledger.today()
    with pytest.raises(RecordsUnavailable, match="EDGELLM_HOME"):
        ledger.reserve(NEED, Limits(), "app")


STEP = st.tuples(
    st.sampled_from(["reserve", "settle", "release"]),
    st.integers(0, 2000),
    st.integers(1, 1000),
    st.sampled_from(["one", "two"]),
)


@given(st.lists(STEP, max_size=25), st.integers(1, 5000), st.integers(1, 3000))
@settings(max_examples=25)
def test_no_order_of_steps_overspends(steps, day_limit: int, app_limit: int) -> None:
    """Whatever is put aside, settled and given back: the sums are those of a plain table, within limits."""
    limits = Limits(micro_usd_per_day=day_limit, app_micro_usd_per_day=app_limit)
    with tempfile.TemporaryDirectory() as folder:
        ledger, table, open_ones = Ledger(Path(folder), clock=lambda: NOW_S), {}, []
        for what, n_bytes, answer, app in steps:
            if what == "reserve":
                need = need_of(ENDPOINT, n_bytes, answer)
                try:
                    reservation = ledger.reserve(need, limits, app)
                except BudgetExceeded:
                    mine = sum(spent for one, spent in table.values() if one == app)
                    total = sum(spent for _, spent in table.values())
                    cost = need.most.micro_usd
                    assert mine + cost > app_limit or total + cost > day_limit
                    continue
                table[reservation.reservation_id] = (app, need.most.micro_usd)
                open_ones.append(reservation)
            elif open_ones:
                reservation = open_ones.pop(n_bytes % len(open_ones))
                owner, _ = table.pop(reservation.reservation_id)
                if what == "settle":
                    use = CloudUse("o", "m", reservation.most.n_bytes // 2, 0, 1, bytes_out=1)
                    table[reservation.reservation_id] = (owner, ledger.settle(reservation, use))
                else:
                    ledger.release(reservation)
            assert ledger.today().micro_usd == sum(spent for _, spent in table.values())
            assert ledger.today().micro_usd <= day_limit
            for one in ("one", "two"):
                assert ledger.today(one).micro_usd <= app_limit
