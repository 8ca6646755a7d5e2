"""The bytes of a pack: snapshots of one model on their way to another machine.

Layout (little endian): magic 8s | manifest length u32 | public key 32s | signature 64s | manifest JSON
| the .ekv files, one behind the other, in the manifest's order, and nothing else.

The signature (Ed25519) is over `SIGNED` and everything up to the end of the manifest but itself; the
manifest has the SHA-256 of every file, so it is over all. Without one, key and signature are zeros.
A pack holds no path: a file's place follows from what it says, and is compared with its key.
"""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from edgellm.errors import SnapshotCorrupt, SnapshotIncompatible
from edgellm.store.format.fields import TEXT, Fields
from edgellm.store.packs.probe import read_probe
from edgellm.store.packs.signing import PUBLIC_BYTES, SIGNATURE_BYTES
from edgellm.store.state import Fingerprint

if TYPE_CHECKING:
    from edgellm.store.packs.probe import Probe
    from edgellm.store.packs.signing import Signer

MAGIC: Final = b"EDGEPK1\0"
SIGNED: Final = b"edgellm snapshot pack 1\0"
FORMAT: Final = 1
START: Final = struct.Struct("<8sI")
HEAD_BYTES: Final = START.size + PUBLIC_BYTES + SIGNATURE_BYTES
MAX_MANIFEST_BYTES: Final = 1 << 20
MAX_FILES: Final = 256
_HEX: Final = re.compile(r"[0-9a-f]*")
_HEX32: Final = re.compile(r"[0-9a-f]{32}")
_HEX64: Final = re.compile(r"[0-9a-f]{64}")
_NO_KEY: Final = bytes(PUBLIC_BYTES)
_NO_SIGNATURE: Final = bytes(SIGNATURE_BYTES)


@dataclass(frozen=True, slots=True)
class PackedFile:
    """One snapshot in a pack.

    Attributes:
        key: its name in a store without a key of its own.
        n_tokens: length of its prefix.
        n_bytes: length of the .ekv file.
        sha256: 64 hex digits over the file.
        parent: key of the snapshot it leans on, which stands before it in the pack; or "".
        probe: what the engine said after it.
    """

    key: str
    n_tokens: int
    n_bytes: int
    sha256: str
    parent: str
    probe: Probe

    def to_json(self) -> dict[str, Any]:
        """Return the fields in file order."""
        return {
            "key": self.key,
            "n_tokens": self.n_tokens,
            "n_bytes": self.n_bytes,
            "sha256": self.sha256,
            "parent": self.parent,
            "probe": self.probe.to_json(),
        }


@dataclass(frozen=True, slots=True)
class Manifest:
    """What is in a pack.

    Attributes:
        hard: fields of the fingerprint that all its snapshots have.
        created_s: when it was made, Unix seconds.
        files: its snapshots, those that others lean on first.
    """

    hard: tuple[tuple[str, str], ...]
    created_s: int
    files: tuple[PackedFile, ...]

    @property
    def digest(self) -> str:
        """Return the fingerprint's digest."""
        return Fingerprint(self.hard).digest()

    def field(self, name: str) -> str:
        """Return one field of the fingerprint, or ""."""
        return dict(self.hard).get(name, "")

    def file(self, key: str) -> PackedFile | None:
        """Return what is said of one snapshot."""
        return next((file for file in self.files if file.key == key), None)

    def encode(self) -> bytes:
        """Return the canonical JSON form, ASCII."""
        values = {
            "format": FORMAT,
            "fingerprint": self.digest,
            "hard": [[*pair] for pair in self.hard],
            "created": self.created_s,
            "files": [file.to_json() for file in self.files],
        }
        return json.dumps(values, separators=(",", ":"), ensure_ascii=True).encode("ascii")


def parse_manifest(raw: bytes) -> Manifest:
    """Read the canonical JSON form.

    Raises:
        SnapshotIncompatible: it is of a later version.
        SnapshotCorrupt: a value is missing, of the wrong type, spelled another way, or contradicts
            another one.
    """
    try:
        values = Fields("the manifest", json.loads(raw.decode("ascii")))
        manifest = _manifest(values)
        same = manifest.encode() == raw
    except (ValueError, RecursionError) as err:
        raise SnapshotCorrupt(f"the manifest is not JSON ({type(err).__name__})") from err
    if not same:
        raise SnapshotCorrupt("the manifest is not in canonical form")
    return manifest


