"""Safetensors headers, read bounded: every byte of the file belongs to exactly one tensor.

Layout: u64 little-endian header length | header, a JSON object | data. The header maps each tensor
name to its dtype, shape and [begin, end) inside the data, and `__metadata__` to strings.
Source of the format: README of the safetensors library.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from edgellm.errors import ModelCorrupt
from edgellm.fileio import open_regular, read_exactly
from edgellm.formats.checked_json import parse_object, unreadable
from edgellm.formats.sniff import FILE_LINK_HINT

if TYPE_CHECKING:
    from pathlib import Path

MAX_HEADER_BYTES: Final = 100 << 20  # the limit of the library that defined the format
_LENGTH_BYTES: Final = 8
_MAX_DIMS: Final = 8
_AGAIN: Final = "download it again"
_PULL: Final = "run `git lfs pull`"

DTYPE_BITS: Final = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where one tensor lies: `offset` counts from the start of the file; row-major, little endian."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    """A checked header; `tensors` in the order of their bytes."""

    path: Path
    tensors: tuple[TensorEntry, ...]
    file_bytes: int


def read_header(path: Path) -> SafetensorsHeader:
    """Read and check a safetensors header; no tensor data is read.

    Args:
        path: the file, or a link to it.

    Raises:
        ModelNotFound, ModelUnsupported: there is no such regular file, or it may not be read.
        ModelCorrupt: the header is not one, or it and the size of the file contradict each other.
    """
    try:
        with open_regular(path, follow=True) as (file, status):
            size = status.st_size
            head = bytearray(min(size, _LENGTH_BYTES))
            read_exactly(file, head)
            length = _header_length(head, size, path)
            text = bytearray(length)
            read_exactly(file, text)
    except EOFError as err:
        raise ModelCorrupt(
            f"the file shrank while it was read: {err}", path=path, hint=_AGAIN
        ) from err
    except OSError as err:
        raise unreadable(err, path) from err
    table = parse_object(bytes(text), path)
    data_start = _LENGTH_BYTES + length
    entries = [
        _entry(name, value, data_start, path)
        for name, value in table.items()
        if name != "__metadata__"
    ]
    entries.sort(key=lambda entry: (entry.offset, entry.n_bytes))
    _check_cover(entries, data_start, size, path)
    return SafetensorsHeader(path, tuple(entries), size)


def _header_length(head: bytearray, size: int, path: Path) -> int:
    if size < _LENGTH_BYTES:
        raise ModelCorrupt(
            f"{size} bytes are too few for a safetensors file", path=path, hint=_AGAIN
        )
    length = int.from_bytes(head, "little")
    if length > MAX_HEADER_BYTES:
        # As text, the first eight bytes of another kind of file are a huge number.
        if head == b"version ":
            raise ModelCorrupt("a Git LFS pointer, not the weights", path=path, hint=_PULL)
        if head.lstrip().startswith((b"<!", b"<h", b"<H", b"<?")):
            raise ModelCorrupt("a web page, not the weights", path=path, hint=FILE_LINK_HINT)
        raise ModelCorrupt(
            f"header of {length} bytes; at most {MAX_HEADER_BYTES}", path=path, hint=_AGAIN
        )
    if length > size - _LENGTH_BYTES:
        raise ModelCorrupt(
            f"the header needs {length + _LENGTH_BYTES} bytes, the file has {size}",
            path=path,
            hint=_AGAIN,
        )
    return length


def _entry(name: str, value: Any, data_start: int, path: Path) -> TensorEntry:
    where = f"tensor {name[:120]!r}"
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise ModelCorrupt(
            f"{where}: expected dtype, shape and data_offsets", path=path, hint=_AGAIN
        )
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise ModelCorrupt(f"{where}: unknown dtype {str(dtype)[:40]!r}", path=path, hint=_AGAIN)
    if not _counts(shape, _MAX_DIMS):
        raise ModelCorrupt(f"{where}: bad shape {str(shape)[:80]}", path=path, hint=_AGAIN)
    if not _counts(offsets, 2) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ModelCorrupt(f"{where}: bad data_offsets {str(offsets)[:80]}", path=path, hint=_AGAIN)
    begin, end = offsets
    n_bits = math.prod(shape) * DTYPE_BITS[dtype]
    if n_bits != 8 * (end - begin):
        raise ModelCorrupt(
            f"{where}: {dtype} {list(shape)} needs {-(-n_bits // 8)} bytes, {end - begin} are given",
            path=path,
            hint=_AGAIN,
        )
    return TensorEntry(name, dtype, tuple(shape), data_start + begin, end - begin)


def _counts(value: Any, most: int) -> bool:
    """Whether `value` is a list of at most `most` non-negative integers that fit in 63 bits."""
    return (
        isinstance(value, list)
        and len(value) <= most
        and all(type(item) is int and 0 <= item < 1 << 63 for item in value)
    )


def _check_cover(entries: list[TensorEntry], data_start: int, size: int, path: Path) -> None:
    end = data_start
    for entry in entries:
        if entry.offset != end:
            kind = (
                "overlaps the tensor before it" if entry.offset < end else "leaves a hole before it"
            )
            raise ModelCorrupt(f"tensor {entry.name[:120]!r} {kind}", path=path, hint=_AGAIN)
        end += entry.n_bytes
    if end > size:
        raise ModelCorrupt(
            f"{end - size} bytes are missing: {end} needed, {size} there", path=path, hint=_AGAIN
        )
    if end < size:
        raise ModelCorrupt(f"{size - end} bytes belong to no tensor", path=path, hint=_AGAIN)
