"""Where a prompt may be cut so that what stands before stays while what follows changes.

The stable prefix is what every user text leaves as it is: system messages, tools and the template
text around them. Inside it, cuts stand behind each document that may stay while the next changes.
None depends on what follows it, so one snapshot serves every question.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from edgellm.core import Message
from edgellm.errors import TemplateError
from edgellm.prompt.agreement import after_special, agreed_chars, common_tokens, shared_tokens
from edgellm.prompt.marks import places, token_at
from edgellm.prompt.turns import message_ends

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from edgellm.core import Tools
    from edgellm.prompt.agreement import Encode
    from edgellm.prompt.provenance import PromptText

# What user texts begin with, as far as tokenizers care: nothing, a letter, a space and a digit, a
# line break, several bytes a character, a word, a digit, closing and opening punctuation.
PROBES = ("", "a", " 1", "\n", "\U0001f642", "The", "7", ")", "(")
# Two clocks that differ in the first character of each field, so that no prefix ends inside one.
CLOCKS = (datetime(2001, 2, 3, 4, 5, 6), datetime(1999, 12, 31, 23, 59, 58))  # noqa: DTZ001
# A role's header (`user`, a line break) between the last control token and the user's text is not
# worth the risk that tokens merge there; a system prompt that a template puts there is.
MAX_TRIM_TOKENS = 16
# A cut so close behind another is not worth a snapshot of its own.
MIN_GAP_TOKENS = 32
_REMEMBERED = 8


class Render(Protocol):
    """What turns conversations into texts, such as `PromptWriter.write`."""

    def __call__(self, messages: Sequence[Message], now: datetime, tools: Tools, /) -> PromptText:
        """Return the text of a prompt."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """A tokenised prompt and where it may be cut.

    Attributes:
        tokens: the whole prompt.
        cuts: where the prompt may be cut, ascending, none of them 0 or `len(tokens)`: behind each
            declared part that may stay while what follows changes. What stands before the last cut
            is equal for every user text.
        volatile: whether the template writes the time into what would be the prefix, so that the
            prefix ends before it.
        ignores_tools: whether there are tools and the template does not write them.
        turns: behind which tokens questions and answers end, ascending, if that was asked for; none
            where it cannot be told. What stands before depends on earlier messages alone.
    """

    tokens: tuple[int, ...]
    cuts: tuple[int, ...]
    volatile: bool
    ignores_tools: bool = False
    turns: tuple[int, ...] = ()

    @property
    def n_prefix(self) -> int:
        """Return where the last cut is: the length of the stable prefix, 0 without one."""
        return self.cuts[-1] if self.cuts else 0


@dataclass(frozen=True, slots=True)
class _Stable:
    """What all prompts share that begin with the same system messages and tools.

    Attributes:
        tokens: at least up to the last cut.
        cuts: as in `Boundary`.
        end: where the stable prefix ends, whether or not it is a cut.
    """

    tokens: list[int]
    cuts: tuple[int, ...] = ()
    end: int = 0
    volatile: bool = False
    ignores_tools: bool = False


class Boundaries:
    """Finds where prompts may be cut; what depends on the system messages alone is found once.

    Args:
        render: the template, such as `PromptWriter.write`.
        encode: a `PromptEncoder`.
        special_ids: control tokens, at which a prefix can be cut without looking at its neighbours.
    """

    def __init__(self, render: Render, encode: Encode, special_ids: Collection[int]) -> None:
        self._render = render
        self._encode = encode
        self._special_ids = special_ids
        self._known: OrderedDict[tuple[tuple[Message, ...], str], _Stable] = OrderedDict()

    def find(
        self,
        messages: Sequence[Message],
        written: PromptText,
        now: datetime,
        tools: Tools = (),
        *,
        with_turns: bool = False,
    ) -> Boundary:
        """Tokenise a prompt and find where it may be cut.

        Args:
            messages: the conversation.
            written: as rendered.
            now: the time it is rendered for.
            tools: that it is rendered with.
            with_turns: whether the ends of messages are wanted; costs one more render.
        """
        tokens = self._encode(written)
        stable = self._stable(_system(messages), tools)
        same = common_tokens(tokens, stable.tokens)
        cuts = [cut for cut in stable.cuts if cut <= len(same)]
        if len(same) < stable.end:
            # A template that treats a whole conversation differently from its first question.
            near = after_special(same, self._special_ids)
            cuts = _spaced([*cuts, max(near, *cuts, 0)])
        turns: tuple[int, ...] = ()
        if with_turns:
            turns = message_ends(
                lambda changed: self._render(changed, now, tools),
                messages,
                written,
                tokens,
                self._special_ids,
            )
        last = len(tokens) - 1
        return Boundary(
            tuple(tokens),
            tuple(sorted({min(cut, last) for cut in cuts} - {0})),
            stable.volatile,
            stable.ignores_tools,
            tuple(turn for turn in turns if turn <= last),
        )

    def _stable(self, system: tuple[Message, ...], tools: Tools) -> _Stable:
        key = (system, json.dumps(tools) if tools else "")
        known = self._known.pop(key, None)
        if known is None:
            known = self._found(system, tools)
            if len(self._known) >= _REMEMBERED:
                self._known.popitem(last=False)
        self._known[key] = known
        return known

    def _found(self, system: tuple[Message, ...], tools: Tools) -> _Stable:
        """Render the system messages with one of several user texts, at two clocks.

        Where tokens agree under all of them, cut back to the last control token, ends the prefix.
        """
        texts = self._rendered(system, PROBES, CLOCKS[0], tools)
        if len(texts) < 2:
            return _Stable([])
        agreed = self._agreement(list(texts.values()))
        volatile = False
        other_clock = self._rendered(system, PROBES[:2], CLOCKS[1], tools)
        if not set(other_clock.values()) <= set(texts.values()):
            shorter = self._agreement([*texts.values(), *other_clock.values()])
            volatile = len(shorter) < len(agreed)
            agreed = shorter
        probe, base = next(iter(texts.items()))
        n_stable = min(
            agreed_chars(base, text) for text in [*texts.values(), *other_clock.values()]
        )

        def write(others: Sequence[Message], other_tools: Tools) -> PromptText | None:
            with suppress(TemplateError):
                return self._render([*others, Message("user", probe)], CLOCKS[0], other_tools)
            return None

        ignores = bool(tools) and write(system, ()) == base
        base_tokens = self._encode(base)
        ends: list[int] = []
        if tools or len(system) > 1 or any(message.marks for message in system):
            ends = places(write, system, () if ignores else tools, base)
        cuts = [token_at(base, at, base_tokens, self._encode) for at in ends if at <= n_stable]
        cuts.append(len(agreed))
        tokens = base_tokens[: max(cuts)]
        return _Stable(tokens, tuple(_spaced(cuts)), len(agreed), volatile, ignores)

    def _rendered(
        self, system: Sequence[Message], probes: Sequence[str], clock: datetime, tools: Tools
    ) -> dict[str, PromptText]:
        """Render each probe behind the system messages; one the template refuses is left out."""
        texts = {}
        for probe in probes:
            with suppress(TemplateError):
                texts[probe] = self._render([*system, Message("user", probe)], clock, tools)
        return texts

    def _agreement(self, texts: Sequence[PromptText]) -> list[int]:
        """Return the tokens all texts begin with, cut where that is safe."""
        if len(texts) < 2:
            return []
        first = texts[0]
        nearest = min(texts[1:], key=lambda text: agreed_chars(first, text))
        common = shared_tokens([first, nearest], self._encode)
        cut = after_special(common, self._special_ids)
        if cut and cut >= len(common) - MAX_TRIM_TOKENS:
            # Tokens up to a control token depend on nothing after it, and no two texts agree less
            # than these two: the others need not be looked at.
            return common[:cut]
        return shared_tokens(texts, self._encode)


def stable_prefix(
    render: Render,
    messages: Sequence[Message],
    encode: Encode,
    special_ids: Collection[int],
    now: datetime,
    tools: Tools = (),
) -> Boundary:
    """Render a conversation, tokenise it and find where it may be cut; see `Boundaries`.

    Raises:
        TemplateError: the conversation cannot be rendered.
    """
    written = render(messages, now, tools)
    return Boundaries(render, encode, special_ids).find(messages, written, now, tools)


def _system(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return the messages before the first that is no system message."""
    n = next((n for n, message in enumerate(messages) if message.role != "system"), len(messages))
    return tuple(messages[:n])


def _spaced(cuts: Iterable[int]) -> list[int]:
    """Return cuts in order, without those too close behind another.

    From the front, so that whether there is a cut depends on nothing behind it.
    """
    spaced: list[int] = []
    for cut in sorted(set(cuts) - {0}):
        if not spaced or cut >= spaced[-1] + MIN_GAP_TOKENS:
            spaced.append(cut)
    return spaced
