"""The metadata of a GGUF as the bytes that stand in the file, so that a copy keeps every type and text.

The header has been read and checked by `formats.gguf` before; here each value is only stepped over.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Final

from edgellm.errors import ModelCorrupt
from edgellm.fileio import open_regular, read_exactly
from edgellm.formats.cursor import Cursor

if TYPE_CHECKING:
    from edgellm.formats.gguf import GgufHeader

_PREAMBLE_BYTES: Final = 24
_STRING, _ARRAY = 8, 9
_NUMBER_BYTES: Final = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


def stored_values(header: GgufHeader) -> dict[str, bytes]:
    """Return each key's type and value as stored, in file order.

    Raises:
        ModelCorrupt: the file is no longer the one whose header was read.
    """
    raw = bytearray(header.header_bytes)
    try:
        with open_regular(Path(header.path), follow=True) as (file, _):
            read_exactly(file, raw)
    except (OSError, EOFError) as err:
        raise _changed(header) from err
    cursor = Cursor(io.BytesIO(raw), len(raw), header.path)
    cursor.take(_PREAMBLE_BYTES)
    made: dict[str, bytes] = {}
    for key in header.metadata:
        cursor.where = f"metadata {key!r}"
        if cursor.string(cursor.left_bytes) != key.encode():
            raise _changed(header)
        start = cursor.pos
        _step_over(cursor, cursor.u32())
        made[key] = bytes(raw[start : cursor.pos])
    return made


def _step_over(cursor: Cursor, kind: int) -> None:
    if kind == _STRING:
        cursor.string(cursor.left_bytes)
    elif kind == _ARRAY:
        kind, n = cursor.u32(), cursor.u64()
        if kind == _STRING:
            cursor.strings(n)
        else:
            cursor.take(n * _size(cursor, kind))
    else:
        cursor.take(_size(cursor, kind))


def _size(cursor: Cursor, kind: int) -> int:
    n_bytes = _NUMBER_BYTES.get(kind)
    if n_bytes is None:
        raise cursor.corrupt(f"unknown value type {kind}")
    return n_bytes


def _changed(header: GgufHeader) -> ModelCorrupt:
    return ModelCorrupt("the file changed during conversion", path=header.path)
