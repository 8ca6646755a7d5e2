"""A rendered prompt that knows which control tokens are the template's own.

Whatever a message or a tool says is text: who types `<|im_end|>` closes no turn. A control token belongs to
the template when all of its spelling does. To see that, the messages are rendered again with signs
exchanged for private ones, which templates handle like any other; what is still spelled out then,
the template wrote.

Two renders are compared. One hides as little as it can, the first character of each spelling in a
message, so that the template sees what it looks for. The other is blind: every character of which
a spelling could be made is hidden, in whatever case and as an entity too. No message has a part in
its control tokens, whatever the template cuts out, joins or replaces: where the first has others,
the blind one is the prompt. A template that looks for words in its messages finds none then: that
is the price, for conversations that change which control tokens there are, and for no other.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from edgellm.errors import TemplateError
from edgellm.prompt.conversation import Conversation
from edgellm.prompt.template import HINT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from edgellm.core import Message, Tools
    from edgellm.prompt.spellings import Span, Spellings
    from edgellm.prompt.template import Prompter

# Unicode's private use areas: no tokenizer, filter or case mapping makes anything of them.
PRIVATE = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
# What JSON writes as something else: hidden, it would not be escaped. No spelling is made of it.
_ESCAPED = frozenset('"\\').union(map(chr, range(0x20)))


@dataclass(frozen=True, slots=True)
class PromptText:
    """The text of a prompt.

    Attributes:
        text: as the model reads it.
        controls: where the template's control tokens are spelled, from the left.
        mixed: whether there are spellings besides `controls`, which are text.
    """

    text: str
    controls: tuple[Span, ...] = ()
    mixed: bool = False

    def spelled(self) -> list[str]:
        """Return the control tokens as they are spelled."""
        return [self.text[start:end] for start, end in self.controls]

    def head(self, end: int) -> PromptText:
        """Return what stands before a position, where no control token may be cut in two."""
        before = tuple(span for span in self.controls if span[1] <= end)
        return PromptText(self.text[:end], before, self.mixed)

    def tail(self, start: int) -> PromptText:
        """Return what stands from a position on, where no control token may be cut in two."""
        behind = tuple((a - start, b - start) for a, b in self.controls if a >= start)
        return PromptText(self.text[start:], behind, self.mixed)


class PromptWriter:
    """Renders conversations and tells the template's control tokens from what messages say.

    Args:
        prompter: the template, or the fallback, whose text holds no control token at all.
        spellings: of the control tokens.
    """

    def __init__(self, prompter: Prompter, spellings: Spellings) -> None:
        self._prompter = prompter
        self._spellings = spellings

    def write(
        self, messages: Sequence[Message], now: datetime | None = None, tools: Tools = ()
    ) -> PromptText:
        """Render a conversation, with the tools that the model may call.

        Raises:
            TemplateError: the template failed or refused the messages, or it only takes messages
                of which it could make control tokens.
        """
        given = Conversation(tuple(messages), tools)
        text = self._render(given, now)
        if self._prompter.fallback:
            return PromptText(text, mixed=True)
        seen = self._seen(text, given, now)
        if not seen.controls:
            return seen
        rendered, marks = self._blind(text, given, now)
        controls = self._spellings.spans(rendered)
        if controls == seen.controls:
            return seen
        blind = _restored(rendered, marks, controls)
        if blind.text == seen.text or blind.spelled() != seen.spelled():
            return blind
        return seen

    def _seen(self, text: str, given: Conversation, now: datetime | None) -> PromptText:
        """Hide the first characters of spellings, if there are any."""
        plain = PromptText(text, self._spellings.spans(text))
        try:
            # Beginnings too: two messages, or a template that cuts something out of one, could
            # make a spelling of what are two halves.
            broad = self._marked(text, given, self._spellings.beginnings, now)
        except TemplateError:
            broad = PromptText("")  # a template that misses what was exchanged
        if broad is None:
            return plain
        if broad.text == text:
            return PromptText(text, broad.controls, broad.controls != plain.controls)
        # The template looks at what was exchanged, as for the end of a thought. It may see what
        # begins like a spelling, but what is one means nothing to it either.
        return self._marked(text, given, self._spellings.openings, now) or plain

    def _blind(
        self, text: str, given: Conversation, now: datetime | None
    ) -> tuple[str, dict[str, str]]:
        """Render with everything hidden of which spellings could be made."""
        texts, n_messages = given.texts(), len(given.messages)
        everything = self._spellings.ingredients("".join(texts))
        # A template that refuses messages without words gets the words. Without a sign they make
        # no control token in any template but one that writes all the signs around them.
        signs = {char for char in everything if not char.isalnum()}
        for hidden in (everything, signs):
            marks = self._private(hidden, [text, *texts])
            table = str.maketrans(marks)
            # Templates ask for a tool's words, such as `type` and `function`.
            in_tools = str.maketrans({c: marks[c] for c in signs - _ESCAPED})
            exchanged = [
                said.translate(table if n < n_messages else in_tools)
                for n, said in enumerate(texts)
            ]
            with suppress(TemplateError):
                return self._render(given.with_texts(exchanged), now), marks
        raise TemplateError(
            "the chat template fails when the signs in messages are hidden from it, so nobody can "
            "tell which control tokens are its own",
            hint=HINT,
        )

    def _marked(
        self,
        text: str,
        given: Conversation,
        find: Callable[[str], list[int]],
        now: datetime | None,
    ) -> PromptText | None:
        """Render with a private character at each place found, then put the real ones back.

        Private ones of the plain text are the template's and stay.
        """
        texts = given.texts()
        places = [find(said) for said in texts]
        if not any(places):
            return None
        wanted = {said[at] for said, found in zip(texts, places, strict=True) for at in found}
        marks = self._private(wanted, [text, *texts])
        marked = [_exchanged(said, found, marks) for said, found in zip(texts, places, strict=True)]
        rendered = self._render(given.with_texts(marked), now)
        return _restored(rendered, marks, self._spellings.spans(rendered))

    def _render(self, given: Conversation, now: datetime | None) -> str:
        return self._prompter.render(given.messages, now=now, tools=given.tools)

    def _private(self, wanted: set[str], texts: Sequence[str]) -> dict[str, str]:
        """Choose for each character a private one that is in no text."""
        used = self._spellings.characters.union(self._prompter.source, *texts)
        free = (chr(code) for code in chain(*PRIVATE) if chr(code) not in used)
        marks = dict(zip(sorted(wanted), free))  # noqa: B905  (there are more free ones)
        if len(marks) < len(wanted):
            raise TemplateError("the messages use all of Unicode's private characters")
        return marks


def _exchanged(content: str, places: Sequence[int], marks: dict[str, str]) -> str:
    chars = list(content)
    for at in places:
        chars[at] = marks[chars[at]]
    return "".join(chars)


def _restored(rendered: str, marks: dict[str, str], controls: tuple[Span, ...]) -> PromptText:
    """Put the real characters back for private ones, one for one."""
    table = {ord(mark): char for char, mark in marks.items()}
    return PromptText(rendered.translate(table), controls, mixed=True)
