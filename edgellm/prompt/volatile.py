"""How text that is another one next time is spelled: dates, clocks, ids, counters, temporary paths.

Each kind is a pattern, and a test for what a pattern cannot say. What looks like one and is a constant
more often than not (opening hours, numbered steps, the day a model's knowledge ends) is left alone, or
a hint where a line says so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_MOVE: Final = "move it behind the stable text, such as into the user's message"
_MONTH: Final = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|"
    r"sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\.?"
)
_WEEKDAY: Final = r"(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?"
_DAY: Final = r"(?:0?[1-9]|[12]\d|3[01])"
_CLOCK: Final = r"(?:[01]?\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:[.,]\d{1,9})?)?"
_ZONE: Final = r"(?:\s?(?:Z|UTC|GMT|[+-]\d{2}:?\d{2})\b)?"
# Dates that stand for what happened once.
_ONCE: Final = re.compile(
    r"cut-?off|since|until|born|releas|version|copyright|\(c\)|\u00a9|publish|found(?:ed|ing)|"
    r"effective|law|act\b|rfc|iso|example|e\.g\.|deprecat|valid (?:from|to)|expir",
    re.IGNORECASE,
)
_NOW: Final = re.compile(
    r"\b(?:now|today|current|currently|time|clock|generated|updated|started|rendered|timestamp|as of)"
    r"\b|\uc624\ub298|\ud604\uc7ac",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of volatile text.

    Attributes:
        name: in one or two words.
        pattern: what it looks like; its group `it`, if there is one, is the text itself.
        fix: what to do about it.
        is_one: looks closer, at what was found and at the whole line.
        is_hint: whether it may well be a constant, judged by the same.
    """

    name: str
    pattern: re.Pattern[str]
    fix: str
    is_one: Callable[[str, str], bool] = lambda _found, _line: True
    is_hint: Callable[[str, str], bool] = lambda _found, _line: False


def _once(_found: str, line: str) -> bool:
    return _ONCE.search(line) is not None and _NOW.search(line) is None


def _says_now(found: str, line: str) -> bool:
    """Return whether a clock time is of a moment: to the second, or beside a word for now."""
    return found.count(":") > 1 or _NOW.search(line) is not None


def _is_random(found: str, _line: str) -> bool:
    """Return whether letters of both cases and digits are mixed as no name mixes them."""
    signs = (str.isdigit, str.isupper, str.islower)
    return all(sum(map(sign, found)) >= 2 for sign in signs) and not re.search("[a-z]{7}", found)


def _has_both(found: str, _line: str) -> bool:
    return any(c.isdigit() for c in found) and any(c.isalpha() for c in found)


def _has_digit(found: str, _line: str) -> bool:
    return any(c.isdigit() for c in found)


def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE | re.ASCII)


_MOMENT: Final = "round it to the day, or " + _MOVE
_ID: Final = "leave it out: the model needs no id of this request; else " + _MOVE

