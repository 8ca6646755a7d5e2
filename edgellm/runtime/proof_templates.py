"""The chat template of a written file against its checkpoint's: same texts, and turns that end.

Both sides render the same conversations, each with its own texts for the begin and end tokens.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from edgellm.core import Message
from edgellm.errors import TemplateError, VerifyFailed
from edgellm.prompt.template import make_prompter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from edgellm.engines.base import Vocab
    from edgellm.engines.llamacpp.vocabulary import Vocabulary
    from edgellm.prompt.template import Prompter

_TEMPLATE: Final = "tokenizer.chat_template"
_BOS, _EOS = "tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id"
_SHOWN_BEFORE: Final = 12
_NOW: Final = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
_ANSWER: Final = "Blue, mostly."
_TALKS: Final = (
    (("user", "Why is the sky blue?"),),
    (("system", "Be brief."), ("user", "Hi"), ("assistant", _ANSWER), ("user", "And 2,024?\n")),
    (("user", "한국어 👋 \t{{ 7 * 7 }} <b>&amp;</b> 'q' \"Q\"\n\n  x"),),
    (("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", _ANSWER)),
)


def compare_templates(source: Path, metadata: Mapping[str, Any], vocab: Vocab) -> int:
    """Return how many conversations rendered to the same text with both templates.

    Raises:
        VerifyFailed: one did not.
    """
    from edgellm.converters.chat_template import source_template

    if not source.is_dir():
        return 0
    meant = source_template(source)
    written = str(metadata.get(_TEMPLATE, ""))
    if (meant.text or "") != written:
        raise VerifyFailed("the chat template in the file is not the checkpoint's")
    if not written:
        return 0
    ours = _prompter(written, vocab.bos_text, vocab.eos_text)
    theirs = _prompter(
        written,
        _meant_text(meant.bos_text, vocab.bos_text, is_named=_BOS in metadata),
        _meant_text(meant.eos_text, vocab.eos_text, is_named=_EOS in metadata),
    )
    for talk in _TALKS:
        one, two = _rendered(theirs, talk), _rendered(ours, talk)
        if one != two:
            at = next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), 0)
            at = max(0, at - _SHOWN_BEFORE)
            raise VerifyFailed(
                f"the chat template gives {one[at : at + 40]!a} with the checkpoint's special "
                f"tokens and {two[at : at + 40]!a} with the file's"
            )
    return len(_TALKS)


def _meant_text(meant: str | None, found: str, *, is_named: bool) -> str:
    """Return a token's text in the checkpoint; one named by its number alone has the file's."""
    if meant is not None:
        return meant
    return found if is_named else ""


def _prompter(source: str, bos_text: str, eos_text: str) -> Prompter | str:
    try:
        return make_prompter(source, bos_text=bos_text, eos_text=eos_text)
    except TemplateError as err:
        return err.message


def _rendered(
    prompter: Prompter | str, talk: Sequence[tuple[str, str]], *, opened: bool = True
) -> str:
    """Return a conversation's text, or why there is none: both sides must agree in either."""
    if isinstance(prompter, str):
        return prompter
    messages = [Message(role, content) for role, content in talk]
    try:
        return prompter.render(messages, add_generation_prompt=opened, now=_NOW)
    except TemplateError as err:
        return f"error: {err.message}"


def check_end_of_turn(metadata: Mapping[str, Any], engine: Vocabulary, vocab: Vocab) -> list[str]:
    """Return warnings about turns that nothing the engine stops at would end.

    Raises:
        VerifyFailed: a chat model without any such token.
    """
    template = str(metadata.get(_TEMPLATE, ""))
    if not template.strip():
        return []
    if not vocab.end_ids:
        raise VerifyFailed("a chat model, and no token at which the engine stops")
    prompter = _prompter(template, vocab.bos_text, vocab.eos_text)
    text = _rendered(prompter, _TALKS[-1], opened=False)
    if isinstance(prompter, str) or text.startswith("error: "):
        return [f"the chat template fails on a plain conversation: {text.removeprefix('error: ')}"]
    _, found, tail = text.rpartition(_ANSWER)
    ids = engine.tokenize(tail, special=True, add_bos=False)
    if found and vocab.end_ids.isdisjoint(ids):
        shown = ascii(tail[:60])
        return [
            f"the engine stops at nothing that the chat template writes behind an answer: {shown}"
        ]
    return []
