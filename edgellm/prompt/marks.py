"""Where a prompt may be cut inside its stable part: behind documents, and behind the tools.

A place is found in the rendered text by writing what ends there with a sign behind it that no text
has. Its token is the last one that whatever may follow leaves as it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from edgellm.core import Message
from edgellm.prompt.agreement import Beginnings, agreed_chars, common_tokens, shared_tokens
from edgellm.prompt.conversation import Conversation
from edgellm.prompt.provenance import PRIVATE, PromptText

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from edgellm.core import Tools
    from edgellm.prompt.agreement import Encode

    # System messages and tools to the text of a prompt; None where the template refuses them.
    Write = Callable[[Sequence[Message], Tools], PromptText | None]

# What may stand behind a document, as far as tokenizers care: nothing, line breaks, letters, digits,
# spaces, several bytes a character, and signs that join with signs.
_FOLLOWING = (
    "\n\n# B",
    "\n",
    "a",
    " 1",
    "\U0001f642",
    "The",
    "7",
    ")",
    ".",
    '"',
    "`",
    " ",
    "-",
)
# The last word, or run of signs, could go on: what follows may make other tokens of all of it.
_LAST_RUN = re.compile(r"(?:\w{1,16}|[^\w\s]{1,16})\Z")
# So many characters of a document stand before its end in the text, or the end is not found.
_N_SEEN_CHARS = 8
# Words that templates look for; a tool with others in their place might be refused.
_KEPT_KEYS = ("type", "role")


def places(write: Write, system: Sequence[Message], tools: Tools, base: PromptText) -> list[int]:
    """Return the positions in a text behind which something else may come.

    Args:
        write: renders, always with the same question.
        system: the messages before the first question.
        tools: of the request.
        base: what `write` makes of both.
    """
    sign = free_sign([base.text, *Conversation(tuple(system), tools).texts()])
    if not sign or not system:
        return []
    finder = _Finder(write, tuple(system), tools, base, sign)
    return sorted({*finder.documents(), *finder.around_tools()})


@dataclass(frozen=True, slots=True)
class _Finder:
    """Renders one conversation cut short here and there; see `places`."""

    write: Write
    system: tuple[Message, ...]
    tools: Tools
    base: PromptText
    sign: str

    def documents(self) -> Iterator[int]:
        """Yield where marked documents end, and all system messages but the last."""
        for n, message in enumerate(self.system):
            is_last = n == len(self.system) - 1
            ends = {*message.marks, *(() if is_last else (len(message.content),))}
            for end in sorted(ends):
                at = self.end_of(n, message.content[:end])
                if at is not None:
                    yield at

    def around_tools(self) -> Iterator[int]:
        """Yield where the system text ends if tools follow it, or where they end if it follows."""
        if not self.tools:
            return
        first, last = self.tools[0], self.tools[-1]
        others = self.write(self.system, (_other(first, self.sign), *self.tools[1:]))
        more = self.write(self.system, (*self.tools, _other(last, self.sign)))
        if others is None or more is None or others == self.base:
            return
        begin = self.end_of(0, "")
        end = self.end_of(len(self.system) - 1, self.system[-1].content)
        tools_begin, tools_end = (agreed_chars(self.base, text) for text in (others, more))
        if end is not None and end <= tools_begin:
            yield end
        if begin is not None and tools_end <= begin:
            yield len(self.base.text[:tools_end].rstrip())

    def end_of(self, n: int, content: str) -> int | None:
        """Return where a beginning of the n-th message ends in the text, None if nowhere.

        Spaces at its end are left out: templates trim them.
        """
        kept = content.rstrip()
        cut = Message(self.system[n].role, kept + self.sign)
        text = self.write([*self.system[:n], cut], self.tools)
        if text is None:
            return None
        at = agreed_chars(self.base, text)
        # Elsewhere, a template has put what follows before it.
        is_end = text.text[:at].endswith(kept[-_N_SEEN_CHARS:])
        return at if is_end and text.text.startswith(self.sign, at) else None


def end_of(content: str, role: str, write: Write, base: PromptText) -> int | None:
    """Return where a beginning of the one system message ends in a text, None if nowhere."""
    message = Message(role, content)
    sign = free_sign([base.text])
    finder = _Finder(write, (message,), (), base, sign)
    return finder.end_of(0, content) if sign else None


def tokens_at(
    base: PromptText, ends: Sequence[int], base_tokens: list[int], encode: Encode
) -> list[int]:
    """Return how many tokens before places in a text stay, whatever follows; 0 for none.

    Args:
        base: a text.
        ends: the places, in order.
        base_tokens: the text's.
        encode: makes tokens of texts.
    """
    heads = Beginnings(base, encode)
    return [_token_at(base, at, heads.tokens(at), base_tokens, encode) for at in ends]


def _token_at(
    base: PromptText, at: int, head_tokens: list[int], base_tokens: list[int], encode: Encode
) -> int:
    head = base.head(at)
    run = _LAST_RUN.search(head.text)
    sign = free_sign([head.text])
    cut_off = base.head(run.start() if run else at)
    texts = [_followed(head, following) for following in _FOLLOWING]
    stays = shared_tokens([head, *texts, _followed(cut_off, sign)], encode, head_tokens)
    return len(common_tokens(stays, base_tokens))


def _followed(head: PromptText, following: str) -> PromptText:
    return PromptText(head.text + following, head.controls, head.mixed)


def free_sign(texts: Sequence[str]) -> str:
    """Return a private character that is in none of some texts; "" if there is none."""
    used = set().union(*texts)
    return next((chr(code) for code in chain(*PRIVATE) if chr(code) not in used), "")


def _other(value: Any, sign: str) -> Any:
    """Return a tool of the same form that says something else."""
    if isinstance(value, str):
        return sign + value
    if isinstance(value, list):
        return [_other(item, sign) for item in value]
    if isinstance(value, dict):
        return {k: v if k in _KEPT_KEYS else _other(v, sign) for k, v in value.items()}
    return value
