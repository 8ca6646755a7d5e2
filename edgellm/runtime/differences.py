"""Where a prompt leaves the one that is stored: the token, the place in the text, and the kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from edgellm.runtime.causes import begins_otherwise, first_differing, text_cause

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgellm.core import Tools
    from edgellm.runtime.spelled import SpelledTokens

_AROUND_CHARS: Final = 40


@dataclass(frozen=True, slots=True)
class Said:
    """What a prompt is made of.

    Attributes:
        text: as the template rendered it.
        content: what the system messages say.
        tools: names of the tools that are declared.
    """

    text: str
    content: str
    tools: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a prompt leaves the one that is stored.

    Attributes:
        token: index of the first token that differs.
        stored_id, now_id: these tokens; None behind the end of the shorter prefix.
        offset: of the first character that differs, in the prompt as it is rendered now.
        line, column: the same in the system prompt, from 1; None outside of it.
        stored_text, now_text: what stands around it, up to 40 characters on each side.
    """

    token: int
    stored_id: int | None
    now_id: int | None
    offset: int
    line: int | None
    column: int | None
    stored_text: str
    now_text: str


def compare(
    stored: Sequence[int],
    now: Sequence[int],
    said: Said,
    spell: SpelledTokens,
    bos_id: int | None,
) -> tuple[str, Difference]:
    """Put two prefixes side by side.

    Args:
        stored: the tokens of the one that is stored.
        now: those of the one that is asked for.
        said: what that was made of.
        spell: writes tokens.
        bos_id: the beginning-of-sequence token, or None.

    Returns:
        The cause, and where the difference is.
    """
    before, after = spell.text(stored), spell.text(now)
    at = first_differing(before, after)
    token = next(
        (i for i, pair in enumerate(zip(stored, now)) if pair[0] != pair[1]),  # noqa: B905  (ends with the shorter)
        min(len(stored), len(now)),
    )
    begins = begins_otherwise(stored, now, bos_id)
    cause = "bos" if begins else text_cause(before, after, said.content, said.tools)
    offset = max(0, at - spell.shift(after, said.text))
    line, column = _place(said, offset)
    return cause, Difference(
        token=token,
        stored_id=_at(stored, token),
        now_id=_at(now, token),
        offset=offset,
        line=line,
        column=column,
        stored_text=_around(before, at),
        now_text=_around(after, at),
    )


def tool_names(tools: Tools) -> list[str]:
    """Return what tools are called, where they say so."""
    found = [tool.get("function", tool) for tool in tools]
    names = (item.get("name") for item in found if isinstance(item, Mapping))
    return [name for name in names if isinstance(name, str) and name]


def _place(said: Said, offset: int) -> tuple[int | None, int | None]:
    """Return line and column in the system prompt of an offset in the whole text."""
    text, content = said.text, said.content.strip()
    start = text.find(content) if content else -1
    if start < 0 or not start <= offset <= start + len(content):
        return None, None
    before = text[start:offset]
    return before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1


def _at(tokens: Sequence[int], index: int) -> int | None:
    return tokens[index] if index < len(tokens) else None


def _around(text: str, at: int) -> str:
    return text[max(0, at - _AROUND_CHARS) : at + _AROUND_CHARS]
