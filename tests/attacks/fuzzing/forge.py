"""Snapshot files as somebody would make them who can compute checksums.

A random change of a snapshot ends at the first checksum. Here an input is a header and data, and the
checksums, the fingerprint and the canonical form are made right for them, so that what stands behind
those checks is met.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash
from fuzzing import mutate

if TYPE_CHECKING:
    import random

_ODD, _EVEN = b"\1", b"\0"
_END = b"\n"  # never inside a canonical header
_WORDS = (
    "K",
    "V",
    "blob",
    "dense",
    "window",
    "opaque",
    "f16",
    "f32",
    "q8_0",
    "q4_0",
    "u8",
    "R",
    "S",
    "X",
    "recurrent",
    "kinds-2",
    "delta-1",
    "planes-1",
    "planes",
    "exact",
)


def _files() -> Any:
    """Return the module of snapshot builders that stands beside this folder."""
    folder = str(Path(__file__).resolve().parents[1])
    if folder not in sys.path:
        sys.path.insert(0, folder)
    import snapshot_files

    return snapshot_files


def snapshot_inputs() -> list[bytes]:
    """Return whole snapshots, each as a file and as parts to be forged."""
    from edgellm.core import Tier
    from edgellm.store.snapshots import SnapshotStore

    files, found = _files(), []
    states = [files.state(n, kind) for kind, n in (("f16", 12), ("q8_0", 3), ("f32", 1))]
    states += [files.packed(tier) for tier in (Tier.Q8, Tier.Q6, Tier.Q5, Tier.Q4)]
    states += [files.hybrid(), files.smooth(4), files.smooth(2, "f32")]
    for state in states:
        with tempfile.TemporaryDirectory() as folder:
            store = SnapshotStore(Path(folder) / "store")
            saved = store.save(files.FINGERPRINT, list(range(state.n_tokens)), state, lossless=True)
            content = saved.path.read_bytes()
        header, data = files.split(content)
        found += [_EVEN + content, _ODD + _encode(header) + _END + data]
    return found


def with_checksums(parts: bytes) -> bytes:
    """Return a file of the header and data in `parts` whose checksums are all right."""
    head, _, data = parts.partition(_END)
    try:
        header = json.loads(head)
        if isinstance(header, dict):
            _mend(header, data)
        head = _encode(header)
    except (ValueError, RecursionError):
        pass
    return bytes(_files().join(head, data))


def _encode(header: Any) -> bytes:
    return json.dumps(header, separators=(",", ":"), ensure_ascii=True).encode("ascii")


def _mend(header: dict[str, Any], data: bytes) -> None:
    hard = header.get("hard")
    if isinstance(hard, list):
        text = json.dumps(hard, separators=(",", ":"), ensure_ascii=True)
        header["fingerprint"] = hashlib.sha256(text.encode()).hexdigest()
    rows = [header.get("tokens")]
    parts = header.get("parts")
    for part in parts if isinstance(parts, list) else []:
        sections = part.get("sections") if isinstance(part, dict) else None
        rows += sections if isinstance(sections, list) else []
    for row in rows:
        if isinstance(row, dict):
            offset, n_bytes = row.get("offset"), row.get("n_bytes")
            if type(offset) is int and type(n_bytes) is int and 0 <= offset <= len(data):
                row["xxh3"] = xxhash.xxh3_128_hexdigest(data[offset : offset + max(0, n_bytes)])


def edit_snapshot(data: bytes, rng: random.Random) -> bytes:
    """Change a snapshot's bytes, or its header and data behind checksums that stay right."""
    if data[:1] != _ODD:
        return _EVEN + _files().mutate(data[1:] or b"\0", rng)
    head, _, rest = data[1:].partition(_END)
    how = rng.randrange(3)
    if how != 0:
        head = mutate.edit_json(_WORDS)(head, rng).replace(_END, b"")
    if how != 1:
        rest = rest[: -rng.choice((1, 64))] if rng.randrange(2) else rest + bytes(64)
    return _ODD + head + _END + rest
