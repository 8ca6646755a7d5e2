r"""Frames: how bytes are cut on the pipes between a program and its worker.

    length u32 little-endian, of what follows the kind | kind u8 | payload
    kind 1: one JSON object in UTF-8
    kind 2: tag u32 little-endian | raw bytes that belong to the message which named the tag
    kind 3: call u32 | token u32 | seq u32, all little-endian | text in UTF-8; one token of an answer,
            without text where seq is 2^32 - 1. There are so many that JSON would cost more than 1 %.

Nothing is ever unpickled. A length is held against its cap before a byte of it is read, and an end in
the middle of a frame is damage, not an end.
"""

from __future__ import annotations

import json
import os
import struct
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import IO

HEADER: Final = struct.Struct("<IB")
_TAG: Final = struct.Struct("<I")
JSON_KIND: Final = 1
RAW_KIND: Final = 2
TOKEN_KIND: Final = 3
MAX_JSON_BYTES: Final = 64 << 20
MAX_SAID_BYTES: Final = 16 << 20
"""The longest JSON that a program takes from its worker: read, it grows to many times that."""
MAX_RAW_BYTES: Final = 1 << 20
MAX_TEXT_BYTES: Final = 64 << 10
_TOKEN: Final = struct.Struct("<III")
_NO_SEQ: Final = (1 << 32) - 1
_CAPS: Final = {
    JSON_KIND: MAX_JSON_BYTES,
    RAW_KIND: MAX_RAW_BYTES + _TAG.size,
    TOKEN_KIND: MAX_TEXT_BYTES + _TOKEN.size,
}


class FrameError(Exception):
    """What came is no frame, or is too long to be one of ours."""


@dataclass(frozen=True, slots=True)
class Raw:
    """A piece of bytes, and which message it belongs to."""

    tag: int
    content: bytes


@dataclass(frozen=True, slots=True)
class TokenMade:
    """One token of an answer.

    Attributes:
        call: the answer's number.
        token: its id.
        seq: of the text that it completes, or None where it completes none.
        text: that text, or "".
    """

    call: int
    token: int
    seq: int | None
    text: str


def encode_json(value: Mapping[str, Any]) -> bytes:
    """Return an object as a frame.

    Raises:
        FrameError: it is longer than a frame may be.
        ValueError: a number in it is none of JSON's.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    payload = text.encode("utf-8", "surrogatepass")  # a path may have what is no text
    if len(payload) > MAX_JSON_BYTES:
        raise FrameError(f"a message of {len(payload)} bytes, at most {MAX_JSON_BYTES} go")
    return HEADER.pack(len(payload), JSON_KIND) + payload


def encode_raw(tag: int, content: bytes | bytearray | memoryview) -> list[bytes]:
    """Return bytes of any length as frames; none for no bytes."""
    view = memoryview(content)
    pieces = (view[at : at + MAX_RAW_BYTES] for at in range(0, len(view), MAX_RAW_BYTES))
    return [
        HEADER.pack(_TAG.size + len(piece), RAW_KIND) + _TAG.pack(tag) + piece for piece in pieces
    ]


def encode_token(made: TokenMade) -> bytes | None:
    """Return a token as a frame, or None where it is too large for one."""
    text = made.text.encode()
    seq = _NO_SEQ if made.seq is None else made.seq
    if len(text) > MAX_TEXT_BYTES or max(made.call, made.token, made.seq or 0) >= _NO_SEQ:
        return None
    head = HEADER.pack(_TOKEN.size + len(text), TOKEN_KIND)
    return head + _TOKEN.pack(made.call, made.token, seq) + text


def read_frame(
    file: IO[bytes], max_json_bytes: int = MAX_JSON_BYTES
) -> dict[str, Any] | Raw | TokenMade | None:
    """Return the next frame, or None where the other side ended in order.

    Args:
        file: buffered, so that a read gives what was asked for unless the pipe ends.
        max_json_bytes: the longest JSON that is read.

    Raises:
        FrameError: it has an unknown kind, is too long, ends early or is no JSON object.
    """
    header = file.read(HEADER.size)
    if not header:
        return None
    if len(header) < HEADER.size:
        raise FrameError(f"the pipe ended {len(header)} bytes into the head of a frame")
    n_bytes, kind = HEADER.unpack(header)
    cap = max_json_bytes if kind == JSON_KIND else _CAPS.get(kind)
    if cap is None:
        raise FrameError(f"a frame of unknown kind {kind}")
    if n_bytes > cap:
        raise FrameError(f"a frame of {n_bytes} bytes, at most {cap} go")
    payload = file.read(n_bytes)
    if len(payload) < n_bytes:
        raise FrameError(f"the pipe ended {len(payload)} bytes into a frame of {n_bytes}")
    if kind == TOKEN_KIND:
        return _token(payload)
    return _object(payload) if kind == JSON_KIND else _raw(payload)


def _object(payload: bytes) -> dict[str, Any]:
    try:
        text = payload.decode("utf-8", "surrogatepass")
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as err:  # UnicodeDecodeError is a ValueError
        raise FrameError(
            f"a frame of {len(payload)} bytes is no JSON: {type(err).__name__}"
        ) from err
    if not isinstance(value, dict):
        raise FrameError(f"a frame holds a {type(value).__name__}, not an object")
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def _raw(payload: bytes) -> Raw:
    if len(payload) < _TAG.size:
        raise FrameError(f"a raw frame of {len(payload)} bytes")
    return Raw(_TAG.unpack_from(payload)[0], payload[_TAG.size :])


def _token(payload: bytes) -> TokenMade:
    try:
        call, token, seq = _TOKEN.unpack_from(payload)
        text = payload[_TOKEN.size :].decode()
    except (struct.error, UnicodeDecodeError) as err:
        raise FrameError(f"a token of {len(payload)} bytes that is none") from err
    return TokenMade(call, token, None if seq == _NO_SEQ else seq, text)


class Sender:
    """Writes whole frames into a pipe, from any thread.

    Args:
        fd: the pipe's end; it stays open.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()
        self._held = b""

    def send(self, value: Mapping[str, Any]) -> None:
        """Write an object.

        Raises:
            OSError: nobody reads any more.
            FrameError: it is too long.
        """
        self.put(encode_json(value))

    def hold(self, frame: bytes) -> None:
        """Keep a frame that was encoded, to be written in front of the next one."""
        with self._lock:
            self._held += frame

    def put(self, frame: bytes) -> None:
        """Write a frame that was encoded, and those that were held before it.

        Raises:
            OSError: nobody reads any more.
        """
        with self._lock:
            view = memoryview(self._held + frame)
            self._held = b""
            while view:
                view = view[os.write(self._fd, view) :]
