# ruff: noqa: SIM905  (names in one text read better than forty quoted ones)
"""The filters, tests and methods a chat template may use, each with its cost bounded beforehand.

Lists of what is allowed, not of what is forbidden: a new Jinja release adds nothing here by itself.
"""

from __future__ import annotations

import functools
import json
import re
import string
from typing import TYPE_CHECKING, Any

from jinja2.exceptions import SecurityError
from jinja2.filters import FILTERS
from jinja2.tests import TESTS

from edgellm.prompt.meter import MAX_ITEMS, is_plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from edgellm.prompt.meter import Meter

MAX_WIDTH = 1000
_MAX_JSON_INDENT = 8
_MAX_ROUND_DIGITS = 100
_JSON_GROWTH = 6  # one control character becomes \u00XX

# What these cost does not depend on the size of the value.
_FREE = frozenset("length count first last default d attr safe".split())
# These read the value once, from the outside.
_SHALLOW = frozenset("items list map reject rejectattr reverse select selectattr".split())
# These read it whole: numbers and texts, or containers down to the leaves.
_DEEP = frozenset(
    "abs capitalize center dictsort e escape float format groupby indent int join lower max min "
    "replace round sort string sum title tojson trim truncate unique upper".split()
)
# Filters whose value may be a long text: the others would make one item of every character.
_TEXT = _FREE | frozenset(
    "capitalize center e escape float format indent int lower replace reverse string tojson trim "
    "truncate upper".split()
)

METHODS: dict[type, frozenset[str]] = {
    str: frozenset(
        "capitalize casefold center count endswith find format format_map index isalnum isalpha "
        "isascii isdecimal isdigit islower isnumeric isspace istitle isupper join ljust lower "
        "lstrip partition removeprefix removesuffix replace rfind rindex rjust rpartition rsplit "
        "rstrip split splitlines startswith strip swapcase title upper zfill".split()
    ),
    dict: frozenset("get items keys values copy".split()),
    list: frozenset("count index copy".split()),
    tuple: frozenset("count index".split()),
    range: frozenset("count index".split()),
    int: frozenset(),
    float: frozenset(("is_integer",)),
    bytes: frozenset(),
    type(None): frozenset(),
}
"""Methods of plain values by type; a value of such a type has no other."""


def allowed_filters(meter: Callable[[], Meter]) -> dict[str, Any]:
    """Return the filters by name, each counting on the meter of the render that runs."""
    named = {**FILTERS, "tojson": functools.partial(_tojson, meter)}
    return {name: _metered(name, named[name], meter) for name in _FREE | _SHALLOW | _DEEP}


def allowed_tests(meter: Callable[[], Meter]) -> dict[str, Any]:
    """Return Jinja's tests by name; what they compare is counted."""

    def metered(test: Any) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            meter().step()
            if len(args) > 1:
                for arg in args:
                    meter().seen(arg)
            return test(*args, **kwargs)

        # The mark that makes Jinja pass its environment stands in the function's attributes.
        run.__dict__.update(getattr(test, "__dict__", {}))
        return run

    return {name: metered(test) for name, test in TESTS.items()}


