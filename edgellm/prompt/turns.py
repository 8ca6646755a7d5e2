"""Where the messages of a conversation end in its prompt.

What stands before such an end depends on no later message, as far as the template lets it: one that
takes thoughts out of older answers makes other prompts of them, whose tokens tell.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING

from edgellm.errors import TemplateError
from edgellm.prompt.marks import free_sign

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from edgellm.core import Message
    from edgellm.prompt.provenance import PromptText


def message_ends(
    write: Callable[[Sequence[Message]], PromptText],
    messages: Sequence[Message],
    written: PromptText,
    tokens: Sequence[int],
    special_ids: Collection[int],
) -> tuple[int, ...]:
    """Return how many tokens there are up to the control token that closes each message.

    System messages are left out, and messages that text of the template follows. Nothing is
    returned where the template changes what it writes when a message has a sign more.

    Args:
        write: renders messages.
        messages: the conversation.
        written: as rendered.
        tokens: of that.
        special_ids: control tokens.
    """
    ends = _text_ends(write, messages, written)
    controls = [n for n, token in enumerate(tokens, 1) if token in special_ids]
    # One more where the model wants a beginning that its template does not write.
    n_added = len(controls) - len(written.controls)
    if n_added not in (0, 1):
        return ()
    found = set()
    for end in ends:
        n = next((n for n, (start, _) in enumerate(written.controls) if start >= end), None)
        if n is not None and not written.text[end : written.controls[n][0]].strip():
            found.add(controls[n + n_added])
    return tuple(sorted(found))


def _text_ends(
    write: Callable[[Sequence[Message]], PromptText],
    messages: Sequence[Message],
    written: PromptText,
) -> list[int]:
    sign = free_sign([written.text, *(message.content for message in messages)])
    if not sign:
        return []
    changed = []
    for message in messages:
        # Before the spaces at the end, which templates trim.
        n_kept = len(message.content.rstrip())
        content = message.content[:n_kept] + sign + message.content[n_kept:]
        changed.append(
            message if message.role == "system" else replace(message, content=content, marks=())
        )
    try:
        pieces = write(changed).text.split(sign)
    except TemplateError:
        return []
    if "".join(pieces) != written.text:
        return []
    return list(accumulate(map(len, pieces[:-1])))
