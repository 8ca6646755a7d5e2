"""Where prompts come from: an argument, a flag, a file or stdin; exactly one of them.

Text is UTF-8, at most `MAX_TEXT_BYTES` of it, and loses a byte order mark and its final line end, so
that a file and the same text on the command line make the same tokens.
"""

from __future__ import annotations

import contextlib
import json
import sys
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TextIO

from edgellm.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from edgellm.core import Tools

MAX_TEXT_BYTES: Final = 16 << 20
STDIN_NAME: Final = "-"
_UTF8_BOM: Final = b"\xef\xbb\xbf"
_UTF16_BOMS: Final = (b"\xff\xfe", b"\xfe\xff")


def decode_text(raw: bytes, name: str) -> str:
    """Decode UTF-8 text without its byte order mark and its final line end.

    Args:
        raw: the bytes of the file.
        name: what the bytes are, for the message of an error.

    Raises:
        UsageError: there are too many bytes, or they are not UTF-8; says at which offset.
    """
    if len(raw) > MAX_TEXT_BYTES:
        raise UsageError(f"{name}: more than {MAX_TEXT_BYTES} bytes of text")
    try:
        text = raw.removeprefix(_UTF8_BOM).decode("utf-8")
    except UnicodeDecodeError as err:
        offset = err.start + (len(_UTF8_BOM) if raw.startswith(_UTF8_BOM) else 0)
        is_utf16 = raw.startswith(_UTF16_BOMS)
        kind = "this looks like UTF-16" if is_utf16 else f"byte 0x{raw[offset]:02x}"
        raise UsageError(
            f"{name}: not UTF-8 at byte offset {offset} ({kind})", hint=_utf8_hint(raw)
        ) from err
    return text.removesuffix("\n").removesuffix("\r")


def _utf8_hint(raw: bytes) -> str:
    """Return how to make UTF-8 of a text; old Korean files are told by reading as nothing else."""
    with contextlib.suppress(UnicodeDecodeError):
        letters = [char for char in raw.decode("cp949") if not char.isascii()]
        if letters and all("\uac00" <= char <= "\ud7a3" for char in letters):
            return "this may be EUC-KR: `iconv -f CP949 -t UTF-8 FILE` makes UTF-8 of it"
    encoding = "UTF-16" if raw.startswith(_UTF16_BOMS) else "ENCODING"
    return f"save the text as UTF-8; `iconv -f {encoding} -t UTF-8 FILE` does so"


def read_text(path: Path) -> str:
    """Read a text file; `-` reads stdin.

    Raises:
        UsageError: it is too large or not UTF-8.
        OSError: it cannot be read.
    """
    if str(path) == STDIN_NAME:
        return _read_stdin(sys.stdin)
    with path.open("rb") as file:
        return decode_text(_read_capped(file), str(path))


def read_tools(path: Path) -> Tools:
    """Read a JSON file with a list of tools, each an object.

    Raises:
        UsageError: it is none, or a key stands twice in an object; says where.
        OSError: it cannot be read.
    """
    try:
        value = json.loads(read_text(path), object_pairs_hook=_object)
    except json.JSONDecodeError as err:
        raise UsageError(
            f"{path}: not JSON at line {err.lineno}, column {err.colno} ({err.msg})",
            hint='give a list of tools: [{"type": "function", "function": {...}}]',
        ) from err
    except (ValueError, RecursionError) as err:
        raise UsageError(f"{path}: {err}") from err
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        raise UsageError(
            f"{path}: no list of objects",
            hint='give a list of tools: [{"type": "function", "function": {...}}]',
        )
    return tuple(value)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; of a key that stands twice nobody can say which is meant."""
    value: dict[str, Any] = {}
    for key, item in pairs:
        if key in value:
            raise ValueError(f"the key {key!r} stands twice in one object")
        value[key] = item
    return value


def one_prompt(
    argument: str | None, flag: str | None, file: Path | None, *, stdin: TextIO | None = None
) -> str | None:
    """Return the prompt, or None when there is none and stdin is a terminal.

    Stdin is read only when nothing else names a prompt: a command in a `while read` loop must not
    eat the loop's input.

    Raises:
        UsageError: two sources are given, or the prompt is empty or not text.
        OSError: the file cannot be read.
    """
    given = {"PROMPT": argument, "--prompt": flag, "--prompt-file": file}
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise UsageError(f"two prompts: {named[0]} and {named[1]}", hint="give one of them")
    stdin = sys.stdin if stdin is None else stdin
    if file is not None:
        text, name = read_text(file), f"--prompt-file {file}"
    elif named:
        text, name = next(value for value in (argument, flag) if value is not None), named[0]
    elif stdin is None or stdin.isatty():
        return None
    else:
        text, name = _read_stdin(stdin), "stdin"
    if not text.strip():
        raise UsageError(f"the prompt from {name} is empty", hint="give some text to answer")
    return whole_text(text, name)


def whole_text(text: str, name: str) -> str:
    """Return an argument of the command line unless it held bytes that were not UTF-8.

    Raises:
        UsageError: it did; says where.
    """
    with contextlib.suppress(UnicodeError):  # where the locale is ASCII, UTF-8 is left undecoded
        text = text.encode("utf-8", "surrogateescape").decode("utf-8")
    for place, character in enumerate(text):
        if "\ud800" <= character <= "\udfff":
            raise UsageError(f"{name}: not UTF-8 at character {place}")
    return text


def one_of(values: Mapping[str, object]) -> None:
    """Check that at most one of some flags was given.

    Raises:
        UsageError: two were; names them.
    """
    named = [name for name, value in values.items() if value is not None]
    if len(named) > 1:
        raise UsageError(f"{named[0]} and {named[1]} exclude each other", hint="give one of them")


def _read_stdin(stdin: TextIO | None) -> str:
    if stdin is None:
        raise UsageError("stdin is closed", hint="give a prompt as an argument")
    return decode_text(_read_capped(stdin.buffer), "stdin")


def _read_capped(file: BinaryIO) -> bytes:
    return file.read(MAX_TEXT_BYTES + 1)
