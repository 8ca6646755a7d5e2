"""One use of the snapshots, and the line of the ledger that keeps it: numbers and a code, no text.

Line, ASCII, separated by blanks, times in microseconds:
`1 MODEL CODE N REUSED PREFILLED PREFILL_US RESTORE_US RESTORED SAVED SAVE_US CRC32`
"""

from __future__ import annotations

import re
import zlib
from dataclasses import astuple, dataclass, fields
from typing import Final

SAVED: Final = "saved"
"""The code of a line that is no request, of a save that ended after its request."""
_LINE: Final = re.compile(
    rb"1 ([0-9a-f]{1,64}) ([a-z_]{1,32})((?: [0-9]{1,15}){8}) ([0-9a-f]{8})", re.ASCII
)
_MAX_NUMBER: Final = 10**15 - 1


@dataclass(frozen=True, slots=True)
class Use:
    """What snapshots did for one request, or for several that are summed up.

    Attributes:
        model: the model's content id, up to 64 hex digits.
        code: that of the request's `SnapshotUse`, or `SAVED`.
        n_requests: how many.
        reused_tokens: of the prompt, not decoded anew.
        prefill_tokens, prefill_s: of the prompt, decoded.
        restore_s, restore_bytes: looking up, reading, checking and restoring a snapshot.
        saved_bytes, save_s: written to new ones.
    """

    model: str
    code: str
    n_requests: int = 1
    reused_tokens: int = 0
    prefill_tokens: int = 0
    prefill_s: float = 0.0
    restore_s: float = 0.0
    restore_bytes: int = 0
    saved_bytes: int = 0
    save_s: float = 0.0


def line_of(use: Use) -> bytes:
    """Return the line of a use; what no line can hold is cut to what it can.

    Raises:
        ValueError: the model is no hex number, or the code not in small letters.
    """
    numbers = [_micros(value) if isinstance(value, float) else value for value in astuple(use)[2:]]
    texts = (str(max(0, min(number, _MAX_NUMBER))) for number in numbers)
    body = " ".join(("1", use.model[:64], use.code, *texts)).encode()
    line = body + b" %08x" % zlib.crc32(body)
    if _LINE.fullmatch(line) is None:
        raise ValueError(f"no line for model {use.model!r} and code {use.code!r}")
    return line + b"\n"


def use_of(line: bytes) -> Use | None:
    """Return what a line says, or None where it is torn or no line of ours."""
    match = _LINE.fullmatch(line)
    if match is None or zlib.crc32(line[:-9]) != int(match.group(4), 16):
        return None
    numbers = [int(text) for text in match.group(3).split()]
    values = [
        number / 1e6 if field.name.endswith("_s") else number
        for field, number in zip(fields(Use)[2:], numbers, strict=True)
    ]
    return Use(match.group(1).decode(), match.group(2).decode(), *values)  # type: ignore[arg-type]  # whole where they are counts


def added(left: Use, right: Use) -> Use:
    """Return the sums of two, under the model and the code of the first."""
    pairs = zip(astuple(left)[2:], astuple(right)[2:], strict=True)
    return Use(left.model, left.code, *(a + b for a, b in pairs))


def _micros(seconds: float) -> int:
    """Return whole microseconds; what is no finite number of seconds counts as none."""
    return round(seconds * 1e6) if 0 <= seconds < _MAX_NUMBER / 1e6 else 0
