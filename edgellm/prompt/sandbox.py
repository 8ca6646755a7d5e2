"""The Jinja environment chat templates run in: immutable values, no files, bounded work.

Jinja's own sandbox keeps a template from Python's insides, but lets it loop and grow for ever. Here
the compiler adds counting calls to the code it generates: at the head of every block, and around
every expression that makes a value. Nothing is folded at compile time.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.exceptions import TemplateError as JinjaError
from jinja2.ext import Extension
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import pass_context

from edgellm.prompt import filters
from edgellm.prompt.compiler import CountingGenerator
from edgellm.prompt.meter import MAX_INT_BITS, MAX_ITEMS, Meter

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from jinja2.parser import Parser
    from jinja2.runtime import Context, Undefined

_GLOBALS = ("cycler", "dict", "joiner", "namespace", "range")
# Plain conversions only: glibc reads "%999999999Y" as a width.
_STRFTIME = re.compile(r"(?:[^%]|%[-#]?[A-Za-z%])*", re.DOTALL)
_MAX_STRFTIME_CHARS = 256
_CALL_STEPS = 8


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Jinja as Hugging Face sets it up, counting on `meter`, which each render sets anew."""

    intercepted_binops = frozenset(("+", "*", "%", "**"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _Generation],
            optimized=False,
            cache_size=0,
        )
        self.code_generator_class = CountingGenerator
        self.meter = Meter()
        self.filters = filters.allowed_filters(lambda: self.meter)
        self.tests = filters.allowed_tests(lambda: self.meter)
        self.globals = {name: self.globals[name] for name in _GLOBALS}
        self.globals["raise_exception"] = raise_exception
        # Jinja asks for a context here or else runs it while compiling.
        self.finalize = self._printed

    @pass_context
    def _printed(self, context: Context, value: Any) -> Any:
        """Count what is written into the output, and refuse to write what is no plain value."""
        del context
        n_chars = filters.printed_chars(self.meter, value)
        self.meter.text(n_chars)
        return value

    def concatenated(self, *parts: Any) -> str:
        """Do what `a ~ b` does, counted."""
        self.meter.text(sum(filters.printed_chars(self.meter, part) for part in parts))
        return "".join(map(str, parts))

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call something from a template, if that is safe, and count it."""
        self.meter.step(_CALL_STEPS)
        for arg in (*args, *kwargs.values()):
            (self.meter.iterated if isinstance(obj, LoopContext) else self.meter.seen)(arg)
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, (str, list, tuple, dict, range)):
            # Jinja adds the variables of an enclosing loop or block, which `context.call` drops.
            named = {name: kwargs[name] for name in kwargs if not name.startswith("_")}
            filters.guard_method(self.meter, owner, obj.__name__, args, named)
        if not self.is_safe_callable(obj):
            raise SecurityError("it calls something that may not be called")
        return self.meter.made(context.call(obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute `+ * % **` after a look at how large the result will be."""
        self.meter.step()
        if operator == "*":
            self._check_product(left, right)
        elif operator == "**":
            _check_power(left, right)
        elif operator == "%" and isinstance(left, str):
            filters.check_percent(self.meter, left, right)
        elif isinstance(left, str) and isinstance(right, str):
            # Counted before and not again after: this is what templates do most.
            self.meter.text(len(left) + len(right))
            return left + right
        return self.meter.made(super().call_binop(context, operator, left, right))

    def _check_product(self, left: Any, right: Any) -> None:
        if isinstance(left, int):
            left, right = right, left
        if not isinstance(right, int):
            return
        if isinstance(left, int):
            if left.bit_length() + right.bit_length() > MAX_INT_BITS:
                raise SecurityError("it makes too large a number")
        elif isinstance(left, str):
            self.meter.text(len(left) * max(0, right))
        elif isinstance(left, (list, tuple)) and len(left) * right > MAX_ITEMS:
            raise SecurityError(f"a value has more than {MAX_ITEMS} items")

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Return `obj[argument]`; a tuple as key is read whole."""
        self.meter.seen(argument)
        return super().getitem(obj, argument)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Return whether a template may have this attribute: of plain values, listed methods."""
        if not super().is_safe_attribute(obj, attr, value):
            return False
        for kind, methods in filters.METHODS.items():
            if isinstance(obj, kind):
                return attr in methods or not callable(value)
        return True

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        """Return what stands for a forbidden attribute: it raises when used."""
        return self.undefined(
            f"access to attribute {attribute!r} is not allowed",
            name=attribute,
            obj=obj,
            exc=SecurityError,
        )

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return a checked `str.format` or `str.format_map` for a bound one, or None."""
        safe_format = super().wrap_str_format(value)
        if safe_format is None:
            return None
        text = value.__self__
        takes_map = value.__name__ == "format_map"

        @functools.wraps(safe_format)
        def checked(*args: Any, **kwargs: Any) -> str:
            values = args[0].values() if takes_map else (*args, *kwargs.values())
            filters.check_format(self.meter, text, values)
            return safe_format(*args, **kwargs)

        return checked


def _check_power(left: Any, right: Any) -> None:
    if (
        isinstance(left, int)
        and isinstance(right, int)
        and left.bit_length() * max(0, right) > MAX_INT_BITS
    ):
        raise SecurityError("it makes too large a number")


def raise_exception(message: object) -> None:
    """Let a template refuse its messages in its own words."""
    raise JinjaError(str(message))


def make_strftime_now(now: datetime) -> Callable[[str], str]:
    """Return the templates' clock, which stands still at `now`."""

    def strftime_now(format_text: str) -> str:
        if len(format_text) > _MAX_STRFTIME_CHARS or not _STRFTIME.fullmatch(format_text):
            raise SecurityError("strftime_now takes plain conversions such as %d %b %Y")
        return now.strftime(format_text)

    return strftime_now


class _Generation(Extension):
    """`{% generation %}`, which marks the assistant's words for training; here only a scope."""

    tags = frozenset(("generation",))  # type: ignore[assignment]  # Jinja only looks names up

    def parse(self, parser: Parser) -> nodes.Node:
        """Return the block's content."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)
