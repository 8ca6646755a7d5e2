"""Finds text in a prompt that will be another text next time, so that nothing behind it is reused.

What it cannot know is whether a text is written anew each time: it names what is, in most prompts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgellm.prompt.json_text import SORTED_KIND, odd_values
from edgellm.prompt.volatile import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Finding:
    """A place in a text that is likely to change.

    Attributes:
        kind: such as `date`, `uuid` or `counter`.
        start: the first character, from 0.
        end: behind the last character.
        line: of the first character, from 1.
        column: of the first character in its line, from 1.
        text: what stands there.
        fix: what to do about it.
        is_hint: whether it may well stay as it is; a prompt with hints alone is clean.
    """

    kind: str
    start: int
    end: int
    line: int
    column: int
    text: str
    fix: str
    is_hint: bool = False


def lint(text: str) -> tuple[Finding, ...]:
    """Return what is likely to change in a text, from its start; no two overlap."""
    found: list[tuple[int, int, str, str, bool]] = []
    taken = bytearray(len(text))
    for kind, start, end, fix, is_hint in _all(text):
        # A hint about a whole value takes nothing: what changes in it is told as well.
        if kind != SORTED_KIND:
            if any(taken[start:end]):
                continue
            taken[start:end] = b"\1" * (end - start)
        found.append((start, end, kind, fix, is_hint))
    return tuple(_placed(text, sorted(found)))


def stable_chars(text: str, findings: tuple[Finding, ...]) -> int:
    """Return how many characters stand before the first finding that is no hint."""
    return min((one.start for one in findings if not one.is_hint), default=len(text))


def _all(text: str) -> Iterator[tuple[str, int, int, str, bool]]:
    for kind in KINDS:
        for match in kind.pattern.finditer(text):
            group = "it" if "it" in kind.pattern.groupindex else 0
            start, end = match.span(group)
            line = _line_around(text, start)
            if kind.is_one(text[start:end], line):
                yield kind.name, start, end, kind.fix, kind.is_hint(text[start:end], line)
    yield from odd_values(text)


def _line_around(text: str, at: int, reach: int = 200) -> str:
    """Return the line of a place, as far as it is near: a text may be one line."""
    begin = text.rfind("\n", max(0, at - reach), at) + 1 or max(0, at - reach)
    end = text.find("\n", at, at + reach)
    return text[begin : at + reach if end < 0 else end]


def _placed(text: str, found: list[tuple[int, int, str, str, bool]]) -> Iterator[Finding]:
    """Turn places into findings with lines and columns, counting line ends once."""
    line, begin, seen = 1, 0, 0
    for start, end, kind, fix, is_hint in found:
        line += text.count("\n", seen, start)
        begin = max(begin, text.rfind("\n", seen, start) + 1)
        seen = start
        yield Finding(kind, start, end, line, start - begin + 1, text[start:end], fix, is_hint)
