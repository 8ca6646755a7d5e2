"""A canary: words that nobody else says, put into a prompt and looked for wherever it must not be.

What sends or keeps a text may change its form on the way. Looked for are the words themselves in any case,
in hexadecimal, in base64 from each of the three places where a group can begin, URL-encoded, as UTF-16,
and all of these inside of what was packed by gzip, zlib or zstd.
"""

from __future__ import annotations

import base64
import re
import secrets
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote_to_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_PREFIX: Final = "CANARY "
_N_BYTES: Final = 8
_PACKED: Final = re.compile(rb"\x1f\x8b\x08|\x78[\x01\x5e\x9c\xda]|\x28\xb5\x2f\xfd")
_ZSTD: Final = 0x28
MAX_UNPACKED_BYTES: Final = 16 << 20
MAX_FILE_BYTES: Final = 256 << 20
"""What of one file is read: what prompts of this size leave behind is far smaller."""

_ANY_HEADER: Final = zlib.MAX_WBITS | 32  # of gzip or of zlib


@dataclass(frozen=True, slots=True)
class Canary:
    """One canary.

    Attributes:
        text: what is put into a prompt; it has a space, which an encoding for addresses changes.
    """

    text: str

    @classmethod
    def new(cls) -> Canary:
        """Return one that was never used."""
        return cls(_PREFIX + secrets.token_hex(_N_BYTES))

    def forms(self) -> dict[str, tuple[bytes, ...]]:
        """Return what is looked for, by the name of the form."""
        raw = self.text.encode()
        return {
            "raw": (raw, raw.replace(b" ", b"-"), raw.replace(b" ", b"_"), self._mark),
            "base64": tuple(_base64_core(raw, skip) for skip in range(3)),
            "url": (quote(self.text, safe="").encode(), self.text.replace(" ", "+").encode()),
            "hex": (raw.hex().encode(), raw.hex().upper().encode()),
            "utf-16": (self.text.encode("utf-16-le"), self.text.encode("utf-16-be")),
        }

    @property
    def _mark(self) -> bytes:
        """The part that is random: it alone says where something comes from."""
        return self.text.removeprefix(_PREFIX).encode()

    def hits(self, data: bytes) -> tuple[str, ...]:
        """Return in which forms the canary is in some bytes; nothing means that it is not there."""
        found = self._plain(data)
        for unpacked in _unpacked(data):
            found += [f"packed, {form}" for form in self._plain(unpacked)]
        return tuple(dict.fromkeys(found))

    def _plain(self, data: bytes) -> list[str]:
        lowered = data.lower()  # names of hosts, for one, have no case
        found = []
        for form, needles in self.forms().items():
            exact = form == "base64"
            if any((n in data) if exact else (n.lower() in lowered) for n in needles):
                found.append(form)
        # Every letter may be written as %XX, not only those that must be.
        if "url" not in found and b"%" in data and self._mark in unquote_to_bytes(data):
            found.append("url")
        return found

    def hits_below(self, folder: Path) -> tuple[str, ...]:
        """Return each file below a folder that has the canary, in it or in its name, and the forms."""
        found = []
        for path in sorted(folder.rglob("*")):
            forms = self.hits(bytes(str(path.relative_to(folder)), "utf-8", "surrogateescape"))
            if path.is_file() and not path.is_symlink():
                with path.open("rb") as file:
                    forms += self.hits(file.read(MAX_FILE_BYTES))
            if forms:
                found.append(f"{path.relative_to(folder)}: {', '.join(dict.fromkeys(forms))}")
        return tuple(found)


def _base64_core(raw: bytes, skip: int) -> bytes:
    """Return what of a text's base64 is the same whatever stands before and behind it.

    Args:
        raw: the text.
        skip: how many bytes of its first group come before it.
    """
    encoded = base64.b64encode(b"\0" * skip + raw)
    first = -(-skip * 8 // 6)  # letters that hold bits of what comes before
    whole_bits = (skip + len(raw)) * 8
    return encoded[first : whole_bits // 6]


def _unpacked(data: bytes) -> Iterator[bytes]:
    """Give what every gzip, zlib or zstd stream in some bytes holds, as far as it can be read."""
    import zstandard

    for start in _PACKED.finditer(data):
        packed = memoryview(data)[start.start() :]
        try:
            if packed[0] == _ZSTD:
                reader = zstandard.ZstdDecompressor().stream_reader(packed)
                yield reader.read(MAX_UNPACKED_BYTES)
            else:
                yield zlib.decompressobj(_ANY_HEADER).decompress(packed, MAX_UNPACKED_BYTES)
        except (zlib.error, zstandard.ZstdError):
            continue  # bytes that looked like the beginning of one
