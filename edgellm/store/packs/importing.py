"""Taking a pack in: verified to the last byte under another name, then put aside in one step.

Whatever stops it, a damaged pack, a full disk, a kill, leaves the store as it was.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from edgellm.core import Tier
from edgellm.errors import DoesNotFit, PackRefused, SnapshotCorrupt, SnapshotError
from edgellm.fileio import fsync_dir, private_dir, rename_over, temp_name
from edgellm.store.answers import Hit
from edgellm.store.disk import names
from edgellm.store.disk.folder import make_folder
from edgellm.store.file.read import read_tokens
from edgellm.store.finding import find
from edgellm.store.packs.imports import MANIFEST_NAME, MAX_PACKS, Imports, is_own_folder
from edgellm.store.packs.pack import open_pack

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from edgellm.store.disk.files import Files
    from edgellm.store.packs.pack import OpenPack
    from edgellm.store.packs.pack_format import Manifest, PackedFile

_INCOMING: Final = "incoming"
_COARSEST: Final = Tier.Q4


@dataclass(frozen=True, slots=True)
class Added:
    """What an import put aside.

    Attributes:
        id: name of its folder, 32 hex digits.
        manifest: what is in it.
        public: who signed it, 32 bytes, or b"".
        known: whether this very pack waits already.
    """

    id: str
    manifest: Manifest
    public: bytes
    known: bool


def add_pack(
    files: Files, pack: Path, trusted: Collection[bytes], *, allow_unsigned: bool = False
) -> Added:
    """Verify a pack completely and put it aside.

    Args:
        files: of the store.
        pack: the file.
        trusted: public keys, 32 bytes each.
        allow_unsigned: take also what nobody signed, or somebody unknown.

    Raises:
        PackRefused: it is damaged, or nobody trusted vouches for it; nothing is kept.
        DoesNotFit: there is no room for it.
        SnapshotError: the store's folder is not our own, or too many packs wait.
        MissingExtra, OSError: it cannot be checked, read or written.
    """
    imports = Imports(files)
    files.room.sweep()  # what a killed import left would take room from this one
    with open_pack(pack, trusted, allow_unsigned=allow_unsigned) as source:
        final = imports.root / source.id
        known = os.path.lexists(final)
        if not known:
            _refuse_leaning(source.manifest, is_encrypted=files.secret is not None)
            n_bytes = sum(files.outer_bytes(entry.n_bytes) for entry in source.manifest.files)
            with files.room.made(n_bytes) as refused:
                if refused is not None:
                    raise DoesNotFit(refused.reason, path=pack, need_bytes=n_bytes)
                _stage(imports, source, final)
        return Added(source.id, source.manifest, source.public, known)


def _refuse_leaning(manifest: Manifest, *, is_encrypted: bool) -> None:
    """Refuse files that name others by keys which mean nothing in a store with a key of its own."""
    if is_encrypted and any(entry.parent for entry in manifest.files):
        raise PackRefused(
            "it holds snapshots that lean on others, which an encrypted store names otherwise",
            hint="import it into a store without a key, or have whole snapshots exported",
        )


def _stage(imports: Imports, source: OpenPack, final: Path) -> None:
    """Write a pack under another name, verify it there, and let it appear."""
    private_dir(imports.root)
    if not is_own_folder(imports.root):
        raise SnapshotError("not a folder of our own", path=imports.root)
    if sum(1 for _ in imports.packs()) >= MAX_PACKS:
        raise SnapshotError(
            f"{MAX_PACKS} packs wait for their first use", hint="use them, or `snapshots rm --all`"
        )
    stage = temp_name(final)  # in the same folder, so that the last step is one rename
    files = imports.pack_files(stage)
    private_dir(stage)
    try:
        for entry in source.manifest.files:
            _receive(source, entry, files)
        with files.writer(stage / MANIFEST_NAME) as out:
            out.write(source.manifest.encode())
        files.fault("rename", str(final))
        rename_over(stage, final)
        fsync_dir(imports.root)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _receive(source: OpenPack, entry: PackedFile, files: Files) -> None:
    """Take one snapshot out of a pack and read it as its first user will."""
    incoming = files.root / _INCOMING
    with files.writer(incoming) as out:
        source.copy(entry, out.write)
    header, ids = read_tokens(incoming, open_file=files.opened)
    # Its place follows from what it says itself, and never from a name in the pack.
    digest = header.fingerprint.digest()
    key = names.key_of(digest, ids, cuts=header.cuts)
    if digest != source.manifest.digest or key != entry.key:
        raise SnapshotCorrupt(f"snapshot {entry.key} is not the one that the manifest names")
    path = files.path(digest, ids, header.cuts)
    make_folder(path.parent, files.fault)
    rename_over(incoming, path)
    found = find(files, header.fingerprint, ids, _COARSEST, cuts=header.cuts, keep_damaged=True)
    if not isinstance(found, Hit):
        raise SnapshotCorrupt(f"snapshot {entry.key}: {found.reason}")
    parent = "" if found.info.parent is None else found.info.parent.key
    if (found.info.n_tokens, parent) != (entry.n_tokens, entry.parent):
        raise SnapshotCorrupt(f"snapshot {entry.key} leans on another one than is said")
