"""Chunks of a streamed chat completion, one after the other, into the events of an answer.

Choice 0 alone counts. An `error` object fails the answer wherever it stands, `null` is nothing, and what
is no chunk at all is a `protocol` failure: leaving it out would lose text in silence.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from edgellm.cloud.calls import ToolCalls
from edgellm.cloud.events import CloudReasoning, CloudText
from edgellm.cloud.failures import of_error_object, quoted
from edgellm.errors import EndpointError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from edgellm.cloud.events import CloudToolCall
    from edgellm.core import FinishReason

_REASONS: Final[dict[str, FinishReason]] = {
    "stop": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "length": "length",
    "max_tokens": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}
_MAX_COUNT: Final = 1 << 31
"""More tokens than the bytes of any request and answer could hold are no count."""


@dataclass(frozen=True, slots=True)
class Counted:
    """Token counts as an endpoint gave them; None is what it did not say."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None


class Answer:
    """Reads the chunks of one answer.

    Args:
        where: the endpoint, in messages.
        key: what must not be quoted.

    Attributes:
        finish: the reason the endpoint gave, or None so far.
        counted: the last usage it gave.
        has_text: whether any text of the answer came.
        has_reasoning: whether any thoughts came.
    """

    def __init__(self, where: str, key: str = "") -> None:
        self.finish: FinishReason | None = None
        self.counted = Counted()
        self.has_text = False
        self.has_reasoning = False
        self._where, self._key = where, key
        self._calls = ToolCalls()
        self._text, self._reasoning = _Characters(), _Characters()

    def read(self, data: str, name: str = "") -> Iterator[CloudText | CloudReasoning]:
        """Yield what one event of the stream brings.

        Args:
            data: of the event: a JSON object.
            name: of the event; one named `error` fails whatever its data is.

        Raises:
            EndpointError: an error stands in it, or it is no chunk.
        """
        chunk = self._object(data)
        self._raise_error(chunk, name)
        self._take_usage(chunk.get("usage"))
        for choice in self._choices(chunk):
            delta = self._delta(choice)
            yield from self._take_delta(delta)
            self._take_finish(choice.get("finish_reason"))

    def calls(self) -> tuple[CloudToolCall, ...]:
        """Return the calls of tools; those that a limit cut short are left out.

        Raises:
            EndpointError: the arguments of one are no JSON, and no limit was the cause.
        """
        calls = self._calls.calls()
        whole = tuple(c for c in calls if not c.arguments or is_json(c.arguments))
        if len(whole) < len(calls) and self.finish in {"stop", "tool_calls"}:
            raise self._broken("the arguments of a tool call are no JSON")
        return whole

    def rest(self) -> Iterator[CloudText | CloudReasoning]:
        """Yield what was held back in case its other half came."""
        if text := self._reasoning.flush():
            yield CloudReasoning(text)
        if text := self._text.flush():
            yield CloudText(text)

    def _object(self, data: str) -> dict[str, Any]:
        try:
            chunk = json.loads(data)
        except (ValueError, RecursionError) as err:
            raise self._broken(f"{len(data)} characters are no JSON") from err
        if not isinstance(chunk, dict):
            raise self._broken("a chunk is no JSON object")
        return chunk

    def _raise_error(self, chunk: dict[str, Any], name: str) -> None:
        if chunk.get("error") or chunk.get("object") == "error" or name == "error":
            shown = self.has_text or self.has_reasoning
            raise of_error_object(self._where, chunk, key=self._key, may_retry=not shown)

    def _choices(self, chunk: dict[str, Any]) -> list[dict[str, Any]]:
        choices = chunk.get("choices") or []
        if not isinstance(choices, list) or not all(isinstance(c, dict) for c in choices):
            raise self._broken("choices is no list of objects")
        return [choice for choice in choices if not choice.get("index")]

    def _delta(self, choice: dict[str, Any]) -> dict[str, Any]:
        """Return what a choice adds; a message beside or behind deltas only says it all again."""
        delta = choice.get("delta")
        if not delta and not (self.has_text or self.has_reasoning):
            delta = choice.get("message") or delta
        if not isinstance(delta, dict | None):
            raise self._broken("a delta is no object")
        return delta or {}

    def _take_delta(self, delta: dict[str, Any]) -> Iterator[CloudText | CloudReasoning]:
        thought = delta.get("reasoning_content") or delta.get("reasoning")
        text, thought_parts = self._parts(delta.get("content"))
        thoughts = self._parts(thought)[0] + thought_parts if thought else thought_parts
        if thoughts:
            self.has_reasoning = True
            if told := self._reasoning.feed(thoughts):
                yield CloudReasoning(told)
        refusal = delta.get("refusal")
        if isinstance(refusal, str):
            text += refusal
        if text:
            self.has_text = True
            if told := self._text.feed(text):
                yield CloudText(told)
        calls = delta.get("tool_calls") or []
        if delta.get("function_call"):
            calls = [{"index": 0, "function": delta["function_call"]}]
        if not self._calls.take(calls):
            raise self._broken("tool_calls is no list of calls, or too long a one")

    def _parts(self, content: object) -> tuple[str, str]:
        """Return text and thoughts of a content, which is a text, a list of parts, or null."""
        if content is None or isinstance(content, str):
            return content or "", ""
        if not isinstance(content, list):
            raise self._broken("content is no text")
        text, thoughts = "", ""
        for part in content:
            kind = part.get("type") if isinstance(part, dict) else None
            if kind == "text" and isinstance(part.get("text"), str):
                text += part["text"]
            elif kind == "thinking":
                thoughts += self._parts(part.get("thinking"))[0]
            else:
                raise self._broken(f"a part of the content is a {self._quoted(kind)}, not text")
        return text, thoughts

    def _take_finish(self, reason: object) -> None:
        if reason is None or reason == "" or self.finish is not None:
            return
        known = _REASONS.get(reason) if isinstance(reason, str) else None
        if known is None:
            raise EndpointError(
                f"{self._where} broke off its answer: finish_reason {self._quoted(reason)}",
                kind="incomplete",
                may_retry=not self.has_text,
            )
        self.finish = known

    def _take_usage(self, usage: object) -> None:
        if not isinstance(usage, dict):
            return
        details = usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        if cached is None:
            cached = usage.get("prompt_cache_hit_tokens")
        self.counted = Counted(
            _count(usage.get("prompt_tokens")),
            _count(cached),
            _count(usage.get("completion_tokens")),
        )

    def _quoted(self, value: object) -> str:
        return quoted(str(value), self._key)

    def _broken(self, what: str) -> EndpointError:
        return EndpointError(
            f"{self._where} sent what is no chat completion: {what}", kind="protocol"
        )


class _Characters:
    """Joins halves of a surrogate pair that JSON escapes sent apart; a lone half becomes U+FFFD."""

    def __init__(self) -> None:
        self._half = ""

    def feed(self, text: str) -> str:
        text = self._half + text
        self._half = text[-1] if "\ud800" <= text[-1] <= "\udbff" else ""
        return _paired(text.removesuffix(self._half) if self._half else text)

    def flush(self) -> str:
        text, self._half = _paired(self._half), ""
        return text


def _paired(text: str) -> str:
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _count(value: object) -> int | None:
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_COUNT
    return value if is_count else None  # type: ignore[return-value]  # it is an int


def is_json(text: str) -> bool:
    """Return whether a text is JSON from its first character to its last."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
