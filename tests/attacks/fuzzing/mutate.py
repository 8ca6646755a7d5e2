"""Changes that break a file where its format is weak: counts, lengths, types, names, nesting.

All are functions of bytes and a random generator, so that a seed gives the same file again.
"""

from __future__ import annotations

import contextlib
import copy
import json
import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    Mutation = Callable[[bytes, random.Random], bytes]

NUMBERS = (0, 1, 2, 4, 5, 31, 32, 33, 63, 64, 127, 128, 255, 256, 65535, 65536)
NUMBERS += (*(1 << n for n in range(20, 65, 4)), *((1 << n) - 1 for n in (31, 32, 53, 63, 64)))
VALUES: tuple[Any, ...] = (None, True, False, 0, -1, 1, 1.5, -0.0, 1e308, 1e-320, 1 << 31, 1 << 63)
VALUES += (1 << 64, 10**400, "", "0", "a", "\0", "\ud800", "\u2028", "../x", "a" * 300, "{{ x }}")
VALUES += ([], [[]], [1, "a", None], {}, {"": {}}, {"type": "Sequence"}, "NaN", 1 << 200)
_MAX_EDITS = 4
_DEEP = 1500


def edit_bytes(words: Sequence[bytes] = ()) -> Mutation:
    """Return a mutation that flips, cuts, repeats and puts in numbers and the format's words."""

    def mutate(data: bytes, rng: random.Random) -> bytes:
        made = bytearray(data or b"\0")
        for _ in range(rng.randint(1, _MAX_EDITS)):
            at = rng.randrange(len(made)) if made else 0
            end = at + rng.choice((1, 2, 4, 8, rng.randrange(1, 64)))
            how = rng.randrange(7)
            if how == 0 and made:
                made[at] ^= 1 << rng.randrange(8)
            elif how == 1:
                del made[at:end]
            elif how == 2:
                made[at:at] = made[at:end]
            elif how == 3:
                made[at:end] = rng.randbytes(end - at)
            elif how == 4:
                size = rng.choice((1, 2, 4, 8))
                number = rng.choice(NUMBERS) & ((1 << 8 * size) - 1)
                made[at : at + size] = number.to_bytes(size, "little")
            elif how == 5 and words:
                word = rng.choice(words)
                made[at : at + rng.choice((0, len(word)))] = word
            else:
                other = rng.randrange(len(made) + 1)
                made[at:at] = made[other : other + (end - at)]
        return bytes(made)

    return mutate


def edit_json(words: Sequence[str] = ()) -> Mutation:
    """Return a mutation of a JSON text: other values and keys, moved, removed, repeated, deep."""

    def mutate(data: bytes, rng: random.Random) -> bytes:
        try:
            root = [json.loads(data)]
        except (ValueError, RecursionError):
            return edit_bytes([word.encode() for word in words])(data, rng)
        for _ in range(rng.randint(1, _MAX_EDITS)):
            _edit_node(root, rng, words)
        try:
            text = json.dumps(root[0], ensure_ascii=bool(rng.randrange(2)), allow_nan=True)
        except (RecursionError, ValueError):
            return data
        made = text.encode("utf-8", "surrogatepass")
        if rng.randrange(8) == 0 and b'": ' in made:  # a key twice in one object
            cut = made.index(b'": ') + 1
            made = made.replace(made[1:cut], made[1:cut] + b": 1, " + made[1:cut], 1)
        if rng.randrange(40) == 0:
            made = made.replace(b"null", b"[" * _DEEP + b"]" * _DEEP, 1)
        return made

    return mutate


def _edit_node(root: list[Any], rng: random.Random, words: Sequence[str]) -> None:
    places = list(_places(root))
    holder, key = rng.choice(places)
    how = rng.randrange(6)
    if how == 0:
        holder[key] = copy.deepcopy(rng.choice(VALUES))
    elif how == 1 and words:
        holder[key] = rng.choice(words)
    elif how == 2 and holder is not root:
        del holder[key]
    elif how == 3:
        other, name = rng.choice(places)
        with contextlib.suppress(LookupError):
            holder[key] = copy.deepcopy(other[name])
    elif how == 4 and isinstance(holder, dict):
        new = rng.choice(words) if words else rng.choice("abc")
        holder[new] = holder.pop(key)
    elif isinstance(holder[key], (int, float)):
        holder[key] = rng.choice((holder[key] + 1, holder[key] - 1, -holder[key], *NUMBERS))
    else:
        holder[key] = rng.choice(([holder[key]], {"a": holder[key]}, str(holder[key])[:99]))


