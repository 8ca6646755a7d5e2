"""CloudStream: one answer while it arrives, from bytes to events.

It ends with `CloudEnd`, or raises `EndpointError`; text handed on before stays the caller's. An end needs
a sign: a finish reason or `[DONE]`. A connection that merely closes has cut the answer.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from edgellm.closing import Closing
from edgellm.cloud.chunks import Answer, is_json
from edgellm.cloud.events import CloudEnd, CloudEvent, CloudReasoning, CloudText
from edgellm.cloud.exchange import Stopped
from edgellm.cloud.failures import quoted
from edgellm.cloud.joint import Joint, Restarted
from edgellm.cloud.sse import MAX_LINE_BYTES, SseError, SseParser
from edgellm.errors import EndpointError

if TYPE_CHECKING:
    from edgellm.cloud.address import Address
    from edgellm.cloud.events import Traffic
    from edgellm.cloud.exchange import Exchange, Head
    from edgellm.cloud.key import ApiKey
    from edgellm.core import FinishReason

_DONE: Final = "[DONE]"
_BLANK: Final = codecs.BOM_UTF8 + b" \t\r\n"
_MAX_BLANK_BYTES: Final = 4 << 10
_SOMETIMES: Final = "some servers do that when the conversation is longer than their context"


class CloudStream(Closing, Iterator[CloudEvent]):
    """The events of one answer. Closing it early closes the socket; so does its end."""

    def __init__(
        self, exchange: Exchange, address: Address, key: ApiKey, begun: str, traffic: Traffic
    ) -> None:
        self._exchange, self._traffic = exchange, traffic
        self._where, self._key = str(address), key
        self._begun = bool(begun)
        self._joint = Joint(begun)
        self._answer = Answer(self._where, key.text)
        self._is_shown = False
        self._events: Iterator[CloudEvent] = iter(())

    def opened(self, head: Head) -> CloudStream:
        """Read an answer that begins with this head."""
        self._events = self._read(head.headers.get("content-type", ""))
        return self

    def stopped(self) -> CloudStream:
        """End before anything came."""
        self._events = iter((self._end("cancelled"),))
        return self

    @property
    def counted_tokens(self) -> int | None:
        """Tokens of the answer by the endpoint's own count so far, None where it gave none yet."""
        return self._answer.counted.completion_tokens

    def __next__(self) -> CloudEvent:
        return next(self._events)

    def close(self) -> None:
        """Stop the answer; the socket is closed at once. Any thread may call."""
        self._exchange.close()

    def __del__(self) -> None:
        self._exchange.close()

    def _read(self, content_type: str) -> Iterator[CloudEvent]:
        try:
            yield from self._all(content_type)
            if self._answer.finish is None:
                raise self._cut()
            yield from self._shown(self._answer.rest())
            if text := self._joint.flush():
                yield self._text(text)
            yield from self._answer.calls()
            yield self._checked_end()
        except Stopped:
            yield self._end("cancelled")
        except (Restarted, SseError) as err:
            raise EndpointError(self._told(err), kind="protocol") from err
        finally:
            self._exchange.close()

    def _all(self, content_type: str) -> Iterator[CloudEvent]:
        """Yield what the answer holds, whether it is a stream or one JSON object."""
        first = self._first_bytes()
        mark = first.lstrip(_BLANK)[:1]
        if mark == b"<" or "html" in content_type:
            raise EndpointError(
                f"{self._where} answers with a web page ({quoted(content_type, self._key.text)}), not a completion",
                kind="protocol",
                status=200,
                hint="is that the endpoint's address, and does a login page stand before it?",
            )
        if mark == b"{":
            yield from self._whole_object(first)
        else:
            yield from self._stream(first)

    def _first_bytes(self) -> bytes:
        """Return the beginning of the answer, up to a byte that is not blank; b"" without one."""
        content = b""
        while len(content) < _MAX_BLANK_BYTES and not content.strip(_BLANK):
            piece = self._exchange.piece()
            if piece is None:
                return b""
            content += piece
        return content

    def _whole_object(self, first: bytes) -> Iterator[CloudEvent]:
        content = bytearray(first)
        while (piece := self._exchange.piece()) is not None:
            content += piece
            if len(content) > MAX_LINE_BYTES:  # JSON takes many times its length when it is read
                raise SseError(f"an answer in one piece has more than {MAX_LINE_BYTES} bytes")
        yield from self._shown(self._answer.read(content.decode("utf-8-sig", "replace")))

    def _stream(self, first: bytes) -> Iterator[CloudEvent]:
        parser = SseParser()
        piece: bytes | None = first
        while piece:
            for event in parser.feed(piece):
                if event.data.strip() == _DONE:
                    self._done()
                    return
                yield from self._shown(self._answer.read(event.data, event.name))
            piece = self._next_piece()
        last = parser.close()
        if last is None:
            return
        if last.data.strip() == _DONE:
            self._done()
        elif is_json(last.data):  # whole, though its empty line is missing
            yield from self._shown(self._answer.read(last.data, last.name))

    def _next_piece(self) -> bytes | None:
        """Wait for more; behind the end of the answer nothing that fails is missed."""
        if self._answer.finish is None:
            return self._exchange.piece()
        self._exchange.answer_ended()
        try:
            return self._exchange.piece()
        except EndpointError:
            return None

    def _done(self) -> None:
        """Take `[DONE]` for an end where no reason was given."""
        if self._answer.finish is None and (self._answer.has_text or self._answer.calls()):
            self._answer.finish = "stop"

    def _shown(self, parts: Iterator[CloudText | CloudReasoning]) -> Iterator[CloudEvent]:
        for part in parts:
            self._exchange.answer_began()
            if isinstance(part, CloudReasoning):
                yield part
            elif text := self._joint.feed(part.text):
                yield self._text(text)

    def _text(self, text: str) -> CloudText:
        self._is_shown = True
        return CloudText(text)

    def _checked_end(self) -> CloudEnd:
        """Return the end; without any text it needs something that vouches for it."""
        answer, finish = self._answer, self._answer.finish or "stop"
        calls = answer.calls()
        if calls and finish == "stop":
            finish = "tool_calls"
        if answer.has_text or calls or finish == "content_filter":
            return self._end(finish)
        if finish == "length" and (answer.has_reasoning or answer.counted.completion_tokens):
            note = "the limit of tokens was used up by reasoning: there is no answer yet"
            return self._end(finish, note)
        if answer.counted.completion_tokens or (self._begun and finish == "stop"):
            return self._end(finish, "" if self._begun else "the model answered with nothing")
        raise EndpointError(
            f"{self._where} ended its answer ({finish}) without a word, and counted no tokens",
            kind="protocol",
            hint=_SOMETIMES,
        )

    def _end(self, finish: FinishReason, note: str = "") -> CloudEnd:
        counted, traffic = self._answer.counted, self._traffic
        return CloudEnd(
            finish,
            counted.prompt_tokens,
            counted.cached_tokens,
            counted.completion_tokens,
            traffic.bytes_out,
            traffic.bytes_in,
            note,
        )

    def _cut(self) -> EndpointError:
        some = self._answer.has_text or self._answer.has_reasoning
        return EndpointError(
            f"{self._where} ended its answer early: nothing in it says that it is over",
            kind="incomplete",
            may_retry=not self._is_shown,
            hint="" if some else _SOMETIMES,
        )

    def _told(self, err: Exception) -> str:
        what = "did not go on with the answer" if isinstance(err, Restarted) else "cannot be read"
        return f"{self._where} {what}: {err}"
