"""Writing a pack of snapshots, and reading one from somebody else.

Nothing of a pack is believed before its signature is found to be that of a trusted key, and nothing
is kept of which a length or a hash is another than the signed one.
"""

from __future__ import annotations

import contextlib
import hashlib
import stat
from typing import TYPE_CHECKING, Final

from edgellm.errors import PackRefused, SnapshotCorrupt, SnapshotError, UsageError
from edgellm.fileio import AtomicWriter, no_fault, open_regular, read_exactly
from edgellm.store.packs.pack_format import (
    HEAD_BYTES,
    MAGIC,
    Head,
    make_head,
    parse_manifest,
    split_start,
)
from edgellm.store.packs.signing import is_signed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path
    from typing import BinaryIO

    from edgellm.fileio import Fault
    from edgellm.store.disk.files import Files
    from edgellm.store.packs.pack_format import Manifest, PackedFile
    from edgellm.store.packs.signing import Signer

_CHUNK_BYTES: Final = 1 << 20
_AGAIN: Final = "fetch it again from whoever made it"


def digest_of(files: Files, path: Path) -> tuple[int, str]:
    """Return length and SHA-256 (64 hex digits) of a snapshot file, decrypted where it must be.

    Raises:
        SnapshotError, OSError, EOFError: it cannot be read.
    """
    digest = hashlib.sha256()
    n_bytes = 0
    for chunk in _chunks(files, path):
        digest.update(chunk)
        n_bytes += len(chunk)
    return n_bytes, digest.hexdigest()


def check_out(out: Path, *, overwrite: bool) -> None:
    """Refuse to write a pack over anything but another one; links are judged by what they lead to.

    Args:
        out: where a pack is to be written.
        overwrite: whether a pack, or an empty file, may be replaced.

    Raises:
        UsageError: its folder is not there, or something is there that stays.
    """
    if not out.parent.is_dir():
        raise UsageError("the folder does not exist", path=out.parent)
    other = "name another file"
    try:
        there = out.stat()
        if not stat.S_ISREG(there.st_mode):
            what = "a folder" if stat.S_ISDIR(there.st_mode) else "no regular file"
            raise UsageError(f"is there and is {what}", path=out, hint=other)
        with open_regular(out, follow=True) as (file, _):
            start = file.read(len(MAGIC))
    except FileNotFoundError:
        return
    except OSError as err:
        raise UsageError(f"cannot be written: {err.strerror or err}", path=out, hint=other) from err
    if start not in (b"", MAGIC):
        raise UsageError("is there already and is no pack", path=out, hint=other)
    if not overwrite:
        raise UsageError("is there already", path=out, hint=f"use --force, or {other}")


def write_pack(
    out: Path,
    manifest: Manifest,
    files: Files,
    paths: Sequence[Path],
    signer: Signer | None = None,
    *,
    fault: Fault = no_fault,
) -> int:
    """Write a pack, whole or not at all, and return its length in bytes.

    Args:
        out: where; a file there is replaced, see `check_out`.
        manifest: what is said of the files.
        files: of the store they lie in.
        paths: the files, in the manifest's order.
        signer: who vouches for it, or None.
        fault: called before each step that writes, for tests.

    Raises:
        ValueError: there are too many.
        SnapshotCorrupt: a file is no longer the one that the manifest was made from.
        DoesNotFit, OSError: it cannot be written.
    """
    head = make_head(manifest, signer)
    with AtomicWriter(out, fault=fault) as writer:
        writer.write(head.encode())
        for file, path in zip(manifest.files, paths, strict=True):
            digest = hashlib.sha256()
            for chunk in _chunks(files, path):
                digest.update(chunk)
                writer.write(chunk)
            # The manifest is signed and written by now; another process may have saved meanwhile.
            if digest.hexdigest() != file.sha256:
                raise SnapshotCorrupt("it changed while it was exported", path=path)
    return writer.n_bytes


