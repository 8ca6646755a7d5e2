"""Builders for snapshot tests: states of every kind, and files that are wrong in one place.

Loaded by the `conftest.py` of each folder that needs it.
"""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from edgellm.store.format import layout
from edgellm.store.format.codec import pack_state
from edgellm.store.format.parse import parse_header
from edgellm.store.state import Fingerprint, KVState, PackedState, Part, Section

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

    from edgellm.core import Tier

FINGERPRINT = Fingerprint(
    hard=(("arch", "llama"), ("kv_type", "f16"), ("model", "ab" * 32)),
    soft=(("threads", "2"),),
)
ROW_BYTES = {"q8_0": 34, "q4_0": 18}


def rows(seed: int, n: int, width: int, kind: str) -> np.ndarray:
    """Return random bits in the shape of `n` rows of `width` elements of that type."""
    rng = np.random.default_rng(seed)
    if kind in ROW_BYTES:
        return rng.integers(0, 256, (n, width // 32 * ROW_BYTES[kind]), np.uint8)
    dtype = np.uint32 if kind == "f32" else np.uint16
    return rng.integers(0, np.iinfo(dtype).max, (n, width), dtype, endpoint=True)


def layers(n_layers: int, n: int, width: int, kind: str, seed: int) -> tuple[Section, ...]:
    """Return K in token order and V as the transposed view of a channel-major array."""
    keys, values = [], []
    for layer in range(n_layers):
        keys.append(Section(layer, "K", kind, rows(seed + layer, n, width, kind)))
        value = rows(seed - layer - 1 if seed > layer else seed + 99, n, width, kind)
        if kind not in ROW_BYTES:
            value = np.ascontiguousarray(value.T).T
        values.append(Section(layer, "V", kind, value))
    return (*keys, *values)


def state(n: int = 12, kind: str = "f16", seed: int = 7) -> KVState:
    """Return a dense, a window and an opaque part over `n` tokens."""
    blob = np.random.default_rng(seed).integers(0, 256, (1, 77), np.uint8)
    window = min(n, 5)
    return KVState(
        n,
        (
            Part("dense", 0, n, layers(2, n, 32, kind, seed)),
            Part("window", n - window, window, layers(1, window, 64, kind, seed + 50)),
            Part("opaque", 0, n, (Section(0, "blob", "u8", blob),)),
        ),
    )


def hybrid(n: int = 12, seed: int = 7) -> KVState:
    """Return every kind of memory there is: full with an extra, window, recurrent, opaque."""
    rng = np.random.default_rng(seed)
    extra = Section(0, "X", "u8", rng.integers(0, 256, (n, 24), np.uint8))
    plain = state(n, seed=seed).parts
    rs = tuple(
        Section(layer, role, "f32", rows(seed + layer, 1, width, "f32"))
        for role, width in (("R", 48), ("S", 96))
        for layer in range(2)
    )
    dense = replace(plain[0], sections=(*plain[0].sections, extra))
    return KVState(n, (dense, plain[1], Part("recurrent", n - 1, 1, rs), plain[2]))


def grown(short: KVState, n: int, seed: int) -> KVState:
    """Return a state of `n` tokens whose full memories begin with the rows of a shorter one."""
    parts = []
    for before, part in zip(short.parts, hybrid(n, seed).parts, strict=True):
        sections = part.sections
        if part.kind == "dense":
            sections = tuple(
                replace(s, rows=np.concatenate((b.rows, s.rows[short.n_tokens :])))
                for b, s in zip(before.sections, part.sections, strict=True)
            )
        parts.append(replace(part, sections=sections))
    return KVState(n, tuple(parts))


def smooth(n: int = 12, kind: str = "f16", seed: int = 7) -> KVState:
    """Return keys and values that look like those of a model: their high bytes repeat."""
    rng = np.random.default_rng(seed)
    numbers = rng.normal(size=(2, n, 256)).astype(np.float32)
    if kind == "f16":
        keys, values = numbers.astype(np.float16).view(np.uint16)
    elif kind == "bf16":
        keys, values = (numbers.view(np.uint32) >> 16).astype(np.uint16)
    else:
        keys, values = numbers.view(np.uint32)
    sections = (
        Section(0, "K", kind, keys),
        Section(0, "V", kind, np.ascontiguousarray(values.T).T),
    )
    return KVState(n, (Part("dense", 0, n, sections),))


def finite(state: KVState) -> KVState:
    """Return the state with every f16 made a number between -2 and 2, so that it can be packed."""
    parts = []
    for part in state.parts:
        sections = tuple(
            replace(s, rows=s.rows & np.uint16(0xBFFF)) if s.type == "f16" else s
            for s in part.sections
        )
        parts.append(replace(part, sections=sections))
    return KVState(state.n_tokens, tuple(parts))


def packed(tier: Tier, n: int = 12, seed: int = 7) -> PackedState:
    """Return what `state` becomes in a tier: q4 packs each f16 section, finer ones the wide ones."""
    kept = pack_state(finite(state(n, seed=seed)), tier)
    assert isinstance(kept, PackedState)
    return kept


def same(left: KVState, right: KVState) -> bool:
    """Return whether two states hold the same bits in the same places."""
    return left.n_tokens == right.n_tokens and [
        (part.kind, part.first, part.n_tokens, s.layer, s.role, s.type, s.rows.tolist())
        for part in left.parts
        for s in part.sections
    ] == [
        (part.kind, part.first, part.n_tokens, s.layer, s.role, s.type, s.rows.tolist())
        for part in right.parts
        for s in part.sections
    ]


def split(content: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the header's JSON and the runs after it, with their padding."""
    _, n = layout.PREAMBLE.unpack_from(content)
    header = json.loads(content[layout.PREAMBLE.size : layout.PREAMBLE.size + n])
    return header, content[layout.data_start(n) : -layout.FOOTER.size]


def join(header: dict[str, Any] | bytes, data: bytes, *, n_bytes: int | None = None) -> bytes:
    """Return a file of this header and data whose own checksums are all right."""
    if isinstance(header, dict):
        header = json.dumps(header, separators=(",", ":")).encode()
    head = layout.PREAMBLE.pack(layout.MAGIC, len(header)) + header
    digest = xxhash.xxh3_128_digest(head)
    front = (head + digest).ljust(layout.data_start(len(header)), b"\0")
    total = len(front) + len(data) + layout.FOOTER.size
    footer = layout.FOOTER.pack(layout.END_MAGIC, n_bytes or total, digest)
    return front + data + footer


def forge(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the header of a snapshot as somebody would who can compute checksums."""
    header, data = split(path.read_bytes())
    changed = change(header)
    path.write_bytes(join(header if changed is None else changed, data))


def extents(content: bytes) -> list[tuple[int, int]]:
    """Return offset in the file and length of every run: tokens, then sections."""
    header, _ = split(content)
    start = layout.data_start(struct.unpack_from("<I", content, 8)[0])
    parsed = parse_header(json.dumps(header, separators=(",", ":")).encode())
    return [(start + e.offset, e.n_bytes) for e in parsed.extents()]


def mutate(content: bytes, rng: random.Random) -> bytes:
    """Return the content with one random flip, cut, extension, swap or overwriting."""
    damaged = bytearray(content)
    how = rng.choice(("bit", "byte", "cut", "cut_front", "extend", "swap", "zero", "repeat"))
    at = rng.randrange(len(content))
    length = rng.randrange(1, 200)
    if how == "bit":
        damaged[at] ^= 1 << rng.randrange(8)
    elif how == "byte":
        damaged[at] = rng.randrange(256)
    elif how == "cut":
        del damaged[at:]
    elif how == "cut_front":
        del damaged[: at + 1]
    elif how == "extend":
        damaged += rng.randbytes(length)
    elif how == "swap":
        other = rng.randrange(len(content))
        damaged[at : at + length], damaged[other : other + length] = (
            damaged[other : other + length],
            damaged[at : at + length],
        )
    elif how == "zero":
        damaged[at : at + length] = bytes(len(damaged[at : at + length]))
    else:
        damaged[at:at] = damaged[at : at + length]
    return bytes(damaged)
