"""The standard streams as the commands use them: no text of a model or a file can make a write fail.

A terminal keeps its own encoding and shows a mark for what it lacks. A pipe or a file gets UTF-8,
whatever the locale or the code page, and its lines end as they were written.
"""

from __future__ import annotations

import errno
import io
import os
import re
import sys
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from collections.abc import Mapping

_LINE_CONTROLS: Final = "\n\t"
_BIDI_CONTROLS: Final = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Embeddings, overrides and isolates: they let a line read otherwise than it is (UAX #9, 2)."""
_CONTROLS: Final = (*range(0x20), *range(0x7F, 0xA0), *_BIDI_CONTROLS)
_MARKED: Final = {
    code: "\N{REPLACEMENT CHARACTER}" for code in _CONTROLS if chr(code) not in _LINE_CONTROLS
}
_ESCAPED: Final = {
    **{code: f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}" for code in _CONTROLS},
    ord("\n"): "\\n",
    ord("\t"): "\\t",
    ord("\r"): "\\r",
}
_NO_BYTE: Final = re.compile("[\ud800-\udc7f\udd00-\udfff]")
_DUMB: Final = "dumb"


def prepare(*streams: TextIO | None) -> None:
    """Make streams take any text; what is no text stream of Python's own is left as it is."""
    for stream in streams:
        if not isinstance(stream, io.TextIOWrapper):
            continue
        if is_terminal(stream):
            stream.reconfigure(errors="replace")
        else:
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", newline="\n")


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a person looks at a stream; a closed one is looked at by nobody."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


def same_place(first: TextIO | None, second: TextIO | None) -> bool:
    """Return whether two streams lead to one terminal, pipe or file, so that their texts mix."""
    try:
        return (
            first is not None
            and second is not None
            and os.path.sameopenfile(first.fileno(), second.fileno())
        )
    except (OSError, ValueError):
        return False


def can_rewrite(stream: TextIO | None, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether a line of a stream can be rewritten in place, which `TERM=dumb` denies."""
    return is_terminal(stream) and environ.get("TERM") != _DUMB


def is_closed_pipe(err: OSError) -> bool:
    """Return whether a write failed because nobody reads; Windows calls that an invalid argument."""
    return isinstance(err, BrokenPipeError) or (os.name == "nt" and err.errno == errno.EINVAL)


def as_text(text: str) -> str:
    r"""Return text that every encoding of Unicode takes.

    A name of a file can hold bytes that Python could not decode. What is UTF-8 of them is shown as
    such, whatever the locale; the rest as `\xff`.
    """
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raw = _NO_BYTE.sub("\N{REPLACEMENT CHARACTER}", text).encode("utf-8", "surrogateescape")
        return raw.decode("utf-8", "backslashreplace")
    return text


def without_controls(text: str) -> str:
    """Return text that cannot move the cursor, rename the window, or turn the reading order."""
    return text.translate(_MARKED)


def one_line(text: str) -> str:
    r"""Return text as one line that shows all of it: a line end in a name becomes `\n`."""
    return as_text(text).translate(_ESCAPED)


def encodable(text: str, stream: TextIO) -> str:
    """Return text that a stream's own encoding takes."""
    encoding = stream.encoding or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)


def columns(stream: TextIO | None = None) -> int:
    """Return the width of the terminal behind a stream, else of `COLUMNS`, else 80.

    Not `shutil.get_terminal_size`: it asks stdout alone, which may be a pipe beside a terminal.
    """
    named = os.environ.get("COLUMNS", "")
    if named.isascii() and named.isdigit() and int(named[:5]) > 0:
        return int(named[:5])
    try:
        return os.get_terminal_size((stream or sys.stderr).fileno()).columns or 80
    except (OSError, ValueError, AttributeError):
        return 80
