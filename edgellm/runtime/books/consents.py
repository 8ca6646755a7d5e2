"""The consents that were given, in one file. What is damaged is no consent, and is said.

Nothing here asks: who shows the text and takes the answer is a door. No terminal, no consent.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from edgellm.errors import RecordsDamaged, UsageError
from edgellm.policy.consent import Consent, look, sealed
from edgellm.runtime.books.folder import Records

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from edgellm.policy.consent import Wanted
    from edgellm.policy.route import ConsentState

BOOK: Final = "consents"
FILE_NAME: Final = "consents.json"
_VERSION: Final = 1


class ConsentBook:
    """The consents below one `EDGELLM_HOME`.

    Args:
        home: the folder.
        clock: seconds since 1970.
    """

    def __init__(self, home: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._records = Records(home)
        self._clock = clock

    def grant(self, draft: Consent) -> Consent:
        """Keep a draft whose text the user has read and agreed to; one for the same place goes.

        Raises:
            RecordsDamaged: the file is not what was written.
        """
        granted = sealed(draft)
        with self._records.locked(BOOK):
            place = (granted.app, granted.origin, granted.model)
            others = [one for one in self.show() if (one.app, one.origin, one.model) != place]
            self._write([*others, granted])
        return granted

    def show(self) -> tuple[Consent, ...]:
        """Return all that were given and not revoked, expired ones too.

        Raises:
            RecordsDamaged: the file is not what was written.
        """
        value = self._records.read_json(FILE_NAME)
        if value is None:
            return ()
        path = self._records.path / FILE_NAME
        if value.get("version") != _VERSION or not isinstance(value.get("consents"), list):
            raise RecordsDamaged(
                "is no file of consents", path=path, hint="`edgellm consent revoke --all`"
            )
        try:
            return tuple(Consent.from_wire(one) for one in value["consents"])
        except UsageError as err:
            raise RecordsDamaged(
                err.message, path=path, hint="`edgellm consent revoke --all`"
            ) from err

    def find(self, wanted: Wanted) -> tuple[ConsentState, Consent | None]:
        """Return whether there is a leave for what is wanted, and the one that decided it.

        Raises:
            RecordsDamaged: the file is not what was written.
        """
        return look(self.show(), wanted, self._clock())

    def state(self, wanted: Wanted) -> ConsentState:
        """Return whether there is a leave for what is wanted, as `decide` takes it.

        Raises:
            RecordsDamaged: the file is not what was written.
        """
        return self.find(wanted)[0]

    def revoke(self, *, app: str | None = None, origin: str | None = None) -> int:
        """Take consents back, and return how many; None stands for any.

        All of them go even where the file is damaged.
        """
        with self._records.locked(BOOK):
            is_all = app is None and origin is None
            try:
                given = self.show()
            except RecordsDamaged:
                if not is_all:
                    raise
                given = ()
            kept = [
                one
                for one in given
                if not (app in (None, one.app) and origin in (None, one.origin))
            ]
            self._write(kept)
        return len(given) - len(kept)

    def _write(self, consents: list[Consent]) -> None:
        value = {"version": _VERSION, "consents": [one.to_wire() for one in consents]}
        self._records.write_json(FILE_NAME, value)
