"""The audit log: one record for each answer, none of its text, in a chain that shows every change.

A record's line is JSON in one fixed spelling. Its last field is a keyed hash over the line before and
the record itself, so nobody without the key of this installation can write or change one; the file
`audit.head`, keyed too, says how many there are, so the last ones cannot be cut off. What is not
seen: all files put back together to an older copy.

A record has some 700 bytes, and nothing deletes one. `restart` puts a log that became long aside, whole
and with its key; the first record of the new one names it, and where it ended.
"""

from __future__ import annotations

import io
import os
import secrets
import time
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Final

from edgellm.errors import RecordsDamaged, UsageError
from edgellm.fileio import PRIVATE_DIR_MODE, PRIVATE_FILE_MODE, no_room, open_regular
from edgellm.runtime.books.chain import (
    EMPTY,
    MAX_LINE_BYTES,
    Head,
    line_of,
    prompt_mac,
    read_line,
)
from edgellm.runtime.books.folder import Records
from edgellm.runtime.books.record import SENDING, AuditRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from edgellm.runtime.books.chain import (
        Line,
    )

BOOK: Final = "audit"
LOG_NAME: Final = "audit.jsonl"
HEAD_NAME: Final = "audit.head"
KEY_NAME: Final = "audit.key"
_KEY_BYTES: Final = 32
_SHOWN_DIGITS: Final = 32
_MAX_TAIL_BYTES: Final = 16 * MAX_LINE_BYTES
_SET_ASIDE: Final = "`edgellm audit restart` puts it aside for whoever looks into it"


