"""The ledger of what endpoints cost: put aside before a byte is sent, settled afterwards.

One SQLite file, each step one transaction that no other can come between, so any number of processes
together stay within the budget. What was put aside and never settled (a crash) counts as spent, and a
clock that was set back begins no day anew. Each request leaves a row of some 200 bytes, found by its day:
nothing becomes slower by old ones, so none is deleted.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from edgellm.errors import NoRoute, RecordsDamaged
from edgellm.policy.budget import Amount, Prices, Reservation, allowance, cost
from edgellm.runtime.books.ledger_file import LedgerFile

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable
    from pathlib import Path

    from edgellm.policy.budget import Allowance, Limits, Need
    from edgellm.routing import CloudUse

_SUM: Final = "SELECT TOTAL(micro_usd), TOTAL(tokens), TOTAL(n_bytes) FROM taken WHERE day = ?"
_MOST: Final = 1 << 53
"""Of anything in one row: a count beyond it is nobody's bill, and SQLite could not add it up."""
_LONGEST_SET_BACK_S: Final = 31 * 24 * 3600
"""A clock that was further ahead was wrong; its day would otherwise be the current one for years."""


class BudgetExceeded(NoRoute):
    """A request does not fit what is left of the budget, or its price is not known.

    Attributes:
        allowance: which limit is in the way.
    """

    def __init__(self, refused: Allowance) -> None:
        super().__init__(refused.reason, reasons=(refused.reason,), hint="raise the budget")
        self.allowance = refused


@dataclass(frozen=True, slots=True)
class Taken:
    """What one program took of one endpoint's model on one day.

    Attributes:
        day: in UTC, such as `2026-05-31`.
        app, origin, model: who, where, what.
        amount: settled and put aside.
        n_requests: how many there were.
        n_open: how many of them were never settled.
    """

    day: str
    app: str
    origin: str
    model: str
    amount: Amount
    n_requests: int
    n_open: int