def _manifest(values: Fields) -> Manifest:
    if (found := values.number("format")) != FORMAT:
        raise SnapshotIncompatible(f"a pack of format {found}, this version reads {FORMAT}")
    digest = values.text("fingerprint", _HEX64)
    hard = values.pairs("hard")
    created_s = values.number("created")
    items = values.items("files")
    values.finish()
    if not 1 <= len(items) <= MAX_FILES:
        raise SnapshotCorrupt(f"{len(items)} snapshots in a pack, 1 to {MAX_FILES} are allowed")
    manifest = Manifest(hard, created_s, tuple(_file(Fields("a file", item)) for item in items))
    # A digest is over sorted pairs: in another order the same manifest would have a second id.
    if manifest.digest != digest or hard != tuple(sorted(hard)):
        raise SnapshotCorrupt("the fingerprint is not that of its own fields")
    seen: set[str] = set()
    for file in manifest.files:
        if file.key in seen:
            raise SnapshotCorrupt(f"snapshot {file.key} is in the pack twice")
        if file.parent and file.parent not in seen:
            raise SnapshotCorrupt(f"snapshot {file.key} leans on one that is not before it")
        seen.add(file.key)
    return manifest


def _file(values: Fields) -> PackedFile:
    file = PackedFile(
        key=values.text("key", _HEX32),
        n_tokens=values.number("n_tokens", low=1),
        n_bytes=values.number("n_bytes", low=1),
        sha256=values.text("sha256", _HEX64),
        parent=values.text("parent", TEXT),
        probe=read_probe(values.fields("probe"), _HEX),
    )
    values.finish()
    return file


@dataclass(frozen=True, slots=True)
class Head:
    """What stands before the files.

    Attributes:
        public: of who signed it, or b"".
        signature: Ed25519, or b"".
        manifest: its bytes, which nobody has believed yet.
    """

    public: bytes
    signature: bytes
    manifest: bytes

    def message(self) -> bytes:
        """Return what is signed."""
        start = START.pack(MAGIC, len(self.manifest))
        return SIGNED + start + (self.public or _NO_KEY) + self.manifest

    def encode(self) -> bytes:
        """Return the bytes."""
        keys = (self.public or _NO_KEY) + (self.signature or _NO_SIGNATURE)
        return START.pack(MAGIC, len(self.manifest)) + keys + self.manifest


def make_head(manifest: Manifest, signer: Signer | None) -> Head:
    """Return the head of a pack, signed if there is a signer.

    Raises:
        ValueError: there is more to say than fits.
    """
    raw = manifest.encode()
    if len(raw) > MAX_MANIFEST_BYTES or len(manifest.files) > MAX_FILES:
        raise ValueError(f"{len(manifest.files)} snapshots are too many for a pack")
    if signer is None:
        return Head(b"", b"", raw)
    message = Head(signer.public, b"", raw).message()
    return Head(signer.public, signer.sign(message), raw)


def split_start(start: bytes, pack_bytes: int) -> tuple[int, bytes, bytes]:
    """Take the first `HEAD_BYTES` of a pack apart; return manifest length, key and signature.

    Raises:
        SnapshotCorrupt: this is no pack, or its length says otherwise.
    """
    magic, manifest_bytes = START.unpack_from(start)
    if magic != MAGIC:
        raise SnapshotCorrupt("not a pack of snapshots")
    if manifest_bytes > min(MAX_MANIFEST_BYTES, pack_bytes - HEAD_BYTES):
        raise SnapshotCorrupt(f"a manifest of {manifest_bytes} bytes in a pack of {pack_bytes}")
    public = start[START.size : START.size + PUBLIC_BYTES]
    signature = start[START.size + PUBLIC_BYTES : HEAD_BYTES]
    if (public == _NO_KEY) != (signature == _NO_SIGNATURE):
        raise SnapshotCorrupt("a key without a signature, or the other way round")
    if public == _NO_KEY:
        return manifest_bytes, b"", b""
    return manifest_bytes, public, signature
