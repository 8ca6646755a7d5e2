"""Where a prompt may be cut so that what stands before stays while what follows changes.

The stable prefix is what every user text leaves as it is: system messages, tools and the template
text around them. Inside it, cuts stand behind each document that may stay while the next changes.
None depends on what follows it, so one snapshot serves every question.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgellm.prompt.agreement import after_special, common_tokens
from edgellm.prompt.stable import StableFinder, spaced
from edgellm.prompt.turns import message_ends

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import datetime

    from edgellm.core import Message, Tools
    from edgellm.prompt.agreement import Encode
    from edgellm.prompt.provenance import PromptText
    from edgellm.prompt.stable import Render, Stable

_REMEMBERED = 8


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
class Standing:
    """What of a system prompt's tokens stays when its text changes.

    Attributes:
        n_tokens: length of the stable prefix: template, system prompt, documents.
        before: for each place asked for, how many tokens stay if the text changes from there on;
            None where it is nowhere in the prompt.
        volatile: whether the template itself writes the time, so that the prefix ends before it.
    """

    n_tokens: int
    before: tuple[int | None, ...]
    volatile: bool


class Boundaries:
    """Finds where prompts may be cut; what depends on the system messages alone is found once.

    Args:
        render: the template, such as `PromptWriter.write`.
        encode: a `PromptEncoder`.
        special_ids: control tokens.
    """

    def __init__(self, render: Render, encode: Encode, special_ids: Collection[int]) -> None:
        self._finder = StableFinder(render, encode, special_ids)
        self._known: OrderedDict[tuple[tuple[Message, ...], str], Stable] = OrderedDict()

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
        finder = self._finder
        tokens = finder.encode(written)
        stable = self._stable(_system(messages), tools)
        same = common_tokens(tokens, stable.tokens)
        cuts = [cut for cut in stable.cuts if cut <= len(same)]
        if len(same) < stable.end:
            # A template that treats a whole conversation differently from its first question.
            cuts = spaced([*cuts, max(after_special(same, finder.special_ids), *cuts, 0)])
        turns: tuple[int, ...] = ()
        if with_turns:
            turns = message_ends(
                lambda changed: finder.render(changed, now, tools),
                messages,
                written,
                tokens,
                finder.special_ids,
            )
        last = len(tokens) - 1
        return Boundary(
            tuple(tokens),
            tuple(sorted({min(cut, last) for cut in cuts} - {0})),
            stable.volatile,
            stable.ignores_tools,
            tuple(turn for turn in turns if turn <= last),
        )

    def standing(self, message: Message, ends: Sequence[int]) -> Standing:
        """Return what of a system message stays when it changes from a place on.

        Args:
            message: the system message.
            ends: such places in its content, in characters.
        """
        stable = self._stable((message,), ())
        found = self._finder.tokens_before(message, ends)
        before = tuple(None if n is None else min(n, stable.end) for n in found)
        return Standing(stable.end, before, stable.volatile)

    def _stable(self, system: tuple[Message, ...], tools: Tools) -> Stable:
        key = (system, json.dumps(tools) if tools else "")
        known = self._known.pop(key, None)
        if known is None:
            known = self._finder.find(system, tools)
            if len(self._known) >= _REMEMBERED:
                self._known.popitem(last=False)
        self._known[key] = known
        return known


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
