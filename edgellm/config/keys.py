"""The settings there are: each with its kind, its range, and how it is typed on a command line."""

from __future__ import annotations

import contextlib
import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, cast, get_args

from edgellm.core import Mode
from edgellm.errors import UsageError
from edgellm.routing import MAX_USD, Continuation, OnFailure, origin_of

if TYPE_CHECKING:
    from collections.abc import Mapping

Isolation = Literal["worker", "none"]
Kind = Literal["text", "url", "number", "whole", "switch", "choice"]
Value = str | int | float | bool

ON: Final = ("1", "true", "on")
OFF: Final = ("0", "false", "off")
MODES: Final = tuple(mode.value for mode in Mode)
"""Names of the modes, the strictest first."""
_MAX_TEXT: Final = 2048
_MAX_COUNT: Final = 1 << 50
_MAX_SECONDS: Final = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Key:
    """One setting.

    Attributes:
        kind: what its value is.
        meaning: one phrase for the person reading.
        choices: the only values of a `choice`.
        high: the largest number; the smallest is 0.
    """

    kind: Kind
    meaning: str
    choices: tuple[str, ...] = ()
    high: float = 0


KEYS: Final[Mapping[str, Key]] = {
    "mode": Key("choice", "which routes an answer may take", MODES),
    "on_failure": Key("choice", "what becomes of an answer that breaks off", get_args(OnFailure)),
    "deadline_s": Key("number", "seconds to the first token, or ask elsewhere", high=_MAX_SECONDS),
    "isolation": Key("choice", "where the engine runs", get_args(Isolation)),
    "local_usd_per_mtok": Key("number", "what a million tokens cost here, as power", high=MAX_USD),
    "endpoint.url": Key("url", "an OpenAI-compatible server"),
    "endpoint.model": Key("text", "what it calls the model"),
    "endpoint.usd_per_mtok_in": Key("number", "price of a million prompt tokens", high=MAX_USD),
    "endpoint.usd_per_mtok_out": Key("number", "of a million answer tokens", high=MAX_USD),
    "endpoint.continues": Key("choice", "how it goes on with a begun text", get_args(Continuation)),
    "endpoint.ca_file": Key("text", "certificates to trust in place of the system's"),
    "endpoint.uses_proxy": Key("switch", "whether the proxy variables count"),
    "endpoint.connect_s": Key("number", "longest wait for a connection", high=_MAX_SECONDS),
    "endpoint.first_byte_s": Key("number", "from there to the first byte", high=_MAX_SECONDS),
    "endpoint.idle_s": Key("number", "between two bytes", high=_MAX_SECONDS),
    "budget.usd_per_day": Key("number", "the most to spend from midnight UTC", high=MAX_USD),
    "budget.usd_per_request": Key("number", "the most to spend on one answer", high=MAX_USD),
    "budget.tokens_per_day": Key("whole", "prompts and answers together", high=_MAX_COUNT),
    "budget.bytes_per_day": Key("whole", "bytes sent out", high=_MAX_COUNT),
    "budget.allow_unpriced": Key("switch", "whether a server of unknown price may be asked"),
}


def key_of(name: str, keys: Mapping[str, Key] = KEYS) -> Key:
    """Return what is known of a dotted key.

    Raises:
        UsageError: nothing is; the nearest name is in the hint.
    """
    if name in keys:
        return keys[name]
    if name.rpartition(".")[2] in ("api_key", "key", "token", "password"):
        raise UsageError(
            f"{name!r} is no setting: secrets are not kept in this file",
            hint="export EDGELLM_API_KEY, or keep the key in the system's keyring",
        )
    near = difflib.get_close_matches(name, keys, n=1, cutoff=0.5)
    hint = f"did you mean `{near[0]}`?" if near else f"known are {', '.join(keys)}"
    raise UsageError(f"there is no setting {name!r}", hint=hint)


def checked(name: str, key: Key, value: object) -> Value:
    """Return a value if it is one for that key.

    Raises:
        UsageError: it is not.
    """
    if key.kind == "switch" and isinstance(value, bool):
        return value
    if key.kind == "choice" and value in key.choices:
        return str(value)
    if key.kind in ("text", "url") and isinstance(value, str) and 0 < len(value) <= _MAX_TEXT:
        if key.kind == "url":
            origin_of(value)
        return value
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if key.kind == "number" and is_number and 0 <= cast("float", value) <= key.high:
        return cast("float", value)
    if key.kind == "whole" and is_number and isinstance(value, int) and 0 <= value <= key.high:
        return value
    raise UsageError(f"{name} must be {_wanted(key)}, not {str(value)[:80]!r}")


def _wanted(key: Key) -> str:
    if key.kind == "choice":
        return f"one of {', '.join(key.choices)}"
    number = "a whole number" if key.kind == "whole" else "a number"
    named = {"switch": "true or false", "text": "text, not empty", "url": "a URL"}
    return named.get(key.kind, f"{number} between 0 and {key.high:g}")


def parse(name: str, key: Key, text: str) -> Value:
    """Return a value as typed on a command line.

    Raises:
        UsageError: it is none for that key.
    """
    value: object = text
    word = text.strip().lower()
    if key.kind == "switch":
        value = True if word in ON else False if word in OFF else text
    elif key.kind in ("number", "whole"):
        for read in (int, float):
            with contextlib.suppress(ValueError):
                value = read(word)
                break
    return checked(name, key, value)
