"""The ledger's file: made whole, opened only where it is ours, each step one transaction.

A file that is empty, foreign, damaged or gone is refused: its sums would be too small.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from typing import TYPE_CHECKING, Final

from edgellm.errors import EdgeLLMError, RecordsDamaged, RecordsUnavailable
from edgellm.fileio import PRIVATE_FILE_MODE
from edgellm.runtime.books.folder import LOCK_WAIT_S, Records

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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
_BUSY: Final = ("locked", "busy")
_UNREACHABLE: Final = ("readonly", "unable to open", "disk I/O", "full")


class LedgerFile:
    """The file below one `EDGELLM_HOME`, and SQLite's errors as ours.

    All methods raise `RecordsDamaged` for a file that is not what was written, `RecordsUnavailable`
    where it cannot be kept (a full disk, say), and `EdgeLLMError` where another process holds it for
    too long.

    Args:
        home: the folder.

    Attributes:
        path: of the file.
    """

    def __init__(self, home: Path) -> None:
        self._records = Records(home)
        self.path = self._records.path / FILE_NAME

    def is_there(self) -> bool:
        """Return whether there is a ledger; one that was there and is gone is damage."""
        if os.path.lexists(self.path):
            return True
        if os.path.lexists(self.path.with_name(MARK_NAME)):
            raise self.damaged(f"it is gone; remove {MARK_NAME} as well if you took it away")
        return False

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Give the file for one step that is done whole or not at all, and that is on the disk."""
        if not self.is_there():
            self._make()
        with self.open() as db, db:  # which commits, or rolls back what a full disk left
            db.execute("BEGIN IMMEDIATE")  # sums are read under the lock that the row is written in
            yield db

    @contextlib.contextmanager
    def open(self) -> Iterator[sqlite3.Connection]:
        """Give the file for reading."""
        if self.path.is_symlink() or self.path.stat().st_size == 0:
            raise self.damaged("it is empty, or a link")
        with self.mapped():
            db = sqlite3.connect(self.path, timeout=LOCK_WAIT_S, isolation_level=None)
            try:
                db.execute("PRAGMA synchronous = FULL")
                found = db.execute("PRAGMA application_id").fetchone()[0]
                version = db.execute("PRAGMA user_version").fetchone()[0]
                if (found, version) != (_APPLICATION_ID, _VERSION):
                    raise self.damaged("it is no ledger, or one of a newer edgellm")
                yield db
            finally:
                db.close()

    def _make(self) -> None:
        """Make an empty ledger beside its place, and put it there whole."""
        with self._records.locked(BOOK), self.mapped():
            if self.is_there():
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
    def mapped(self) -> Iterator[None]:
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
            raise self.damaged(said) from err
        except OverflowError as err:
            raise self.damaged("an amount is out of range") from err

    def damaged(self, message: str) -> RecordsDamaged:
        """Return the error for a file that is not what was written."""
        hint = "move it away; the day's spending is then not known, so lower the budget for today"
        return RecordsDamaged(f"the ledger: {message}", path=self.path, hint=hint)
