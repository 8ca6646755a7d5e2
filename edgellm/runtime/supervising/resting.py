"""Resting: the breaker of one model on this machine, which outlives programs.

Only deaths for want of memory count: what the engine refuses in words may be tried with other settings
at once. A worker that lives has shown that its settings fit.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import TYPE_CHECKING

from edgellm.errors import RecordsUnavailable
from edgellm.runtime.books.breakers import BreakerBook, local_key

if TYPE_CHECKING:
    from pathlib import Path

    from edgellm.policy.route import BreakerState
    from edgellm.runtime.supervising.place import Place


class Resting:
    """The breaker of one place.

    Args:
        place: whose worker it is about.
        home: the folder of the books.
        insists: whether the user wants it tried while it rests: a careful try is due at once.
    """

    def __init__(self, place: Place, home: Path, *, insists: bool = False) -> None:
        self._place = place
        self._insists = insists
        self._book = BreakerBook(home)
        self._key = local_key(_file_key(place.path), place.descent.backend, place.descent.n_ctx)

    def state(self) -> BreakerState:
        """Return its state; where it rests, free memory is looked at, which may end that.

        Where no book can be kept there is no rest: it could not end.

        Raises:
            RecordsDamaged: the book is not what was written.
        """
        try:
            return self._state()
        except RecordsUnavailable:
            return "closed"

    def rest_s(self) -> float:
        """Return the seconds to the end of its rest, 0 where it has none or nobody knows."""
        try:
            return self._book.local_rest_s(self._key)
        except RecordsUnavailable:
            return 0.0

    def _state(self) -> BreakerState:
        state = self._book.local_state(self._key)
        if state == "open" and self._insists:
            return "half_open"
        if state == "open" and self._place.is_alive:
            return "closed"
        return (
            self._book.note_look(self._key, fits=self._place.descent.fits())
            if state == "open"
            else state
        )

    def note_death(self) -> None:
        """Note that memory ran out, where that can be kept."""
        with suppress(RecordsUnavailable):
            self._book.note_death(self._key)

    def note_success(self) -> None:
        """Note that an answer was made after the rest: all is well again."""
        with suppress(RecordsUnavailable):
            self._book.note_warm_up(self._key)


def _file_key(path: Path) -> str:
    """Return a name for a model file, without reading it whole: it may just have been too much."""
    try:
        status = path.stat()
    except OSError:
        return "absent"
    marks = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    return hashlib.sha256(repr(marks).encode()).hexdigest()[:32]