def guard_method(
    meter: Meter, owner: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Refuse a method call on a plain value whose result would be too large; count the rest."""
    if not isinstance(owner, str):
        (meter.seen if name in {"count", "index"} else meter.iterated)(owner)
        return
    meter.seen(owner)
    if name in {"center", "ljust", "rjust", "zfill"}:
        check_width(args[0] if args else 0)
    elif name == "replace" and len(args) >= 2:
        _check_replace(meter, owner, *args[:3])
    elif name == "join" and args:
        _check_join(meter, owner, args[0])
    elif name in {"split", "rsplit"}:
        _check_split(owner, *args, **kwargs)
    elif name == "splitlines":
        _check_split(owner, "\n")


def check_width(width: Any) -> None:
    """Refuse a padding wider than any prompt needs."""
    if isinstance(width, int) and width > MAX_WIDTH:
        raise SecurityError(f"it pads text to more than {MAX_WIDTH} characters")


def check_percent(meter: Meter, text: str, values: Any) -> None:
    """Refuse `text % values` if a width is wide or computed, or the result too long."""
    if re.search(r"%[^a-zA-Z%]*(\d{4}|\*)", text):
        raise SecurityError(f"it pads text to more than {MAX_WIDTH} characters")
    items = values if isinstance(values, (tuple, dict)) else (values,)
    _check_fields(meter, text, text.count("%"), items)


def check_format(meter: Meter, text: str, values: Iterable[Any]) -> None:
    """Refuse `text.format(values)` unless its fields are plain and its widths small."""
    n_fields = 0
    for _, field, spec, _ in string.Formatter().parse(text):
        if field is None:
            continue
        n_fields += 1
        if re.search(r"[.\[]", field):
            raise SecurityError("a field of a format text may not reach into a value")
        if spec and re.search(r"\d{4}|\{", spec):
            raise SecurityError(f"it pads text to more than {MAX_WIDTH} characters")
    _check_fields(meter, text, n_fields, tuple(values))


def printed_chars(meter: Meter, value: Any) -> int:
    """Return about how many characters a value prints as; refuse what is no plain value."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, (list, tuple, dict)):
        return meter.walk(value, printable=True)
    if not is_plain(value):
        raise SecurityError("only texts, numbers, lists and mappings can be text")
    return 24


def _check_fields(meter: Meter, text: str, n_fields: int, values: Any) -> None:
    items = values.values() if isinstance(values, dict) else values
    longest = max((printed_chars(meter, item) for item in items), default=0)
    meter.text(len(text) + n_fields * longest)


def _check_replace(meter: Meter, text: str, old: Any, new: Any, count: Any = -1) -> None:
    if not (isinstance(old, str) and isinstance(new, str)):
        raise SecurityError("replace takes two texts")
    n_found = text.count(old)
    if isinstance(count, int) and count >= 0:
        n_found = min(n_found, count)
    meter.text(len(text) + n_found * max(0, len(new) - len(old)))


def _check_split(text: str, sep: Any = None, maxsplit: Any = -1) -> None:
    # As many parts are split off as are allowed, to see whether anything is left to split.
    if len(text) > MAX_ITEMS and maxsplit < 0 and len(text.split(sep, MAX_ITEMS)) > MAX_ITEMS:
        raise SecurityError(f"a value has more than {MAX_ITEMS} items")


def _check_join(meter: Meter, separator: Any, items: Any) -> None:
    if isinstance(items, (list, tuple, dict, str)):
        meter.text(printed_chars(meter, items) + printed_chars(meter, separator) * len(items))


def _metered(
    name: str, function: Callable[..., Any], meter: Callable[[], Meter]
) -> Callable[..., Any]:
    """Wrap a filter: count its value and arguments, check them, count what it returns."""
    n_passed = 1 if hasattr(function, "jinja_pass_arg") else 0

    def run(*args: Any, **kwargs: Any) -> Any:
        count = meter()
        count.step()
        value, *rest = args[n_passed:]
        if isinstance(value, str) and len(value) > MAX_ITEMS and name not in _TEXT:
            raise SecurityError(f"filter {name!r} would make more than {MAX_ITEMS} items")
        if name in _DEEP:
            count.seen(value)
        elif name in _SHALLOW and isinstance(value, (str, list, tuple, dict, range)):
            count.step(len(value))
        for arg in (*rest, *kwargs.values()):
            count.seen(arg)
        if name in _CHECKS:
            _CHECKS[name](count, value, *rest, *kwargs.values())
        result = function(*args, **kwargs)
        return result if name in _FREE else count.made(result)

    run.__dict__.update(getattr(function, "__dict__", {}))
    return run


def _check_padding(meter: Meter, value: Any, *options: Any) -> None:
    for option in options:
        check_width(len(option) if isinstance(option, str) else option)
    n_lines = value.count("\n") + 1 if isinstance(value, str) else 1
    meter.text(n_lines * sum(o if isinstance(o, int) else printed_chars(meter, o) for o in options))


def _check_round(meter: Meter, value: Any, *options: Any) -> None:
    del meter, value
    if any(isinstance(option, int) and option > _MAX_ROUND_DIGITS for option in options):
        raise SecurityError(f"it rounds to more than {_MAX_ROUND_DIGITS} digits")


def _check_sum(meter: Meter, value: Any, *options: Any) -> None:
    del meter, value
    if not all(isinstance(option, (str, int, float)) for option in options):
        raise SecurityError("only numbers can be summed")


def _check_title(meter: Meter, value: Any) -> None:
    if printed_chars(meter, value) > MAX_ITEMS:
        raise SecurityError("filter 'title' is for short texts")


def _check_joined(meter: Meter, value: Any, separator: Any = "", *options: Any) -> None:
    del options
    _check_join(meter, separator, value)


def _check_printed(meter: Meter, value: Any) -> None:
    meter.text(printed_chars(meter, value))


def _check_percent_filter(meter: Meter, value: Any, *values: Any) -> None:
    if isinstance(value, str):
        check_percent(meter, value, values)


_CHECKS: dict[str, Callable[..., None]] = {
    "center": _check_padding,
    "indent": _check_padding,
    "round": _check_round,
    "sum": _check_sum,
    "title": _check_title,
    "join": _check_joined,
    "string": _check_printed,
    "format": _check_percent_filter,
    "replace": lambda meter, value, *args: _check_replace(meter, str(value), *args),
}
"""Filters whose arguments can make a small value large, with what refuses them first."""


def _tojson(
    meter: Callable[[], Meter],
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON as Hugging Face's templates expect it: nothing escaped for HTML.

    Source: `apply_chat_template`'s environment, transformers 4.x, utils/chat_template_utils.py.
    """
    if isinstance(indent, (int, str)) and (
        (len(indent) if isinstance(indent, str) else indent) > _MAX_JSON_INDENT
    ):
        raise SecurityError(f"it indents JSON by more than {_MAX_JSON_INDENT}")
    meter().text(_JSON_GROWTH * printed_chars(meter(), value))
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
