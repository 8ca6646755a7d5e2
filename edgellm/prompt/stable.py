"""What all prompts share that begin with the same system messages and tools, and its cuts.

The template is rendered with one of several questions, at two clocks. Where tokens agree under all of
them, cut back to the last control token, ends the stable prefix.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from edgellm.core import Message
from edgellm.errors import TemplateError
from edgellm.prompt.agreement import after_special, agreed_chars, shared_tokens
from edgellm.prompt.marks import end_of, places, tokens_at

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from edgellm.core import Tools
    from edgellm.prompt.agreement import Encode
    from edgellm.prompt.marks import Write
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


class Render(Protocol):
    """What turns conversations into texts, such as `PromptWriter.write`."""

    def __call__(self, messages: Sequence[Message], now: datetime, tools: Tools, /) -> PromptText:
        """Return the text of a prompt."""


@dataclass(frozen=True, slots=True)
class Stable:
    """The shared beginning of prompts.

    Attributes:
        tokens: at least up to the last cut.
        cuts: as in `Boundary`.
        end: where the stable prefix ends, whether or not it is a cut.
        volatile: whether the template writes the time into what would be the prefix.
        ignores_tools: whether there are tools and the template does not write them.
    """

    tokens: list[int]
    cuts: tuple[int, ...] = ()
    end: int = 0
    volatile: bool = False
    ignores_tools: bool = False


@dataclass(frozen=True, slots=True)
class StableFinder:
    """Finds the shared beginning of prompts.

    Attributes:
        render: the template, such as `PromptWriter.write`.
        encode: a `PromptEncoder`.
        special_ids: control tokens, at which a prefix can be cut without looking at its neighbours.
    """

    render: Render
    encode: Encode
    special_ids: Collection[int]

    def find(self, system: Sequence[Message], tools: Tools) -> Stable:
        """Return what all prompts share that begin with these system messages and tools."""
        texts = self._rendered(system, PROBES, CLOCKS[0], tools)
        if len(texts) < 2:
            return Stable([])
        agreed = self._agreement(list(texts.values()))
        volatile = False
        other_clock = self._rendered(system, PROBES[:2], CLOCKS[1], tools)
        all_texts = [*texts.values(), *other_clock.values()]
        if not set(other_clock.values()) <= set(texts.values()):
            shorter = self._agreement(all_texts)
            volatile = len(shorter) < len(agreed)
            agreed = shorter
        probe, base = next(iter(texts.items()))
        write = self._asking(probe)
        ignores = bool(tools) and write(system, ()) == base
        ends: list[int] = []
        if tools or len(system) > 1 or any(message.marks for message in system):
            ends = places(write, system, () if ignores else tools, base)
        n_stable = min(agreed_chars(base, text) for text in all_texts)
        tokens = self.encode(base)
        cuts = tokens_at(base, [at for at in ends if at <= n_stable], tokens, self.encode)
        cuts.append(len(agreed))
        return Stable(tokens[: max(cuts)], tuple(spaced(cuts)), len(agreed), volatile, ignores)

    def tokens_before(self, message: Message, ends: Sequence[int]) -> list[int | None]:
        """Return how many tokens stay if a system message changes from a place on, for each place.

        Args:
            message: the system message.
            ends: places in its content, in characters.

        Returns:
            None for a place that is nowhere in the text.
        """
        texts = self._rendered([message], PROBES[:2], CLOCKS[0], ())
        if not texts:
            return [None] * len(ends)
        probe, base = next(iter(texts.items()))
        write, tokens = self._asking(probe), self.encode(base)
        found = [end_of(message.content[:end], message.role, write, base) for end in ends]
        known = sorted({at for at in found if at is not None})
        counts = dict(zip(known, tokens_at(base, known, tokens, self.encode), strict=True))
        return [None if at is None else counts[at] for at in found]

    def _asking(self, question: str) -> Write:
        """Return what renders system messages and tools with one question."""

        def write(system: Sequence[Message], tools: Tools) -> PromptText | None:
            return self._rendered(system, (question,), CLOCKS[0], tools).get(question)

        return write

    def _rendered(
        self, system: Sequence[Message], probes: Sequence[str], clock: datetime, tools: Tools
    ) -> dict[str, PromptText]:
        """Render each probe behind the system messages; one the template refuses is left out."""
        texts = {}
        for probe in probes:
            with suppress(TemplateError):
                texts[probe] = self.render([*system, Message("user", probe)], clock, tools)
        return texts

    def _agreement(self, texts: Sequence[PromptText]) -> list[int]:
        """Return the tokens all texts begin with, cut where that is safe."""
        if len(texts) < 2:
            return []
        first = texts[0]
        nearest = min(texts[1:], key=lambda text: agreed_chars(first, text))
        common = shared_tokens([first, nearest], self.encode)
        cut = after_special(common, self.special_ids)
        if cut and cut >= len(common) - MAX_TRIM_TOKENS:
            # Tokens up to a control token depend on nothing after it, and no two texts agree less
            # than these two: the others need not be looked at.
            return common[:cut]
        return shared_tokens(texts, self.encode)


def spaced(cuts: Iterable[int]) -> list[int]:
    """Return cuts in order, without those too close behind another.

    From the front, so that whether there is a cut depends on nothing behind it.
    """
    spaced: list[int] = []
    for cut in sorted(set(cuts) - {0}):
        if not spaced or cut >= spaced[-1] + MIN_GAP_TOKENS:
            spaced.append(cut)
    return spaced