class OpenPack:
    """A pack that a trusted key vouches for, or that the user takes without one.

    Attributes:
        manifest: what is in it.
        public: who signed it, 32 bytes, or b"".
        id: 32 hex digits that name its content.
    """

    def __init__(self, file: BinaryIO, head: Head, manifest: Manifest) -> None:
        self.manifest = manifest
        self.public = head.public
        self.id = hashlib.sha256(head.manifest).hexdigest()[:32]
        self._file = file

    def copy(self, file: PackedFile, write: Callable[[memoryview], object]) -> None:
        """Hand out the next file of the pack; they are read in the manifest's order.

        What was written is worth nothing if this raises.

        Raises:
            SnapshotCorrupt: its hash is not the one in the manifest.
            EOFError: the pack became shorter.
        """
        digest = hashlib.sha256()
        buffer = memoryview(bytearray(min(_CHUNK_BYTES, file.n_bytes)))
        left = file.n_bytes
        while left:
            piece = buffer[: min(left, len(buffer))]
            read_exactly(self._file, piece)
            digest.update(piece)
            write(piece)
            left -= len(piece)
        if digest.hexdigest() != file.sha256:
            raise SnapshotCorrupt(f"snapshot {file.key}: its SHA-256 is not the signed one")


@contextlib.contextmanager
def open_pack(
    path: Path, trusted: Collection[bytes], *, allow_unsigned: bool = False
) -> Iterator[OpenPack]:
    """Open a pack and check who vouches for it, before anything it says is believed.

    Args:
        path: the pack.
        trusted: public keys, 32 bytes each.
        allow_unsigned: take also what nobody signed, or somebody unknown.

    Raises:
        PackRefused: it is damaged, or nobody trusted signed it; also for what the block raises.
        MissingExtra: it is signed, and `cryptography` is not installed.
        OSError: it cannot be read.
    """
    try:
        with open_regular(path, follow=True) as (file, status):
            head = _read_head(file, status.st_size)
            # Before the JSON is parsed: only who is trusted gets to speak to the parser.
            _check_trust(head, trusted, allow_unsigned=allow_unsigned)
            manifest = parse_manifest(head.manifest)
            expected = len(head.encode()) + sum(entry.n_bytes for entry in manifest.files)
            if status.st_size != expected:
                raise SnapshotCorrupt(
                    f"the manifest says {expected} bytes, the pack has {status.st_size}"
                )
            yield OpenPack(file, head, manifest)
    except PackRefused as err:
        err.path = str(path)
        raise
    except SnapshotError as err:
        raise PackRefused(err.message, path=path, hint=err.hint or _AGAIN) from err
    except EOFError as err:
        raise PackRefused(f"the pack ends early, {err}", path=path, hint=_AGAIN) from err


def _read_head(file: BinaryIO, pack_bytes: int) -> Head:
    start = bytearray(HEAD_BYTES)
    read_exactly(file, start)
    manifest_bytes, public, signature = split_start(bytes(start), pack_bytes)
    manifest = bytearray(manifest_bytes)
    read_exactly(file, manifest)
    return Head(public, signature, bytes(manifest))


def _check_trust(head: Head, trusted: Collection[bytes], *, allow_unsigned: bool) -> None:
    # Also where unsigned packs are allowed: this one says of itself that it was changed.
    if head.public and not is_signed(head.public, head.signature, head.message()):
        raise PackRefused(
            "the signature is wrong: it was changed after it was signed, or is a forgery",
            hint=_AGAIN,
        )
    if head.public in trusted or allow_unsigned:
        return
    if not head.public:
        raise PackRefused(
            "nobody signed it", hint="have it signed, or give --allow-unsigned if you made it"
        )
    raise PackRefused(
        f"it is signed by {head.public.hex()[:16]}..., who is not trusted here",
        hint="give --trust FILE with the public key of whoever made it",
    )


def _chunks(files: Files, path: Path) -> Iterator[memoryview]:
    """Give a snapshot file's plain bytes; each piece is good until the next is asked for."""
    with files.opened(path) as file:
        left = file.n_bytes
        buffer = memoryview(bytearray(min(_CHUNK_BYTES, left)))
        while left:
            piece = buffer[: min(left, len(buffer))]
            file.fill(piece)
            yield piece
            left -= len(piece)
