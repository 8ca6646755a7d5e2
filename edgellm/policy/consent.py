"""A user's leave to send conversations to one endpoint: its text, its seal, whether it still holds.

Pure. A leave is for one program, place, model, set of data classes and daily amount, for 90 days at
most; change any of these and it is no leave any more. The seal is a hash over all fields, the text
that was shown among them, so that a record that was edited does not count.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final, Literal

from edgellm.errors import UsageError
from edgellm.policy.budget import format_usd
from edgellm.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from edgellm.policy.route import ConsentState

DataClass = Literal["history", "system", "tools"]
ALL_DATA: Final[tuple[DataClass, ...]] = ("history", "system", "tools")
"""A turn that is made anew elsewhere takes all of these along, so all are asked for at once."""
MAX_DAYS: Final = 90
DAY_S: Final = 24 * 3600
_MAX_NAME: Final = 200
_NO_DATE_S: Final = 1 << 36  # from here on some systems have no date to show
_KINDS: Final[Mapping[DataClass, str]] = {
    "history": "every message of the conversation, and the answer so far",
    "system": "the system prompt",
    "tools": "the descriptions of tools",
}


@dataclass(frozen=True, slots=True)
class Consent(Wire):
    """A leave as it was given.

    Attributes:
        app: the program that may send.
        origin: scheme, host and port that it may send to.
        model: what may be asked there.
        data: what of a conversation may go.
        max_micro_usd_per_day: the most that this program may spend there, in millionths of a dollar.
        granted_s: when, in seconds since 1970.
        expires_s: until when.
        text: what the user read when saying yes.
        seal: hash of all the above; "" in a draft.
    """

    app: str
    origin: str
    model: str
    data: tuple[DataClass, ...]
    max_micro_usd_per_day: int
    granted_s: int
    expires_s: int
    text: str
    seal: str = ""

    @property
    def consent_id(self) -> str:
        """The name of this very leave, for the audit log."""
        return self.seal[:16]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is about to be done, for which a leave is looked for.

    Attributes:
        app, origin, model: as in `Consent`.
        data: what of the conversation would go.
    """

    app: str
    origin: str
    model: str
    data: tuple[DataClass, ...] = ALL_DATA


def draft(wanted: Wanted, *, micro_usd_per_day: int, now_s: float, days: int = MAX_DAYS) -> Consent:
    """Return the leave to be shown to the user; only a yes to its `text` makes it one.

    Args:
        wanted: what is asked for.
        micro_usd_per_day: the most that may be spent, in millionths of a dollar.
        now_s: seconds since 1970.
        days: for how long.

    Raises:
        UsageError: a name is empty, long or unprintable, or a number out of range.
    """
    for name, value in (("app", wanted.app), ("origin", wanted.origin), ("model", wanted.model)):
        if not value.isprintable() or not 0 < len(value) <= _MAX_NAME:
            raise UsageError(f"{name} must be printable, and 1 to {_MAX_NAME} characters long")
    if not 0 < days <= MAX_DAYS or micro_usd_per_day < 0:
        raise UsageError(f"a consent is for 1 to {MAX_DAYS} days, and an amount of 0 or more")
    if not wanted.data or not set(wanted.data) <= set(ALL_DATA):
        raise UsageError(f"a consent is for one or more of {', '.join(ALL_DATA)}")
    granted_s = int(now_s)
    blank = Consent(
        app=wanted.app,
        origin=wanted.origin,
        model=wanted.model,
        data=tuple(kind for kind in ALL_DATA if kind in wanted.data),
        max_micro_usd_per_day=micro_usd_per_day,
        granted_s=granted_s,
        expires_s=granted_s + days * DAY_S,
        text="",
    )
    return replace(blank, text=text_of(blank))


def text_of(consent: Consent) -> str:
    """Return what the user is shown, made of the other fields alone."""
    until = datetime.fromtimestamp(consent.expires_s, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    lines = [
        f"{consent.app} may send to {consent.origin}, model {consent.model}:",
        *(f"  - {_KINDS[kind]}" for kind in consent.data),
        f"It may spend {format_usd(consent.max_micro_usd_per_day)} a day there, until {until}.",
        "It does so only where the mode allows it, and notes each time in the audit log.",
    ]
    return "\n".join(lines)


def sealed(consent: Consent) -> Consent:
    """Return the leave with its seal: the user has said yes."""
    return replace(consent, seal=_seal(consent))


def look(
    consents: Iterable[Consent], wanted: Wanted, now_s: float
) -> tuple[ConsentState, Consent | None]:
    """Return whether there is a leave for what is wanted, and the one that decided it.

    Args:
        consents: all that were given and not revoked.
        wanted: what is about to be done.
        now_s: seconds since 1970.
    """
    state: ConsentState = "none"
    found: Consent | None = None
    for consent in consents:
        if (consent.app, consent.origin) != (wanted.app, wanted.origin):
            continue
        if not _covers(consent, wanted):
            state, found = ("changed", consent) if state == "none" else (state, found)
        elif not consent.granted_s - DAY_S <= now_s < consent.expires_s:
            state, found = "expired", consent
        else:
            return "valid", consent
    return state, found


def _covers(consent: Consent, wanted: Wanted) -> bool:
    is_whole = (
        consent.seal == _seal(consent)
        and 0 <= consent.expires_s < _NO_DATE_S
        and consent.text == text_of(consent)  # an older program may have asked something else
        and 0 < consent.expires_s - consent.granted_s <= MAX_DAYS * DAY_S
    )
    return is_whole and consent.model == wanted.model and set(wanted.data) <= set(consent.data)


def _seal(consent: Consent) -> str:
    fields = consent.to_wire() | {"seal": ""}
    plain = json.dumps(fields, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(plain.encode()).hexdigest()
