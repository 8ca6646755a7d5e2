"""From a rendered prompt to token ids: control tokens where the template wrote them, nowhere else.

A prompt without a stray spelling is read at once, as Hugging Face and llama.cpp's server do, so that
tokens are those the model was trained on. Any other is read in the same pieces that an engine would
cut it into, each control token by itself and the text between as text.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from edgellm.prompt.provenance import PromptText
    from edgellm.prompt.spellings import Spellings

_REMEMBERED_TEXTS = 24
_SPACE = " \t\n\v\f\r"  # isspace in the C locale, which llama.cpp strips by
_ANCHOR = "\n"


class Tokenize(Protocol):
    """An engine's `tokenize`."""

    def __call__(self, text: str, *, special: bool, add_bos: bool) -> list[int]:
        """Split text into token ids."""


class PromptEncoder:
    """Turns prompts into token ids with exactly one beginning-of-sequence.

    The last prompts are remembered, because requests share probes.

    Args:
        tokenize: the engine's.
        spellings: of the control tokens.
        control_ids: ids that must not come from what a message says.
        bos_id: beginning of sequence if the model wants one, or None.
        bos_text: how the template writes it; a prompt that starts with it gets no other.
    """

    def __init__(
        self,
        tokenize: Tokenize,
        *,
        spellings: Spellings,
        control_ids: Collection[int],
        bos_id: int | None,
        bos_text: str,
    ) -> None:
        self._tokenize = tokenize
        self._spellings = spellings
        self._control_ids = frozenset(control_ids)
        self._bos = [] if bos_id is None else [bos_id]
        self._bos_text = bos_text
        self._remembered: OrderedDict[PromptText, list[int]] = OrderedDict()
        self._strips: dict[str, tuple[bool, bool]] = {}

    def __call__(self, prompt: PromptText) -> list[int]:
        """Return the tokens of a whole prompt."""
        tokens = self._remembered.pop(prompt, None)
        if tokens is None:
            tokens = self._encode(prompt, add_bos=not self._has_bos(prompt))
            if len(self._remembered) >= _REMEMBERED_TEXTS:
                self._remembered.popitem(last=False)
        self._remembered[prompt] = tokens
        return list(tokens)

    def more(self, prompt: PromptText) -> list[int]:
        """Return the tokens of what stands behind other text."""
        return self._encode(prompt, add_bos=False)

    def _has_bos(self, prompt: PromptText) -> bool:
        if not self._bos_text or not prompt.controls:
            return False
        start, end = prompt.controls[0]
        return prompt.text[start:end] == self._bos_text and not prompt.text[:start].strip()

    def _encode(self, prompt: PromptText, *, add_bos: bool) -> list[int]:
        if not prompt.mixed:
            return self._tokenize(prompt.text, special=True, add_bos=add_bos)
        tokens = list(self._bos) if add_bos else []
        for text, is_control in self._pieces(prompt):
            tokens += self._special(text) if is_control else self._plain(text)
        return tokens

    def _pieces(self, prompt: PromptText) -> Iterator[tuple[str, bool]]:
        """Cut a prompt at its control tokens; some of them take the space beside them."""
        at, strips_after = 0, False
        for start, end in prompt.controls:
            control = prompt.text[start:end]
            strips_before, strips_next = self._strips_space(control)
            text = prompt.text[at:start]
            text = text.lstrip(_SPACE) if strips_after else text
            yield (text.rstrip(_SPACE) if strips_before else text), False
            yield control, True
            at, strips_after = end, strips_next
        rest = prompt.text[at:]
        yield (rest.lstrip(_SPACE) if strips_after else rest), False

    def _strips_space(self, control: str) -> tuple[bool, bool]:
        """Return whether a control token takes the space before it, and behind it."""
        known = self._strips.get(control)
        if known is None:
            alone = self._special(control)
            before, behind = self._special("\n" + control), self._special(control + "\n")
            known = self._strips[control] = (before == alone, behind == alone)
        return known

    def _special(self, text: str) -> list[int]:
        return self._tokenize(text, special=True, add_bos=False)

    def _plain(self, text: str) -> list[int]:
        """Tokenise what is text, whatever it spells."""
        if not text:
            return []
        tokens = self._tokenize(text, special=False, add_bos=False)
        if self._control_ids.isdisjoint(tokens):
            return tokens
        # A vocabulary whose merges lead to a control token: nobody sees a spelling that is cut.
        tokens, at = [], 0
        for place in self._spellings.occurrences(text):
            tokens += self._behind(text[at : place + 1], at)
            at = place + 1
        tokens += self._behind(text[at:], at)
        return [token for token in tokens if token not in self._control_ids]

    def _behind(self, text: str, at: int) -> list[int]:
        """Tokenise text behind other text: without the space some tokenizers put first."""
        if not text or not at:
            return self._tokenize(text, special=False, add_bos=False) if text else []
        anchor = self._tokenize(_ANCHOR, special=False, add_bos=False)
        tokens = self._tokenize(_ANCHOR + text, special=False, add_bos=False)
        if tokens[: len(anchor)] == anchor:
            return tokens[len(anchor) :]
        return self._tokenize(text, special=False, add_bos=False)
