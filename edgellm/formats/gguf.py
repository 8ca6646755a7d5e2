"""The header of a GGUF file: metadata and tensor table, read in one pass and believed in nothing.

Counts are bounded by what the file could hold, sizes are Python integers, and the tensors must
cover the data in order, as ggml demands. No weight is read.
Source: `docs/gguf.md` of the ggml project; limits and rules as in `gguf_init_from_reader`
(gguf.cpp), llama.cpp 0c1e57098.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from edgellm.errors import ModelCorrupt, ModelUnsupported
from edgellm.fileio import open_regular
from edgellm.formats.checked_json import not_there
from edgellm.formats.cursor import Cursor
from edgellm.formats.sniff import SNIFF_BYTES, describe
from edgellm.ggml_types import TYPES_BY_ID

if TYPE_CHECKING:
    from collections.abc import Mapping
    from os import PathLike

    from numpy.typing import NDArray

    from edgellm.formats.cursor import StringArray
    from edgellm.ggml_types import TensorType

Value: TypeAlias = "bool | int | float | str | NDArray[Any] | StringArray"

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
MAX_KEY_BYTES: Final = 65535
MAX_NAME_BYTES: Final = 63  # ggml keeps 64 with the closing zero
MAX_DIMS: Final = 4
MAX_PAIRS: Final = 1 << 16  # a model has some dozens
MAX_TENSORS: Final = 1 << 16  # the largest models have some thousands
DEFAULT_ALIGNMENT: Final = 32
_MAX_ALIGNMENT: Final = 1 << 20
_MIN_PAIR_BYTES: Final = 8 + 1 + 4 + 1  # key length, key, type, value
_MIN_TENSOR_BYTES: Final = 8 + 1 + 4 + 4 + 8  # name length, name, dims, type, offset
FLOAT32: Final = 6
_BOOL, _STRING, _ARRAY = 7, 8, 9
_NUMBERS: Final = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    FLOAT32: "<f4",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One row of the tensor table.

    Attributes:
        name: such as `blk.0.attn_q.weight`.
        shape: in GGUF's order, the fastest dimension first.
        type: how its numbers are stored.
        offset: of its first byte, from `GgufHeader.data_start`.
        n_bytes: how many bytes it takes.
    """

    name: str
    shape: tuple[int, ...]
    type: TensorType
    offset: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """All of a GGUF file but its weights.

    Attributes:
        path: the file, as it was named.
        version: 2 or 3.
        metadata: key to value; arrays of numbers are read-only numpy arrays, arrays of strings are
            `StringArray`; text that is no UTF-8 shows U+FFFD.
        kinds: key to the format's number of the value's type, such as `FLOAT32`.
        tensors: the table, in file order.
        data_start: offset of the first weight in the file.
        alignment: of every tensor, in bytes.
        header_bytes: length of everything before the padding that leads to `data_start`.
        file_bytes: length of the file when it was read.
    """

    path: str
    version: int
    metadata: Mapping[str, Value]
    kinds: Mapping[str, int]
    tensors: tuple[TensorInfo, ...]
    data_start: int
    alignment: int
    header_bytes: int
    file_bytes: int


def read_header(path: str | PathLike[str]) -> GgufHeader:
    """Read the header of a GGUF file; links are followed.

    Raises:
        ModelNotFound: there is no such file.
        ModelCorrupt: its numbers contradict each other or its size; says which and where.
        ModelUnsupported: it is whole, but of a version, byte order or kind that is not read here.
    """
    name = str(path)
    try:
        with open_regular(Path(path), follow=True) as (file, status):
            return _read(Cursor(file, status.st_size, name), name, status.st_size)
    except FileNotFoundError as err:
        raise not_there(Path(path)) from err
    except OSError as err:
        raise ModelUnsupported(
            f"cannot be read as a model file ({err.strerror or err})", path=name
        ) from err


def _read(cursor: Cursor, path: str, file_bytes: int) -> GgufHeader:
    version = _preamble(cursor, path, file_bytes)
    n_tensors, n_pairs = cursor.u64(), cursor.u64()
    # The smallest rows there can be, so that a count from the file never outgrows the file.
    if n_tensors * _MIN_TENSOR_BYTES + n_pairs * _MIN_PAIR_BYTES > cursor.left_bytes:
        raise cursor.corrupt(
            f"{n_tensors} tensors and {n_pairs} metadata keys cannot be in {file_bytes} bytes"
        )
    if n_tensors > MAX_TENSORS or n_pairs > MAX_PAIRS:  # each takes time and memory of Python's
        raise cursor.corrupt(
            f"{n_tensors} tensors and {n_pairs} metadata keys; "
            f"at most {MAX_TENSORS} and {MAX_PAIRS} are read"
        )
    metadata: dict[str, Value] = {}
    kinds: dict[str, int] = {}
    for i in range(n_pairs):
        cursor.where = f"metadata key {i}"
        key = _name(cursor, MAX_KEY_BYTES)
        if key in metadata:
            raise cursor.corrupt(f"{key!r} is there twice")
        cursor.where = f"metadata {key!r}"
        kinds[key] = cursor.u32()
        metadata[key] = _value(cursor, kinds[key])
    alignment = _alignment(cursor, metadata)
    tensors = _tensors(cursor, n_tensors, alignment)
    data_start = _padded(cursor.pos, alignment)
    if tensors:
        cursor.where = f"tensor {tensors[-1].name!r}"
        missing = data_start + tensors[-1].offset + tensors[-1].n_bytes - file_bytes
        if missing > 0:
            raise cursor.corrupt(f"{missing} bytes are missing at the end of the file")
    return GgufHeader(
        path=path,
        version=version,
        metadata=MappingProxyType(metadata),
        kinds=MappingProxyType(kinds),
        tensors=tensors,
        data_start=data_start,
        alignment=alignment,
        header_bytes=cursor.pos,
        file_bytes=file_bytes,
    )