def _places(value: Any) -> Any:
    """Give every (container, key) of a JSON value, at most some thousands."""
    stack, n_left = [value], 4000
    while stack and n_left:
        holder = stack.pop()
        keys = holder if isinstance(holder, dict) else range(len(holder))
        for key in keys:
            n_left -= 1
            yield holder, key
            if isinstance(holder[key], (dict, list)):
                stack.append(holder[key])
            if n_left <= 0:
                return


def edit_safetensors(data: bytes, rng: random.Random) -> bytes:
    """Change the header of a safetensors file, with a length that is true again, mostly."""
    if len(data) < 8 or rng.randrange(4) == 0:
        return edit_bytes([b"F32", b"[0]", b"data_offsets"])(data, rng)
    length = min(int.from_bytes(data[:8], "little"), len(data) - 8)
    words = ("F32", "BF16", "F4", "I8", "dtype", "shape", "data_offsets", "__metadata__")
    text = edit_json(words)(data[8 : 8 + length], rng)
    lie = rng.choice(NUMBERS) if rng.randrange(8) == 0 else 0
    body = data[8 + length :] + bytes(rng.choice((0, 0, 0, 8)))
    return struct.pack("<Q", (len(text) + lie) % (1 << 64)) + text + body


def edit_gguf(data: bytes, rng: random.Random) -> bytes:
    """Change counts, lengths, types, shapes and offsets of a GGUF file where they stand."""
    fields = _gguf_fields(data)
    if not fields or rng.randrange(4) == 0:
        words = [b"general.", b"llama.block_count", b".ssm.", b"split.count", b"tokenizer.ggml."]
        return edit_bytes(words)(data, rng)
    made = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        offset, size = rng.choice(fields)
        old = int.from_bytes(made[offset : offset + size], "little")
        new = rng.choice((old + 1, old - 1, old * 2, rng.randrange(16), rng.choice(NUMBERS)))
        made[offset : offset + size] = (new % (1 << 8 * size)).to_bytes(size, "little")
    if rng.randrange(6) == 0:
        del made[rng.randrange(len(made)) :]
    return bytes(made)


_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


def _gguf_fields(data: bytes) -> list[tuple[int, int]]:
    """Give offset and size of every number in a GGUF header, as far as it can be followed."""
    walk = _Walk(data)
    with contextlib.suppress(EOFError, RecursionError):
        walk.number(4)
        n_tensors, n_pairs = walk.number(8), walk.number(8)
        for _ in range(min(n_pairs, 256)):
            walk.value(8)
            walk.value(walk.number(4))
        for _ in range(min(n_tensors, 256)):
            walk.value(8)
            for _ in range(min(walk.number(4), 8)):
                walk.number(8)
            walk.number(4)
            walk.number(8)
    return walk.fields


class _Walk:
    """A place in a GGUF header, and the numbers met on the way."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 4
        self.fields: list[tuple[int, int]] = []

    def number(self, size: int) -> int:
        end = self._at + size
        if end > len(self._data):
            raise EOFError
        self.fields.append((self._at, size))
        self._at = end
        return int.from_bytes(self._data[end - size : end], "little")

    def value(self, kind: int) -> None:
        if kind == 8:
            self._at += self.number(8)
        elif kind == 9:
            inner, n = self.number(4), self.number(8)
            for _ in range(min(n, 64)):
                self.value(inner)
        else:
            self.number(_SIZES.get(kind, 4))


def edit_checkpoint(words: Sequence[str]) -> Mutation:
    """Return a mutation of one file of a checkpoint, by its kind; the first byte names it."""
    as_json = edit_json(words)

    def mutate(data: bytes, rng: random.Random) -> bytes:
        name, content = data[:1] or b"\0", data[1:]
        if content[8:9] == b"{":
            return name + edit_safetensors(content, rng)
        if content.lstrip()[:1] in {b"{", b"["} and rng.randrange(8):
            return name + as_json(content, rng)
        return name + edit_bytes([b"license: ", b"---\n", b"{%"])(content, rng)

    return mutate