class Ledger:
    """The ledger below one `EDGELLM_HOME`.

    All methods raise as `LedgerFile` does.

    Args:
        home: the folder.
        clock: seconds since 1970.
    """

    def __init__(self, home: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._file = LedgerFile(home)
        self._clock = clock
        self.path = self._file.path

    def reserve(self, need: Need, limits: Limits, app: str) -> Reservation:
        """Put aside the most that a request can take; it is on the disk when this returns.

        Raises:
            BudgetExceeded: it does not fit what is left of the day, or its price is not known.
        """
        name = secrets.token_hex(8)
        prices = (need.prices.prompt, need.prices.answer) if need.prices else (None, None)
        amount = need.most
        most = (min(n, _MOST) for n in (amount.micro_usd, amount.tokens, amount.n_bytes))
        with self._file.transaction() as db:
            day = self._day(db)
            allowed = allowance(need, limits, _sum(db, day), _sum(db, day, app))
            if allowed.state != "enough":
                raise BudgetExceeded(allowed)
            db.execute(
                "INSERT INTO taken VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0)",
                (name, day, app, need.origin, need.model, *most, *prices),
            )
        return Reservation(name, need.origin, need.model, need.most, need.answer_tokens)

    def add(self, reservation: Reservation, more: Need, limits: Limits, app: str) -> None:
        """Put more aside for a request that is under way.

        Raises:
            BudgetExceeded: it does not fit what is left of the day, or of the answer.
        """
        amount = more.most
        with self._file.transaction() as db:
            day = self._day(db)
            allowed = allowance(more, limits, _sum(db, day), _sum(db, day, app))
            if allowed.state != "enough":
                raise BudgetExceeded(allowed)
            db.execute(
                "UPDATE taken SET micro_usd = MIN(micro_usd + ?, ?), tokens = MIN(tokens + ?, ?)"
                " WHERE id = ? AND is_settled = 0",
                (
                    *(min(amount.micro_usd, _MOST), _MOST, min(amount.tokens, _MOST), _MOST),
                    reservation.reservation_id,
                ),
            )

    def settle(self, reservation: Reservation, use: CloudUse) -> int:
        """Put what a request did take in place of what was put aside; returns its cost.

        Counts that are guesses change nothing: the bill may be for more. A second settlement of
        the same reservation changes nothing either.

        Returns:
            Its cost in millionths of a dollar.
        """
        with self._file.transaction() as db:
            row = db.execute(
                "SELECT is_settled, micro_usd, tokens, price_prompt, price_answer FROM taken"
                " WHERE id = ?",
                (reservation.reservation_id,),
            ).fetchone()
            if row is None:
                raise RecordsDamaged("a reservation is missing in the ledger", path=self.path)
            is_settled, micro_usd, tokens, *prices = row
            if is_settled:
                return int(micro_usd)
            if not use.estimated:
                tokens = use.prompt_tokens + use.completion_tokens
                counts = (use.prompt_tokens, use.completion_tokens)
                micro_usd = 0 if None in prices else cost(Prices(*prices), *counts)
            tokens, micro_usd = min(tokens, _MOST), min(micro_usd, _MOST)
            db.execute(
                "UPDATE taken SET is_settled = 1, micro_usd = ?, tokens = ?, n_bytes = ?"
                " WHERE id = ?",
                (micro_usd, tokens, use.bytes_out, reservation.reservation_id),
            )
        return int(micro_usd)

    def release(self, reservation: Reservation) -> None:
        """Give back what was put aside for a request of which no byte was sent."""
        with self._file.transaction() as db:
            db.execute(
                "DELETE FROM taken WHERE id = ? AND is_settled = 0", (reservation.reservation_id,)
            )

    def allowance(self, need: Need, limits: Limits, app: str) -> Allowance:
        """Return whether a request would fit now, as `decide` takes it; nothing is put aside."""
        return allowance(need, limits, self.today(), self.today(app))

    def today(self, app: str | None = None) -> Amount:
        """Return what was taken since midnight UTC, by one program or by all."""
        if not self._file.is_there():
            return Amount()
        with self._file.open() as db:
            return _sum(db, self._day(db), app)

    def totals(self, day: str | None = None) -> tuple[Taken, ...]:
        """Return what was taken, the newest day first; of one day, or of all.

        Args:
            day: in UTC, such as `2026-05-31`.
        """
        if not self._file.is_there():
            return ()
        where, given = ("", ()) if day is None else ("WHERE day = ?", (day,))
        with self._file.open() as db:
            rows = db.execute(
                "SELECT day, app, origin, model, TOTAL(micro_usd), TOTAL(tokens), TOTAL(n_bytes),"  # noqa: S608  # `where` is one of the two above
                f" COUNT(*), SUM(1 - is_settled) FROM taken {where}"
                " GROUP BY day, app, origin, model ORDER BY day DESC, app, origin, model",
                given,
            ).fetchall()
        return tuple(
            Taken(day, app, origin, model, Amount(*map(int, amount)), n_requests, n_open)
            for day, app, origin, model, *amount, n_requests, n_open in rows
        )

    def check(self) -> None:
        """Read the whole file, and make sure that it is sound."""
        if self._file.is_there():
            with self._file.open() as db:
                found = db.execute("PRAGMA integrity_check(1)").fetchone()[0]
                if found != "ok":
                    raise self._file.damaged(str(found))

    def _day(self, db: sqlite3.Connection) -> str:
        """Return the day that is booked on: the newest one, where the clock was set back since."""
        now_s = self._clock()
        latest = _day_of(now_s + _LONGEST_SET_BACK_S)
        found = db.execute("SELECT MAX(day) FROM taken WHERE day <= ?", (latest,)).fetchone()[0]
        return max(_day_of(now_s), found or "")


def _day_of(at_s: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(at_s))


def _sum(db: sqlite3.Connection, day: str, app: str | None = None) -> Amount:
    """Return what was taken on a day. Sums of integers below 2^53 are exact as `TOTAL` gives them."""
    row = db.execute(_SUM if app is None else f"{_SUM} AND app = ?", (day, app)[: 1 + bool(app)])
    return Amount(*(int(value) for value in row.fetchone()))
