"""What a template is given: messages and tools, and every text in them, in a fixed order.

Whoever looks for something in what is said, or exchanges characters in it, sees tools and messages
alike: both may come from strangers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from edgellm.core import Message, Tools


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages and the tools that the model may call.

    Attributes:
        messages: in their order.
        tools: JSON objects, in their order.
    """

    messages: tuple[Message, ...]
    tools: Tools = ()

    def texts(self) -> list[str]:
        """Return the contents of the messages, then each key and text of the tools."""
        texts = [message.content for message in self.messages]

        def note(text: str) -> str:
            texts.append(text)
            return text

        for tool in self.tools:
            _each_text(tool, note)
        return texts

    def with_texts(self, texts: Sequence[str]) -> Conversation:
        """Return this conversation with other texts, as many as `texts` gives."""
        rest: Iterator[str] = iter(texts)
        # A mark is a place in a content, which is another one now.
        messages = tuple(replace(m, content=next(rest), marks=()) for m in self.messages)
        return Conversation(
            messages, tuple(_each_text(t, lambda _: next(rest)) for t in self.tools)
        )


def _each_text(value: Any, change: Callable[[str], str]) -> Any:
    """Return a JSON value with its keys and texts changed, called for in reading order."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): _each_text(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [_each_text(item, change) for item in value]
    return value
