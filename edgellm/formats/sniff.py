"""What a file that is not what it should be really is, told from its first bytes.

Only for error messages: nothing is decided by it.
"""

from __future__ import annotations

import re
from typing import Final

SNIFF_BYTES: Final = 512
"""How many leading bytes `describe` looks at."""

_HTML: Final = (b"<!doctype", b"<html", b"<head", b"<?xml")
_OLD_GGML: Final = (b"tjgg", b"fmgg", b"algg", b"lmgg", b"ggjt", b"ggmf", b"ggla", b"ggml")
_MAX_SHOWN_CHARS: Final = 60
_TAG: Final = re.compile(r"<[^>]*>?")
FILE_LINK_HINT: Final = "use the file's download link, .../resolve/main/FILE, not its page"
_CHECKPOINT_HINT: Final = "run `edgellm convert` on the folder it belongs to"


def describe(head: bytes) -> tuple[str, str]:
    """Return what the leading bytes look like and what to do about it.

    Args:
        head: the first `SNIFF_BYTES` of the file, or fewer if it is shorter.

    Returns:
        Two phrases for an error message: `it is ...` and the next step.
    """
    if not head:
        return "the file is empty", "download it again"
    if head.lstrip()[:9].lower().startswith(_HTML):
        return f"it is a web page, {_first_words(head)}", FILE_LINK_HINT
    if head.startswith(b"version https://git-lfs"):
        return "it is a Git LFS pointer", "run `git lfs pull` in that folder"
    if head[:4] in _OLD_GGML:
        return "it is an old GGML file from before GGUF", "get the model as GGUF"
    if head[:4] == b"PK\x03\x04":
        return "it is a zip archive (a PyTorch checkpoint?)", _CHECKPOINT_HINT
    if head[8:9] == b"{":
        return "it looks like safetensors", _CHECKPOINT_HINT
    if head[:2] == b"\x1f\x8b":
        return "it is compressed with gzip", "unpack it first"
    return f"it starts with {head[:4]!r}", "is it the right file?"


def _first_words(page: bytes) -> str:
    """Return what a page says at its head as quoted ASCII: a login, an error, a file's name."""
    text = page.decode("utf-8", "replace")
    words = " ".join(_TAG.sub(" ", text).split()) or " ".join(text.split())
    return ascii(words[:_MAX_SHOWN_CHARS])
