"""What a failed template says: one line, its own line number, nothing of Python's."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import jinja2

from edgellm.errors import TemplateError

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAX_CHARS = 300
_FILE_NAME = "<template>"
# What operators, filters and calls raise when a template gives them the wrong values, and what
# compiling a monstrous one raises. SyntaxError is Python's, of code that Jinja generated.
_FAILURES = (
    jinja2.TemplateError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)
_IN_OUR_WORDS: dict[type[BaseException], str] = {
    RecursionError: "it calls itself without end, or is nested too deep",
    MemoryError: "it needs too much memory",
    SyntaxError: "it is nested too deep to compile",
}


@contextmanager
def template_errors(hint: str) -> Iterator[None]:
    """Turn whatever compiling or rendering raises into `TemplateError`.

    Args:
        hint: the next step, where the template itself is at fault. A template that refused its
            messages in its own words gives no hint.
    """
    try:
        yield
    except _FAILURES as err:
        refused = type(err) is jinja2.TemplateError
        message = f"chat template, line {_line(err)}: {_words(err)}"
        raise TemplateError(message, hint="" if refused else hint) from err


def _words(err: BaseException) -> str:
    for kind, words in _IN_OUR_WORDS.items():
        if isinstance(err, kind):
            return words
    text = getattr(err, "message", None) or str(err) or type(err).__name__
    if "int_max_str_digits" in str(text):
        text = "it makes too large a number"
    if isinstance(err, KeyError):
        text = f"no {text}"
    one_line = " ".join(str(text).split())
    return one_line if len(one_line) <= _MAX_CHARS else one_line[:_MAX_CHARS] + "..."


def _line(err: BaseException) -> int:
    """Return the template's line an error comes from: Jinja rewrote the traceback to say so."""
    if isinstance(err, jinja2.TemplateSyntaxError):
        return err.lineno
    line = 1
    trace = err.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == _FILE_NAME:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
