"""What one render may cost: steps, characters made, items in a value. Counted, never timed.

Every value a template makes passes `made`, every block it enters `block`, so that no program in a
template runs long or grows large. Containers are weighed as if printed: an item counts as often as
it can be reached, which bounds values that double by sharing. They cannot change once made.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from itertools import islice
from typing import TYPE_CHECKING, Any

from jinja2.exceptions import SecurityError
from jinja2.runtime import LoopContext, Undefined

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_STEPS = 1_000_000
MAX_CHARS = 1 << 22
MAX_ITEMS = 100_000
MAX_DEPTH = 32
MAX_INT_BITS = 4096
# What a template may do per character it is given: real ones copy a message about ten times.
STEPS_PER_INPUT_CHAR = 4
CHARS_PER_INPUT_CHAR = 64


class Meter:
    """Counts what one render does.

    Args:
        input_chars: length of the conversation; large ones may cost more.
    """

    def __init__(self, input_chars: int = 0) -> None:
        self._steps_left = MAX_STEPS + STEPS_PER_INPUT_CHAR * input_chars
        self._max_chars = MAX_CHARS + CHARS_PER_INPUT_CHAR * input_chars
        self._chars_left = self._max_chars

    def step(self, n_steps: int = 1) -> None:
        """Count work, one step being about one turn of an empty loop."""
        self._steps_left -= n_steps
        if self._steps_left < 0:
            raise SecurityError("it does too much work, in loops or on large values")

    def text(self, n_chars: int) -> None:
        """Count characters that are made, best before they are."""
        self._chars_left -= n_chars
        if self._chars_left < 0:
            raise SecurityError("it makes too much text")
        self.step(n_chars >> 8)

    def block(self, n_chars: int) -> None:
        """Count the entry into a block with this much text of the template's own."""
        self.step()
        self.text(n_chars)

    def made(self, value: Any) -> Any:
        """Count a new value and return it, iterators as lists."""
        if value is None or isinstance(value, (bool, float)):
            return value
        if isinstance(value, str):
            self.text(len(value))
        elif isinstance(value, int):
            if value.bit_length() > MAX_INT_BITS:
                raise SecurityError("it makes too large a number")
        elif isinstance(value, (list, tuple, dict)):
            self.walk(value)
        elif isinstance(value, (Iterator, ItemsView, KeysView, ValuesView)):
            if isinstance(value, LoopContext):
                return value
            # The step beyond the limit is what makes `walk` refuse.
            value = list(islice(value, MAX_ITEMS + 1))
            self.walk(value)
        return value

    def seen(self, value: Any) -> Any:
        """Count a value that is read as a whole, as in a comparison, and return it."""
        if isinstance(value, str):
            self.step(len(value) >> 8)
        elif isinstance(value, (list, tuple, dict)):
            self.walk(value)
        return value

    def iterated(self, value: Any) -> Any:
        """Count a value that is only gone through, and return it."""
        if isinstance(value, (str, list, tuple, dict, range)):
            self.step(len(value) >> 4)
        return value

    def walk(self, value: Any, *, printable: bool = False) -> int:
        """Count a container and return about how many characters it prints as.

        Raises:
            SecurityError: too many items, too deep, or, with `printable`, something inside that is
                no plain value.
        """
        n_chars = 0
        n_items = 0
        stack: list[Iterator[Any]] = [iter((value,))]
        while stack:
            for item in stack[-1]:
                n_items += 1
                if isinstance(item, str):
                    n_chars += len(item) + 4
                elif isinstance(item, (list, tuple, dict)):
                    if len(stack) > MAX_DEPTH:
                        raise SecurityError(f"a value is nested more than {MAX_DEPTH} deep")
                    stack.append(_children(item))
                    break
                else:
                    n_chars += 24
                    if printable and not is_plain(item):
                        raise SecurityError("only texts, numbers, lists and mappings can be text")
                if n_chars > self._max_chars:
                    raise SecurityError("a value has too much text")
                if n_items > MAX_ITEMS:
                    raise SecurityError(f"a value has more than {MAX_ITEMS} items")
            else:
                stack.pop()
        self.step(n_items + (n_chars >> 8))
        return n_chars


def is_plain(value: Any) -> bool:
    """Return whether a value prints as something JSON could hold, or as nothing."""
    return value is None or isinstance(value, (str, int, float, Undefined, range))


def _children(container: list[Any] | tuple[Any, ...] | dict[Any, Any]) -> Iterator[Any]:
    if isinstance(container, dict):
        pairs: Iterable[tuple[Any, Any]] = container.items()
        return (part for pair in pairs for part in pair)
    return iter(container)
