"""From a conversation to the tokens a session decodes: template, clock, stable prefix, live memory.

The clock is read once for a conversation, so that its prompt only grows; each new one gets the time
it begins at. Only the template's control tokens become control ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from edgellm.core import Message
from edgellm.prompt.boundary import Boundaries, Boundary
from edgellm.prompt.encoding import PromptEncoder
from edgellm.prompt.provenance import PromptText, PromptWriter
from edgellm.prompt.spellings import Spellings
from edgellm.prompt.template import RAW_SEPARATOR, make_prompter, opens_answers
from edgellm.runtime.live import Live, make_prompt

if TYPE_CHECKING:
    from datetime import datetime

    from edgellm.core import Tools
    from edgellm.engines.base import Engine
    from edgellm.prompt.boundary import Standing
    from edgellm.runtime.live import Prompt

Recall = Callable[[Sequence[Message], PromptText, Boundary], Live | None]
"""Finds what was kept of a conversation, as if it were in memory."""


class Prompting:
    """Makes the prompts of one session.

    Args:
        engine: whose tokens they are.
        source: Jinja source that replaces the model's own template, or None.
        clock: the time that templates see.
        keeps_prefixes: whether prefixes are stored, so that it matters how long they are.
        keeps_turns: whether states are kept between turns, so that it matters where those end.

    Attributes:
        notes: what the user should be told; whoever tells it takes it out.
        fallback: whether the model gets raw text because it has no template.
    """

    def __init__(
        self,
        engine: Engine,
        source: str | None,
        *,
        clock: Callable[[], datetime],
        keeps_prefixes: bool,
        keeps_turns: bool = False,
    ) -> None:
        vocab = self._vocab = engine.vocab()
        self._prompter = make_prompter(
            source or engine.model.chat_template, bos_text=vocab.bos_text, eos_text=vocab.eos_text
        )
        spellings = Spellings(vocab.spellings)
        self._writer = PromptWriter(self._prompter, spellings)
        self._encode = PromptEncoder(
            engine.tokenize,
            spellings=spellings,
            control_ids=vocab.special_ids,
            bos_id=vocab.bos_id if vocab.add_bos else None,
            bos_text=vocab.bos_text,
        )
        self._boundaries = Boundaries(self._writer.write, self._encode, vocab.special_ids)
        self._clock = clock
        self._keeps_prefixes = keeps_prefixes
        self._keeps_turns = keeps_turns
        self._asked: tuple[tuple[Message, ...], datetime] | None = None
        self._said_volatile = self._said_unopened = self._said_no_tools = False
        self.fallback = self._prompter.fallback
        self.notes: list[str] = []
        if self.fallback:
            self.notes.append("the model has no chat template: it gets raw text")

    def prompt(
        self,
        messages: Sequence[Message],
        live: Live | None,
        tools: Tools = (),
        *,
        recall: Recall | None = None,
    ) -> Prompt:
        """Render and tokenise a conversation.

        Args:
            messages: the conversation.
            live: what the engine's memory holds.
            tools: what the model may call.
            recall: asked for a conversation that was kept and that this one goes on from, where it
                does not go on from the live one.

        Raises:
            TemplateError: the template failed or refused the messages.
        """
        now = self._time_of(tuple(messages))
        written = self._writer.write(messages, now, tools)
        boundary = self._boundaries.find(
            messages, written, now, tools, with_turns=self._keeps_turns
        )
        self._note(boundary)
        prompt = self._made(written, boundary, live)
        goes_on = live is not None and live.continued_by(prompt.tokens) == len(live.tokens)
        kept = None if recall is None or goes_on else recall(messages, written, boundary)
        if kept is None:
            return prompt
        other = self._made(written, boundary, kept)
        n_kept = kept.continued_by(other.tokens)
        if n_kept != len(kept.tokens):
            return prompt
        return replace(other, n_kept=n_kept, kept_cuts=kept.kept_cuts)

    def _made(self, written: PromptText, boundary: Boundary, live: Live | None) -> Prompt:
        return make_prompt(
            written.text,
            boundary,
            live,
            lambda more: self._encode.more(written.tail(len(written.text) - len(more))),
            self._vocab.special_ids,
            self._vocab.piece,
            separator=RAW_SEPARATOR if self.fallback else "",
            controls=written.controls,
        )

    def standing(self, message: Message, ends: Sequence[int]) -> Standing:
        """Return what stays of a system message that changes; see `Boundaries.standing`."""
        return self._boundaries.standing(message, ends)

    def _time_of(self, messages: tuple[Message, ...]) -> datetime:
        """Return when the conversation began that these messages go on with."""
        before, now = self._asked or ((), None)
        if now is None or len(messages) <= len(before) or messages[: len(before)] != before:
            now = self._clock()
        self._asked = (messages, now)
        return now

    def _note(self, boundary: Boundary) -> None:
        if boundary.volatile and self._keeps_prefixes and not self._said_volatile:
            self._said_volatile = True
            self.notes.append(
                "the chat template writes the time into the system prompt: only the "
                f"{boundary.n_prefix} tokens before it can be kept for the next start"
            )
        if boundary.ignores_tools and not self._said_no_tools:
            self._said_no_tools = True
            self.notes.append("the chat template does not write tools: the model sees none of them")
        if not self._said_unopened and not opens_answers(self._prompter):
            self.notes.append(
                "the chat template ignores add_generation_prompt: the model has to open its turn "
                "itself, and answers may begin with the opening"
            )
        self._said_unopened = True