# The first that takes a place has it.
KINDS: Final = (
    Kind(
        "uuid",
        _compiled(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"),
        _ID,
    ),
    Kind(
        "time",
        _compiled(rf"\b(?:19|20)\d\d[-/]?(?:0[1-9]|1[0-2])[-/]?{_DAY}[T ,]+{_CLOCK}{_ZONE}"),
        _MOMENT,
    ),
    Kind(
        "date",
        _compiled(
            rf"\b(?:(?:19|20)\d\d([-/.])(?:0?[1-9]|1[0-2])\1{_DAY}"
            rf"|{_DAY}([/.])(?:0?[1-9]|1[0-2])\2(?:19|20)\d\d"
            rf"|(?:0?[1-9]|1[0-2])/{_DAY}/(?:19|20)\d\d)\b(?![-/.]\d)"
        ),
        _MOVE,
        is_hint=_once,
    ),
    Kind(
        "date",
        _compiled(
            rf"\b(?:{_WEEKDAY},?\s+)?(?:the\s+)?(?:{_DAY}(?:st|nd|rd|th)?\s+(?:of\s+)?{_MONTH}"
            rf"|{_MONTH}\s+{_DAY}(?:st|nd|rd|th)?\b)(?:,?\s+(?:19|20)\d\d)?(?![\w:])"
        ),
        _MOVE,
        is_one=_has_digit,
        is_hint=_once,
    ),
    Kind(
        "date",
        re.compile(
            r"(?:19|20)\d\d\s?[\u5e74\ub144]\s?\d{1,2}\s?[\u6708\uc6d4](?:\s?\d{1,2}\s?[\u65e5\uc77c])?"
        ),
        _MOVE,
        is_hint=_once,
    ),
    Kind("date", _compiled(rf"\b(?:today|now)\s+is\s+(?P<it>{_WEEKDAY})\b"), _MOVE),
    Kind(
        "time",
        _compiled(rf"(?<![\d:]){_CLOCK}(?:\s?[ap]\.?m\b)?{_ZONE}(?![\d:])"),
        _MOMENT,
        is_one=_says_now,
    ),
    Kind(
        "epoch",
        _compiled(r"(?<![\w.])1[5-9]\d{8}(?:\d{3}|\d{6}|\d{9}|\.\d+)?(?![\w.]\d|\w)"),
        _MOMENT,
    ),
    Kind(
        "id",
        _compiled(
            r"\b(?:request|session|trace|span|correlation|conversation|thread|transaction|message|job|"
            r"execution|invocation|run|user|nonce|etag)[ _-]?(?:id|key|token|number|no\.?)?"
            r"[\"']?\s*(?:[:=#]|\bis\b)\s*[\"'#]*(?P<it>[\w-]{4,})"
        ),
        _ID,
        is_one=_has_digit,
    ),
    Kind(
        "id",
        _compiled(
            r"\b(?:req|sess|session|chatcmpl|run|thread|msg|call|conv|trace|job|usr|user|evt)[_-]"
            r"[0-9a-z]{8,}\b"
        ),
        _ID,
        is_one=_has_digit,
    ),
    Kind("address", _compiled(r"\bat 0x[0-9a-f]{6,16}\b"), "print the value, not the object"),
    Kind("hex id", _compiled(r"(?<!\w)(?:0x)?[0-9a-f]{12,}(?!\w)"), _ID, is_one=_has_both),
    Kind(
        "base64 id",
        re.compile(r"(?<![\w+/=-])[\w+/-]{20,}={0,2}(?![\w+/=-])", re.ASCII),
        _ID,
        is_one=_is_random,
    ),
    Kind(
        "temporary path",
        _compiled(
            r"(?:/private)?/(?:tmp|var/tmp|var/folders|dev/shm|run/user/\d+)/[^\s\"'`<>)\]]+"
            r"|[a-z]:[\\/][^\s\"'`<>]*[\\/]temp[\\/][^\s\"'`<>]+|/proc/\d+\b[^\s\"'`<>)]*"
        ),
        "name a folder that stays, or " + _MOVE,
    ),
    Kind(
        "counter",
        _compiled(
            r"\b(?:run|job|session|request|conversation|chat|execution|invocation|transaction|visit)"
            r"\s*(?:#|\bno\.|\bnumber\b)\s*(?P<it>\d{1,9})\b"
        ),
        _MOVE,
    ),
    Kind(
        "counter",
        _compiled(
            r"\b(?:attempts?|turn|messages?|requests?|iteration|retry|retries|counter|count|build|"
            r"tokens? (?:left|used|remaining)|remaining(?: \w+)?|uptime|pid|process id|visits?)"
            r"(?:\s*(?:[:=#]|\bno\.?|\bnumber)\s*#?|\s+(?=\d+\s+of\b))(?P<it>\d+(?:\.\d+)?)\b"
        ),
        _MOVE,
    ),
)