def _preamble(cursor: Cursor, path: str, file_bytes: int) -> int:
    head = cursor.take(min(file_bytes, SNIFF_BYTES))
    if head[:4] != MAGIC:
        what, then = describe(head)
        raise ModelCorrupt(f"not a GGUF file: {what}", path=path, hint=then)
    cursor.pos = 4
    version = cursor.u32()
    if version & 0xFFFF == 0:
        raise ModelUnsupported(
            "a big-endian GGUF file", path=path, hint="get the little-endian one"
        )
    if version not in VERSIONS:
        then = "convert the model again" if version < VERSIONS[0] else "upgrade edgellm"
        raise ModelUnsupported(
            f"GGUF version {version}; versions 2 and 3 are read here", path=path, hint=then
        )
    return version


def _name(cursor: Cursor, max_bytes: int) -> str:
    raw = cursor.string(max_bytes)
    if not raw:
        raise cursor.corrupt("an empty name")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as err:
        raise cursor.corrupt(f"the name {raw[:40]!r} is not UTF-8") from err


def _value(cursor: Cursor, kind: int) -> Value:
    if kind in _NUMBERS:
        number = cursor.numbers(_NUMBERS[kind], 1)[0]
        return float(number) if number.dtype.kind == "f" else int(number)
    if kind == _BOOL:
        return cursor.take(1) != b"\0"
    if kind == _STRING:
        return cursor.string(cursor.left_bytes).decode("utf-8", "replace")
    if kind == _ARRAY:
        return _array(cursor)
    raise cursor.corrupt(f"unknown value type {kind}")


def _array(cursor: Cursor) -> Value:
    kind, n = cursor.u32(), cursor.u64()
    if n > cursor.left_bytes:  # no element is shorter than a byte
        raise cursor.corrupt(f"an array of {n} values, {cursor.left_bytes} bytes are left")
    if kind in _NUMBERS:
        return cursor.numbers(_NUMBERS[kind], n)
    if kind == _BOOL:
        return cursor.numbers("<u1", n).astype(np.bool_)
    if kind == _STRING:
        return cursor.strings(n)
    raise cursor.corrupt(f"unknown array element type {kind}")


def _alignment(cursor: Cursor, metadata: Mapping[str, Value]) -> int:
    value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    cursor.where = "metadata 'general.alignment'"
    if not isinstance(value, int) or isinstance(value, bool):
        raise cursor.corrupt("must be a whole number")
    if not 0 < value <= _MAX_ALIGNMENT or value & (value - 1):
        raise cursor.corrupt(f"{value} is no power of two up to {_MAX_ALIGNMENT}")
    return value


def _tensors(cursor: Cursor, n_tensors: int, alignment: int) -> tuple[TensorInfo, ...]:
    tensors: dict[str, TensorInfo] = {}
    expected = 0
    for i in range(n_tensors):
        cursor.where = f"tensor {i}"
        tensor = _tensor(cursor)
        if tensor.name in tensors:
            raise cursor.corrupt("its name is there twice")
        if tensor.offset % alignment:
            raise cursor.corrupt(f"offset {tensor.offset} is no multiple of {alignment}")
        if tensor.offset != expected:
            fault = "overlaps the one before" if tensor.offset < expected else "leaves a gap"
            raise cursor.corrupt(f"offset {tensor.offset} {fault}, expected {expected}")
        expected = _padded(tensor.offset + tensor.n_bytes, alignment)
        tensors[tensor.name] = tensor
    return tuple(tensors.values())


def _tensor(cursor: Cursor) -> TensorInfo:
    name = _name(cursor, MAX_NAME_BYTES)
    cursor.where = f"tensor {name!r}"
    n_dims = cursor.u32()
    if n_dims > MAX_DIMS:
        raise cursor.corrupt(f"{n_dims} dimensions, at most {MAX_DIMS} are allowed")
    shape = struct.unpack(f"<{n_dims}Q", cursor.take(8 * n_dims))
    type_id, offset = cursor.u32(), cursor.u64()
    tensor_type = TYPES_BY_ID.get(type_id)
    if tensor_type is None:
        raise cursor.corrupt(f"unknown weight type {type_id}", "is there a newer edgellm?")
    if 0 in shape:
        raise cursor.corrupt(f"a dimension of {shape} is zero")
    width, rows = math.prod(shape[:1]), math.prod(shape[1:])
    try:
        n_bytes = tensor_type.row_bytes(width) * rows
    except ValueError as err:
        raise cursor.corrupt(f"{tensor_type.name}: {err}") from err
    return TensorInfo(name, shape, tensor_type, offset, n_bytes)


def _padded(n_bytes: int, alignment: int) -> int:
    return -(-n_bytes // alignment) * alignment
