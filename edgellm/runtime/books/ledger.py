"""The ledger of what endpoints cost: put aside before a byte is sent, settled afterwards.

One SQLite file, each step one transaction that no other can come between, so any number of processes
together stay within the budget. What was put aside and never settled (a crash) counts as spent, and a
clock that was set back begins no day anew. A file that is empty, foreign or damaged is refused: its
sums would be too small.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from edgellm.errors import EdgeLLMError, NoRoute, RecordsDamaged, RecordsUnavailable
from edgellm.fileio import PRIVATE_FILE_MODE
from edgellm.policy.budget import Amount, Prices, Reservation, allowance, cost
from edgellm.runtime.books.folder import LOCK_WAIT_S, Records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from edgellm.policy.budget import Allowance, Limits, Need
    from edgellm.routing import CloudUse

BOOK: Final = "ledger"
FILE_NAME: Final = "ledger.sqlite3"
MARK_NAME: Final = "ledger.made"
"""Says that there was a ledger, so that a lost one is no beginning with nothing spent."""
_APPLICATION_ID: Final = 0x45444C4D  # "EDLM"
_VERSION: Final = 1
_SCHEMA: Final = f"""
CREATE TABLE taken (
    id TEXT PRIMARY KEY,
    day TEXT NOT NULL,
    app TEXT NOT NULL,
    origin TEXT NOT NULL,
    model TEXT NOT NULL,
    micro_usd INTEGER NOT NULL CHECK (micro_usd >= 0),
    tokens INTEGER NOT NULL CHECK (tokens >= 0),
    n_bytes INTEGER NOT NULL CHECK (n_bytes >= 0),
    price_prompt INTEGER,
    price_answer INTEGER,
    is_settled INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX taken_by_day ON taken (day, app);
PRAGMA application_id = {_APPLICATION_ID};
PRAGMA user_version = {_VERSION};
"""
_SUM: Final = "SELECT TOTAL(micro_usd), TOTAL(tokens), TOTAL(n_bytes) FROM taken WHERE day = ?"
_BUSY: Final = ("locked", "busy")
_UNREACHABLE: Final = ("readonly", "unable to open", "disk I/O", "full")
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

    All methods raise `RecordsDamaged` for a file that is not what was written, `RecordsUnavailable`
    where it cannot be kept (a full disk, say), and `EdgeLLMError` where another process holds it for
    too long.

    Args:
        home: the folder.
        clock: seconds since 1970.
    """

    def __init__(self, home: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._records = Records(home)
        self._clock = clock
        self.path = self._records.path / FILE_NAME

    def reserve(self, need: Need, limits: Limits, app: str) -> Reservation:
        """Put aside the most that a request can take; it is on the disk when this returns.

        Raises:
            BudgetExceeded: it does not fit what is left of the day, or its price is not known.
        """
        name = secrets.token_hex(8)
        prices = (need.prices.prompt, need.prices.answer) if need.prices else (None, None)
        amount = need.most
        most = (min(n, _MOST) for n in (amount.micro_usd, amount.tokens, amount.n_bytes))
        with self._transaction() as db:
            day = self._day(db)
            allowed = allowance(need, limits, _sum(db, day), _sum(db, day, app))
            if allowed.state != "enough":
                raise BudgetExceeded(allowed)
            db.execute(
                "INSERT INTO taken VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0)",
                (name, day, app, need.origin, need.model, *most, *prices),
            )
        return Reservation(name, need.origin, need.model, need.most, need.answer_tokens)

    def settle(self, reservation: Reservation, use: CloudUse) -> int:
        """Put what a request did take in place of what was put aside; returns its cost.

        Counts that are guesses change nothing: the bill may be for more. A second settlement of
        the same reservation changes nothing either.

        Returns:
            Its cost in millionths of a dollar.
        """
        with self._transaction() as db:
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
        with self._transaction() as db:
            db.execute(
                "DELETE FROM taken WHERE id = ? AND is_settled = 0", (reservation.reservation_id,)
            )

    def allowance(self, need: Need, limits: Limits, app: str) -> Allowance:
        """Return whether a request would fit now, as `decide` takes it; nothing is put aside."""
        return allowance(need, limits, self.today(), self.today(app))

    def today(self, app: str | None = None) -> Amount:
        """Return what was taken since midnight UTC, by one program or by all."""
        if not self._is_there():
            return Amount()
        with self._open() as db:
            return _sum(db, self._day(db), app)

    def totals(self, day: str | None = None) -> tuple[Taken, ...]:
        """Return what was taken, the newest day first; of one day, or of all.

        Args:
            day: in UTC, such as `2026-05-31`.
        """
        if not self._is_there():
            return ()
        where, given = ("", ()) if day is None else ("WHERE day = ?", (day,))
        with self._open() as db:
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
        if self._is_there():
            with self._open() as db:
                found = db.execute("PRAGMA integrity_check(1)").fetchone()[0]
                if found != "ok":
                    raise self._damaged(str(found))

    def _day(self, db: sqlite3.Connection) -> str:
        """Return the day that is booked on: the newest one, where the clock was set back since."""
        now_s = self._clock()
        latest = _day_of(now_s + _LONGEST_SET_BACK_S)
        found = db.execute("SELECT MAX(day) FROM taken WHERE day <= ?", (latest,)).fetchone()[0]
        return max(_day_of(now_s), found or "")

    def _is_there(self) -> bool:
        """Return whether there is a ledger; one that was there and is gone is damage."""
        if os.path.lexists(self.path):
            return True
        if os.path.lexists(self.path.with_name(MARK_NAME)):
            raise self._damaged(f"it is gone; remove {MARK_NAME} as well if you took it away")
        return False

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Give the file for one step that is done whole or not at all, and that is on the disk."""
        if not self._is_there():
            self._make()
        with self._open() as db:
            db.execute("BEGIN IMMEDIATE")  # sums are read under the lock that the row is written in
            try:
                yield db
            except BaseException:
                if db.in_transaction:  # a full disk may have ended it
                    db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        if self.path.is_symlink() or self.path.stat().st_size == 0:
            raise self._damaged("it is empty, or a link")
        with self._mapped():
            db = sqlite3.connect(self.path, timeout=LOCK_WAIT_S, isolation_level=None)
            try:
                db.execute("PRAGMA synchronous = FULL")
                found = db.execute("PRAGMA application_id").fetchone()[0]
                version = db.execute("PRAGMA user_version").fetchone()[0]
                if (found, version) != (_APPLICATION_ID, _VERSION):
                    raise self._damaged("it is no ledger, or one of a newer edgellm")
                yield db
            finally:
                db.close()

    def _make(self) -> None:
        """Make an empty ledger beside its place, and put it there whole."""
        with self._records.locked(BOOK), self._mapped():
            if self._is_there():
                return
            temp = self.path.with_name(f".{FILE_NAME}.{os.getpid()}.tmp")
            temp.unlink(missing_ok=True)
            os.close(os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE_MODE))
            db = sqlite3.connect(temp, isolation_level=None)
            try:
                db.execute("PRAGMA journal_mode = WAL")
                db.executescript(_SCHEMA)
            finally:
                db.close()
            temp.rename(self.path)
            self._records.write(MARK_NAME, b"")

    @contextlib.contextmanager
    def _mapped(self) -> Iterator[None]:
        """Turn SQLite's errors into ours."""
        try:
            yield
        except sqlite3.DatabaseError as err:
            said = str(err)
            if any(word in said for word in _BUSY):
                raise EdgeLLMError(
                    f"another process has held the ledger for {LOCK_WAIT_S:g} s", path=self.path
                ) from err
            if any(word in said for word in _UNREACHABLE):
                raise RecordsUnavailable(
                    f"the ledger cannot be kept: {said}",
                    path=self.path,
                    hint="export EDGELLM_HOME=/some/folder that you may write to",
                ) from err
            raise self._damaged(said) from err
        except OverflowError as err:
            raise self._damaged("an amount is out of range") from err

    def _damaged(self, message: str) -> RecordsDamaged:
        hint = "move it away; the day's spending is then not known, so lower the budget for today"
        return RecordsDamaged(f"the ledger: {message}", path=self.path, hint=hint)


def _day_of(at_s: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(at_s))


def _sum(db: sqlite3.Connection, day: str, app: str | None = None) -> Amount:
    """Return what was taken on a day. Sums of integers below 2^53 are exact as `TOTAL` gives them."""
    row = db.execute(_SUM if app is None else f"{_SUM} AND app = ?", (day, app)[: 1 + bool(app)])
    return Amount(*(int(value) for value in row.fetchone()))
