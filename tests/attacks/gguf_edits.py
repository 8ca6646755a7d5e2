"""A whole GGUF taken apart, changed in one place, and put together again with sizes that agree."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from edgellm.ggml_types import TYPES_BY_NAME

if TYPE_CHECKING:
    from pathlib import Path

U32, I32, F32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
_FORMS = {0: "B", 1: "b", 2: "H", 3: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", 10: "Q", 11: "q"}
_FORMS[12] = "d"
_ALIGNMENT = 32


@dataclass(frozen=True)
class Tensor:
    """One tensor: `kind` is a name of `TYPES_BY_NAME`."""

    name: str
    shape: tuple[int, ...]
    kind: str
    data: bytes

    def of(self, kind: str) -> Tensor:
        """Return it as another type, its bytes repeated or cut to the length that needs."""
        row = TYPES_BY_NAME[kind]
        n_bytes = row.row_bytes(self.shape[0]) * math.prod(self.shape[1:])
        data = (self.data * (n_bytes // len(self.data) + 1))[:n_bytes]
        return replace(self, kind=kind, data=data)


@dataclass(frozen=True)
class Gguf:
    """A file's parts: key to (type, value), an array's value being (type, list)."""

    pairs: dict[str, tuple[int, Any]]
    tensors: tuple[Tensor, ...]

    def having(self, key: str, kind: int, value: Any) -> Gguf:
        """Return it with one key set."""
        return replace(self, pairs={**self.pairs, key: (kind, value)})

    def without(self, key: str) -> Gguf:
        """Return it with one key left out."""
        return replace(self, pairs={k: v for k, v in self.pairs.items() if k != key})

    def listing(self, key: str, change: Any) -> Gguf:
        """Return it with an array replaced by what `change` makes of its list."""
        _, (kind, values) = self.pairs[key]
        return self.having(key, ARRAY, (kind, change(list(values))))

    def with_tensor(self, name: str, change: Any) -> Gguf:
        """Return it with one tensor replaced by what `change` makes of it, None to drop it."""
        made = [change(t) if t.name == name else t for t in self.tensors]
        return replace(self, tensors=tuple(t for t in made if t is not None))

    def write(self, path: Path) -> Path:
        """Write it as a file."""
        out = bytearray(struct.pack("<4sIQQ", b"GGUF", 3, len(self.tensors), len(self.pairs)))
        for key, (kind, value) in self.pairs.items():
            out += _string(key.encode()) + struct.pack("<I", kind) + _value(kind, value)
        offset = 0
        for t in self.tensors:
            out += _string(t.name.encode()) + struct.pack(
                f"<I{len(t.shape)}Q", len(t.shape), *t.shape
            )
            out += struct.pack("<IQ", TYPES_BY_NAME[t.kind].id, offset)
            offset += -(-len(t.data) // _ALIGNMENT) * _ALIGNMENT
        for data in (b"", *(t.data for t in self.tensors)):
            out += data
            out += bytes(-len(out) % _ALIGNMENT)
        path.write_bytes(out)
        return path


def _string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def _value(kind: int, value: Any) -> bytes:
    if kind == STRING:
        return _string(value)
    if kind == ARRAY:
        element, values = value
        items = b"".join(_value(element, item) for item in values)
        return struct.pack("<IQ", element, len(values)) + items
    return struct.pack(f"<{_FORMS[kind]}", value)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 8

    def take(self, form: str) -> Any:
        found = struct.unpack_from(f"<{form}", self.data, self.at)
        self.at += struct.calcsize(f"<{form}")
        return found[0] if len(found) == 1 else found

    def string(self) -> bytes:
        n = self.take("Q")
        self.at += n
        return self.data[self.at - n : self.at]

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            element, n = self.take("IQ")
            return element, [self.value(element) for _ in range(n)]
        return self.take(_FORMS[kind])


def parse(path: Path) -> Gguf:
    """Take a good file apart."""
    reader = _Reader(path.read_bytes())
    n_tensors, n_pairs = reader.take("QQ")
    pairs = {}
    for _ in range(n_pairs):
        key = reader.string().decode()
        kind = reader.take("I")
        pairs[key] = (kind, reader.value(kind))
    names = {row.id: name for name, row in TYPES_BY_NAME.items()}
    rows = []
    for _ in range(n_tensors):
        name = reader.string().decode()
        shape = tuple(reader.take("Q") for _ in range(reader.take("I")))
        rows.append((name, shape, names[reader.take("I")], reader.take("Q")))
    start = -(-reader.at // _ALIGNMENT) * _ALIGNMENT
    tensors = []
    for name, shape, kind, offset in rows:
        n_bytes = TYPES_BY_NAME[kind].row_bytes(shape[0]) * math.prod(shape[1:])
        tensors.append(
            Tensor(name, shape, kind, reader.data[start + offset : start + offset + n_bytes])
        )
    return Gguf(pairs, tuple(tensors))
