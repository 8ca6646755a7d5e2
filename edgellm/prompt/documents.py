"""A system prompt and the documents that follow it, as one message with a mark behind each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgellm.core import Message

if TYPE_CHECKING:
    from collections.abc import Sequence

_JOINT = "\n\n"


def system_message(system: str | None, documents: Sequence[str] = ()) -> Message | None:
    """Return the system message of a prompt and documents, None without either.

    They are parted by a blank line. With documents, the end of each and that of the prompt is a mark,
    so that those before the first that changes are read once; blank ones are left out.

    Args:
        system: the system prompt, or None.
        documents: what follows it, in an order that should stay.
    """
    documents = [text for text in documents if text.strip()]
    if not documents:
        return None if system is None else Message("system", system)
    content, marks = "", []
    for text in ([system] if system else []) + documents:
        content += (_JOINT if content else "") + text
        marks.append(len(content))
    return Message("system", content, tuple(marks))
