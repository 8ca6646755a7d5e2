"""Chat templates: messages in, one text out. The template is a stranger's program and is bounded.

Rendering follows Hugging Face: immutable sandbox, trimmed blocks, loop controls, `tojson` without
escapes, `raise_exception`, `strftime_now`, `{% generation %}` blocks. Whatever goes wrong inside a
template leaves as one `TemplateError` of one line.
"""

from __future__ import annotations

import json
import threading
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from edgellm.core import Message
from edgellm.errors import TemplateError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgellm.core import Tools

# Compiling takes some kB for each character of the worst ones; real ones have some ten thousand.
MAX_SOURCE_CHARS = 1 << 17
RAW_SEPARATOR = "\n\n"
HINT = "--chat-template FILE replaces the model's own"


class Prompter(Protocol):
    """What turns a conversation into the text a model reads.

    Attributes:
        source: the template, or "".
        fallback: whether this is raw text because the model has no template of its own.
    """

    @property
    def source(self) -> str:
        """Return the template's source."""

    @property
    def fallback(self) -> bool:
        """Return whether the model's own template is missing."""

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        now: datetime | None = None,
        tools: Tools = (),
    ) -> str:
        """Return the prompt's text.

        Args:
            messages: the conversation; it is not changed.
            add_generation_prompt: end with the opening of the assistant's turn.
            now: what the template takes for the time; None is the local time.
            tools: what the model may call; not every template writes them.

        Raises:
            TemplateError: the template failed, refused the messages, or did too much.
        """


class RawTemplate:
    """The fallback for models without a chat template: the contents with blank lines between.

    An answer stands right behind its question, where the model wrote it: so the text of the next
    turn begins with what the engine has in memory.
    """

    source = ""
    fallback = True

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        now: datetime | None = None,
        tools: Tools = (),
    ) -> str:
        """Return the contents, with a blank line between any two but question and answer."""
        del add_generation_prompt, now, tools
        text, before = "", ""
        for n, message in enumerate(messages):
            answers = (before, message.role) == ("user", "assistant")
            text += ("" if answers or not n else RAW_SEPARATOR) + message.content
            before = message.role
        return text


def make_prompter(source: str | None, *, bos_text: str = "", eos_text: str = "") -> Prompter:
    """Return the template, or the raw-text fallback where there is none or an empty one.

    Of named templates in JSON, as in tokenizer_config.json, the one named `default` is taken.

    Raises:
        TemplateError: the template does not parse, or none of several is the default.
    """
    source = None if source is None else _default_of(source)
    if source is None or not source.strip():
        return RawTemplate()
    return ChatTemplate(source, bos_text=bos_text, eos_text=eos_text)


def _default_of(source: str) -> str:
    """Return the template in a JSON file of templates; what is no such file is one template."""
    if not source.lstrip().startswith(("[", "{")) or len(source) > MAX_SOURCE_CHARS:
        return source
    try:
        value = json.loads(source)
    except (ValueError, RecursionError):
        return source
    if isinstance(value, dict) and "chat_template" in value:
        value = value["chat_template"]
    if isinstance(value, str):
        return value
    rows = [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []
    named = {str(row["name"]): row.get("template") for row in rows if "name" in row}
    if not named:
        return source
    default = named.get("default")
    if not isinstance(default, str):
        names = ", ".join(sorted(named))[:200]
        raise TemplateError(f"of the chat templates {names} none is named default", hint=HINT)
    return default


def opens_answers(prompter: Prompter) -> bool:
    """Return whether prompts end where an answer begins, as far as can be told.

    A template that ignores `add_generation_prompt` does so only if answers stand right behind the
    questions, as behind `[/INST]`; if text of its own comes between, the model has to write that.
    """
    question, answer = Message("user", "?"), "0" * 9
    try:
        closed = prompter.render([question], add_generation_prompt=False)
        if prompter.render([question]) != closed:
            return True
        whole = prompter.render([question, Message("assistant", answer)])
    except TemplateError:
        return True
    opening, found, _ = whole.removeprefix(closed).partition(answer)
    return not (whole.startswith(closed) and found and opening.strip())


class ChatTemplate:
    """A compiled Jinja chat template. Safe to use from several threads, one render at a time.

    Args:
        source: the template.
        bos_text: what it knows as `bos_token`.
        eos_text: what it knows as `eos_token`.

    Raises:
        TemplateError: the source does not parse, or uses what the sandbox does not have.
    """

    fallback = False

    def __init__(self, source: str, *, bos_text: str, eos_text: str) -> None:
        from edgellm.prompt.failure import template_errors
        from edgellm.prompt.sandbox import BoundedEnvironment

        if len(source) > MAX_SOURCE_CHARS:
            raise TemplateError(
                f"the chat template has {len(source)} characters, more than {MAX_SOURCE_CHARS}",
                hint=HINT,
            )
        self.source = source
        self._constants = {"bos_token": bos_text, "eos_token": eos_text}
        self._lock = threading.Lock()
        self._environment = BoundedEnvironment()
        with template_errors(HINT):
            self._template = self._environment.from_string(source)

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        now: datetime | None = None,
        tools: Tools = (),
    ) -> str:
        """Return the prompt's text; see `Prompter.render`."""
        from edgellm.prompt.conversation import Conversation
        from edgellm.prompt.failure import template_errors
        from edgellm.prompt.meter import Meter
        from edgellm.prompt.sandbox import make_strftime_now

        values = {
            **self._constants,
            # Fresh for each render: the template may look at them, not keep or change them.
            "messages": [{"role": m.role, "content": m.content} for m in messages],
            # None where there are none: templates ask whether there is a list at all.
            "tools": [dict(tool) for tool in tools] or None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            "strftime_now": make_strftime_now(now or datetime.now().astimezone()),
        }
        with self._lock, template_errors(HINT):
            given = Conversation(tuple(messages), tools)
            self._environment.meter = Meter(sum(map(len, given.texts())))
            return self._template.render(values)
