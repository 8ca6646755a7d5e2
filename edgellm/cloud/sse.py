"""Server-sent events from bytes, however the network cut them.

Follows the event stream format of the HTML standard (section 9.2): lines end with LF, CR or CRLF, a
byte order mark may come first, lines that begin with a colon mean nothing, an empty line ends an event.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

MAX_LINE_BYTES: Final = 8 << 20
MAX_EVENT_BYTES: Final = 16 << 20
_LINE_END: Final = re.compile(rb"[\r\n]")
_BOM: Final = b"\xef\xbb\xbf"


class SseError(ValueError):
    """The stream is longer than anybody's answer: a line, or one event."""


@dataclass(frozen=True, slots=True)
class SseEvent:
    """One event that carries data; `name` is "" where the stream gave none."""

    name: str
    data: str


class SseParser:
    """Takes the stream piece by piece; every byte is looked at once."""

    def __init__(self) -> None:
        self._rest = bytearray()  # of a line whose end is not there yet
        self._n_scanned = 0
        self._is_first = True
        self._after_cr = False
        self._name = ""
        self._data: list[bytes] = []
        self._n_bytes = 0

    def feed(self, piece: bytes) -> list[SseEvent]:
        """Return the events that end in this piece.

        Raises:
            SseError: a line or an event is too long.
        """
        if self._after_cr and piece:
            self._after_cr = False
            piece = piece.removeprefix(b"\n")  # the second half of a CRLF
        buffer = self._rest
        buffer += piece
        events: list[SseEvent] = []
        start = 0
        while (end := _LINE_END.search(buffer, max(start, self._n_scanned))) is not None:
            self._line(bytes(buffer[start : end.start()]), events)
            start = end.end()
            if end.group() == b"\r":
                self._after_cr = start == len(buffer)
                start += buffer[start : start + 1] == b"\n"
        del buffer[:start]
        self._n_scanned = len(buffer)
        if len(buffer) > MAX_LINE_BYTES:
            raise SseError(f"a line has more than {MAX_LINE_BYTES} bytes")
        return events

    def close(self) -> SseEvent | None:
        """Return what was begun when the stream ended, which the standard would drop.

        Some servers leave out the empty line behind their last event; others were cut inside one.
        """
        events: list[SseEvent] = []
        self._line(bytes(self._rest), events)
        self._rest.clear()
        self._line(b"", events)
        return events[-1] if events else None

    def _line(self, line: bytes, events: list[SseEvent]) -> None:
        if self._is_first:
            self._is_first = False
            line = line.removeprefix(_BOM)
        if not line:
            self._dispatch(events)
            return
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._n_bytes += len(value) + 1
            if self._n_bytes > MAX_EVENT_BYTES:
                raise SseError(f"an event has more than {MAX_EVENT_BYTES} bytes")
            self._data.append(value)
        elif field == b"event":
            self._name = value.decode("utf-8", "replace")

    def _dispatch(self, events: list[SseEvent]) -> None:
        data = b"\n".join(self._data)
        if data:
            events.append(SseEvent(self._name, data.decode("utf-8", "replace")))
        self._name, self._n_bytes = "", 0
        self._data.clear()
