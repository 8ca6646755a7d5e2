"""The chain of the audit log: lines that vouch for the ones before, and a head that counts them.

A line is one JSON object in a fixed spelling, its last field `mac` an HMAC-SHA256 over the mac of
the line before and the object without it. The head names how many lines there are, their length and
the last mac, under an HMAC of its own. Pure: bytes in, bytes out.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_LINE_BYTES: Final = 1 << 16
_MAC_DIGITS: Final = 64
_MAC_FIELD: Final = b',"mac":"'
_LINE_END: Final = b'"}\n'
_HEAD_FIELDS: Final = {"n_records", "n_bytes", "last", "mac"}


@dataclass(frozen=True, slots=True)
class Line:
    """One record as it stands in the file.

    Attributes:
        n: its number, from 0.
        fields: of the record.
        mac: that vouches for it and for all before.
        text: the whole line.
    """

    n: int
    fields: Mapping[str, Any]
    mac: str
    text: bytes

    @property
    def record_id(self) -> str:
        """How people name it."""
        return f"{self.n}-{self.mac[:8]}"


@dataclass(frozen=True, slots=True)
class Head:
    """Where a log ends.

    Attributes:
        n_records: how many lines there are.
        n_bytes: their length.
        last: mac of the last one.
    """

    n_records: int
    n_bytes: int
    last: str

    def behind(self, line: Line) -> Head:
        """Return the head when one more line is there."""
        return Head(self.n_records + 1, self.n_bytes + len(line.text), line.mac)

    def sealed(self, key: bytes) -> bytes:
        """Return the content of the head's file."""
        fields = {"n_records": self.n_records, "n_bytes": self.n_bytes, "last": self.last}
        return _plain(fields | {"mac": _mac(key, b"head", _plain(fields))}) + b"\n"

    @classmethod
    def opened(cls, key: bytes, content: bytes) -> Head | None:
        """Return the head in a file; None where it is not what was written with that key."""
        try:
            fields = json.loads(content)
            head = cls(fields["n_records"], fields["n_bytes"], fields["last"])
            is_written = hmac.compare_digest(head.sealed(key), content)
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        return head if is_written else None

    @classmethod
    def is_empty(cls, content: bytes) -> bool:
        """Return whether a head says, whoever wrote it, that nothing was logged yet."""
        try:
            return bool(json.loads(content)["n_records"] == 0)
        except (ValueError, KeyError, TypeError, RecursionError):
            return False


EMPTY: Final = Head(0, 0, "")


def line_of(key: bytes, head: Head, fields: Mapping[str, Any]) -> Line:
    """Return the line that follows a head.

    Args:
        key: of this installation.
        head: where the log ends.
        fields: of the record; `n` is put before them.

    Raises:
        ValueError: the record is too long.
    """
    body = _plain({"n": head.n_records, **fields})
    mac = _mac(key, b"record" + head.last.encode(), body)
    text = body[:-1] + _MAC_FIELD + mac.encode() + _LINE_END
    if len(text) > MAX_LINE_BYTES:
        raise ValueError(f"a record of {len(text)} bytes")
    return Line(head.n_records, fields, mac, text)


def read_line(key: bytes, head: Head, text: bytes) -> Line | None:
    """Return the line that follows a head, or None where it is not what was written there."""
    tail = len(_MAC_FIELD) + _MAC_DIGITS + len(_LINE_END)
    body, field, mac = text[:-tail] + b"}", text[-tail:], text[-tail:][len(_MAC_FIELD) :]
    if not (field.startswith(_MAC_FIELD) and mac.endswith(_LINE_END)):
        return None
    digits = mac[:_MAC_DIGITS].decode("ascii", "replace")
    expected = _mac(key, b"record" + head.last.encode(), body)
    if not hmac.compare_digest(expected.encode(), digits.encode()):
        return None
    fields = json.loads(body)  # only what we wrote comes so far
    n = fields.pop("n")
    return Line(n, fields, expected, text) if n == head.n_records else None


def prompt_mac(key: bytes, prompt: bytes) -> str:
    """Return what tells two conversations apart and gives neither away without the key."""
    return _mac(key, b"prompt", prompt)


def _mac(key: bytes, purpose: bytes, content: bytes) -> str:
    """Return a keyed hash; the purpose's length goes in, so that no two share an input."""
    named = len(purpose).to_bytes(4, "little") + purpose + content
    return hmac.new(key, named, hashlib.sha256).hexdigest()


def _plain(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False).encode()