class AuditLog:
    """The audit log below one `EDGELLM_HOME`.

    Args:
        home: the folder.
        clock: seconds since 1970.
    """

    def __init__(self, home: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._records = Records(home)
        self._clock = clock
        self.path = self._records.path / LOG_NAME

    def ready(self) -> None:
        """Make sure that a record can be added, before anything is sent that needs one.

        Raises:
            RecordsDamaged: the log is not what was written.
        """
        with self._records.locked(BOOK):
            self._open()

    def append(self, record: AuditRecord, prompt: bytes = b"") -> str:
        """Add a record and return its id. It is on the disk when this returns.

        Args:
            record: what is known of the answer; its time and the prompt's mark are filled in.
            prompt: the conversation in any fixed form; only a keyed hash of it is kept.

        Raises:
            RecordsDamaged: the log is not what was written.
            RecordsUnavailable: it cannot be written, or the disk is full.
        """
        with self._records.locked(BOOK):
            return self._append(record, prompt)

    def _append(self, record: AuditRecord, prompt: bytes = b"") -> str:
        """Add a record. The book is held."""
        key, head = self._open()
        mark = prompt_mac(key, prompt) if prompt else ""
        stamped = replace(record, time_s=round(self._clock(), 3), prompt=mark)
        line = line_of(key, head, stamped.to_wire())
        self._add(line.text)
        self._records.write(HEAD_NAME, head.behind(line).sealed(key))
        return line.record_id

    def verify(self) -> int:
        """Return how many records there are, all of them as they were written; each request counts.

        Raises:
            RecordsDamaged: one was changed, added, moved or removed; says which.
        """
        return sum(1 for _ in self._checked())

    def show(self) -> Iterator[tuple[str, AuditRecord]]:
        """Give the record of each answer with its id, the oldest first, each checked.

        What was written before a request is given only where no end follows it: that program was
        killed, or is still at it.

        Raises:
            RecordsDamaged: one was changed, added, moved or removed.
        """
        n_lines, ended = 0, set[str]()
        for line in self._checked():
            n_lines += 1
            if line.fields.get("turn") and line.fields.get("finish") != SENDING:
                ended.add(line.fields["turn"])
        for line in islice(self._checked(), n_lines):  # what came since is not known to be open
            record = self._record(line)
            if not (record.is_open and record.turn in ended):
                yield line.record_id, record

    def find(self, record_id: str) -> AuditRecord | None:
        """Return a record by its id, or None.

        Raises:
            RecordsDamaged: one before it was changed.
        """
        return next((record for name, record in self.show() if name == record_id), None)

    def restart(self) -> Path | None:
        """Put a log aside, whatever its state, and begin a new one that names it.

        Returns:
            Where the old one is, or None without one. That folder is an `EDGELLM_HOME` of its own, so
            that everything that reads a log can look into it.
        """
        with self._records.locked(BOOK):
            stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(self._clock()))
            aside = self._records.path / f"audit-{stamp}-{secrets.token_hex(4)}"
            names = (HEAD_NAME, LOG_NAME, KEY_NAME)
            there = [name for name in names if os.path.lexists(self._records.path / name)]
            if not there:
                return None
            ended = self._ended()
            with self._records.reaching():
                folder = Records(aside).path
                for one in (aside, folder):
                    one.mkdir(mode=PRIVATE_DIR_MODE)
                for name in there:
                    (self._records.path / name).rename(folder / name)
            reason = f"behind {aside.name}, {ended}"
            self._append(AuditRecord("edgellm", "", "none", "restart", reason, finish="restarted"))
            return aside

    def _ended(self) -> str:
        """Say where the log ends; the book is held."""
        try:
            head = self._open()[1]
        except RecordsDamaged:
            return "which is damaged"
        return f"{head.n_records} records up to {head.last[:_SHOWN_DIGITS]}"

    def _open(self) -> tuple[bytes, Head]:
        """Return the key and the true head: a kill may have come between a record and its count.

        The book is held.
        """
        state = self._state()
        if state is None:
            key = secrets.token_bytes(_KEY_BYTES)
            self._records.write(HEAD_NAME, EMPTY.sealed(key))
            self._records.write(KEY_NAME, key)  # last: a key alone means that a log was taken away
            return key, EMPTY
        key, head = state
        head, n_torn = self._caught_up(key, head)
        if n_torn:  # of a record that nobody was told of
            with self._records.reaching():
                os.truncate(self.path, head.n_bytes)
        return key, head

    def _state(self) -> tuple[bytes, Head] | None:
        """Return the key and the head on disk; None where no log was begun."""
        key, content = self._records.read(KEY_NAME), self._records.read(HEAD_NAME)
        n_bytes = self._n_bytes()
        if key is None and n_bytes == 0 and (content is None or Head.is_empty(content)):
            return None
        if key is None or len(key) != _KEY_BYTES:
            raise self._damaged("its key is missing or too short")
        head = None if content is None else Head.opened(key, content)
        if head is None:
            raise self._damaged("its head is missing, or not what was written")
        if n_bytes < head.n_bytes:
            raise self._damaged(f"its end is missing: {n_bytes} bytes of {head.n_bytes} are left")
        return key, head

    def _caught_up(self, key: bytes, head: Head) -> tuple[Head, int]:
        """Return the head with the whole records behind it, and the length of a torn one."""
        if self._n_bytes() == head.n_bytes:
            return head, 0
        with open_regular(self.path) as (file, status):
            file.seek(head.n_bytes)
            tail = file.read(_MAX_TAIL_BYTES)
        if head.n_bytes + len(tail) < status.st_size:
            raise self._damaged(f"more follows record {head.n_records} than a kill can leave")
        while end := tail.find(b"\n") + 1:
            head = self._next(key, head, tail[:end])[1]
            tail = tail[end:]
        return head, len(tail)

    def _checked(self) -> Iterator[Line]:
        """Give every line, checked against the one before and against the head."""
        if not os.path.lexists(self._records.path):
            return  # nothing is made by asking
        with self._records.locked(BOOK):
            state = self._state()
            if state is None:
                return
            key, written = state
            whole, _ = self._caught_up(key, written)
        if whole == EMPTY:
            return
        with open_regular(self.path) as (raw, _), io.BufferedReader(raw) as file:  # type: ignore[type-var]  # it is a raw file
            head = EMPTY
            while head.n_bytes < whole.n_bytes:
                line, head = self._next(key, head, file.readline(MAX_LINE_BYTES))
                if head.n_records == written.n_records and head != written:
                    raise self._damaged(f"record {line.n} is not the one that its head names")
                yield line
        if head != whole:
            raise self._damaged(f"{head.n_records} records of {whole.n_records} are there")

    def _next(self, key: bytes, head: Head, text: bytes) -> tuple[Line, Head]:
        """Return the line that follows a head, and the head behind it."""
        line = read_line(key, head, text)
        if line is None:
            raise self._damaged(f"record {head.n_records} is not what was written")
        return line, head.behind(line)

    def _record(self, line: Line) -> AuditRecord:
        try:
            return AuditRecord.from_wire(line.fields)
        except UsageError as err:  # true, and of a newer program
            raise self._damaged(f"record {line.n} cannot be read: {err.message}") from err

    def _add(self, text: bytes) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        with self._records.reaching():
            fd = os.open(self.path, flags | getattr(os, "O_BINARY", 0), PRIVATE_FILE_MODE)
            n_written = 0
            try:
                while n_written < len(text):
                    n_written += os.write(fd, text[n_written:])
                os.fsync(fd)
            except OSError as err:
                raise no_room(err, self.path, n_written) or err from err
            finally:
                os.close(fd)

    def _n_bytes(self) -> int:
        try:
            with open_regular(self.path) as (_, status):
                return status.st_size
        except (FileNotFoundError, NotADirectoryError):
            return 0
        except OSError as err:
            raise self._damaged(f"it cannot be read: {err}") from err

    def _damaged(self, message: str) -> RecordsDamaged:
        return RecordsDamaged(f"the audit log: {message}", path=self.path, hint=_SET_ASIDE)
