"""Saving one state: written once, whole or not at all, and never a reason for an error."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

from edgellm.errors import DoesNotFit, SnapshotError
from edgellm.store.answers import ALREADY_STORED, Saved, Skipped
from edgellm.store.disk import names
from edgellm.store.disk.files import refuse_foreign_folders
from edgellm.store.disk.folder import make_folder
from edgellm.store.file.chain import base_path, misfit, open_chain
from edgellm.store.file.write import plan, tier_of, write_snapshot
from edgellm.store.finding import refuse_others
from edgellm.store.format import layout
from edgellm.store.format.codec import cut_state
from edgellm.store.format.header import PLANES
from edgellm.store.format.layout import MAX_LINKS
from edgellm.store.format.planes import plane_state
from edgellm.store.format.tiers import serves
from edgellm.store.state import Anchor, PackedState
from edgellm.store.texts import note_text

if TYPE_CHECKING:
    from pathlib import Path

    from edgellm.store.disk.files import Files
    from edgellm.store.format.header import SnapshotHeader
    from edgellm.store.state import Fingerprint, KVState, PlaneState

    Form = KVState | PackedState | PlaneState


@dataclass(frozen=True, slots=True)
class Saving:
    """One state that is to be saved.

    Attributes:
        fingerprint: of the engine that made it.
        ids: the prefix as little-endian int32.
        state: the memory after exactly these tokens, as its tier keeps it.
        created_s: the time to write down.
        base: what its file may lean on, or None.
        lossless: whether its high bytes are compressed.
        text_sha256: 64 hex digits, the hash of its text, or "" where it has none.
        cuts: all places strictly inside the prefix where it was cut, ascending.
    """

    fingerprint: Fingerprint
    ids: bytes
    state: KVState | PackedState
    created_s: int
    base: Anchor | None = None
    lossless: bool = False
    text_sha256: str = ""
    cuts: tuple[int, ...] = ()


def store_state(files: Files, job: Saving) -> Saved | Skipped:
    """Write a state unless it is there already; see `SnapshotStore.save`."""
    digest = job.fingerprint.digest()
    path = files.path(digest, job.ids, job.cuts)
    text = files.text(digest, job.text_sha256) if job.text_sha256 else ""
    outcome = _outcome(files, path, job)
    if text and outcome.is_stored:
        note_text(files, path, text)
    return outcome


def _outcome(files: Files, path: Path, job: Saving) -> Saved | Skipped:
    if not files.room.place.writable:
        return Skipped(files.room.place.trouble)  # of which whoever opened the store was told
    try:
        if (stored := _stored(files, path, job)) is not None:
            return Skipped(ALREADY_STORED, anchor=_anchor_of(path, *stored, job))
        return _written(files, path, job, *_planned(files, path, job))
    except (SnapshotError, DoesNotFit) as err:
        return Skipped(err.message, failed=True)
    except OSError as err:
        return Skipped(f"cannot write: {err.strerror or err} in {files.root}", failed=True)
    except MemoryError:
        return Skipped("not enough memory to write it", failed=True)


def _written(
    files: Files, path: Path, job: Saving, header: SnapshotHeader, form: Form
) -> Saved | Skipped:
    n_bytes = files.outer_bytes(layout.file_bytes(header, len(header.encode())))
    keep = () if header.parent is None else _chain(files, base_path(path, header.parent))
    with files.room.made(n_bytes, keep) as refused:
        if refused is not None:
            return refused
        begun = perf_counter()
        make_folder(path.parent, files.fault)
        n_bytes, identity = write_snapshot(files, path, header, job.ids, form)
        save_s = perf_counter() - begun
        files.room.used((path, *keep))
    return Saved(path, n_bytes, Anchor(path.stem, header.n_tokens, identity), save_s)


def _chain(files: Files, base: Path) -> tuple[Path, ...]:
    """Return where a base lies and what it leans on, which all must stay for a file on top."""
    try:
        with contextlib.ExitStack() as stack:
            return tuple(link.path for link in open_chain(stack, base, files.opened))
    except (SnapshotError, OSError):
        return (base,)


def _stored(files: Files, path: Path, job: Saving) -> tuple[SnapshotHeader, bytes] | None:
    """Return header and checksum of the file that makes the writing needless, or None."""
    try:
        refuse_foreign_folders(path)
        with contextlib.ExitStack() as stack:
            link = open_chain(stack, path, files.opened)[0]
        refuse_others(link.header, job.fingerprint.digest(), job.ids, job.cuts)
    except (SnapshotError, OSError):
        return None
    return (link.header, link.digest) if serves(link.header.tier, tier_of(job.state)) else None


def _anchor_of(path: Path, stored: SnapshotHeader, digest: bytes, job: Saving) -> Anchor | None:
    """Return what may be leant on, if the file there holds the very bits of this state.

    Another process may have read the same prompt with other threads, and so rounded otherwise.
    """
    if stored.parent not in (None, job.base):
        return None
    form = _form(job.state, stored.parent, lossless=PLANES in stored.features())
    if form is None:
        return None
    same = plan(job.fingerprint, job.ids, form, job.created_s, stored.parent).parts == stored.parts
    return Anchor(path.stem, stored.n_tokens, digest.hex()) if same else None


def _planned(files: Files, path: Path, job: Saving) -> tuple[SnapshotHeader, Form]:
    """Return the header to write and the arrays behind it: leaning on a base where that works."""
    base = _base_header(files, path, job)
    if base is not None and (form := _form(job.state, job.base, lossless=job.lossless)) is not None:
        header = plan(job.fingerprint, job.ids, form, job.created_s, job.base, job.cuts)
        if not misfit(base, header):
            return header, form
    form = _form(job.state, None, lossless=job.lossless)
    if form is None:
        raise SnapshotError("what it leans on is gone")
    return plan(job.fingerprint, job.ids, form, job.created_s, cuts=job.cuts), form


def _base_header(files: Files, path: Path, job: Saving) -> SnapshotHeader | None:
    """Return the header of the base if it is there, as it was, and not too deep a chain."""
    if job.base is None:
        return None
    prefix = job.ids[: job.base.n_tokens * names.TOKEN_BYTES]
    cuts = names.cuts_below(job.cuts, job.base.n_tokens)
    if job.base.key != files.key(job.fingerprint.digest(), prefix, cuts) or prefix == job.ids:
        return None
    try:
        with contextlib.ExitStack() as stack:
            links = open_chain(stack, base_path(path, job.base), files.opened)
    except (SnapshotError, OSError):
        return None
    same = links[0].digest.hex() == job.base.identity and len(links) < MAX_LINKS
    return links[0].header if same else None


def _form(state: KVState | PackedState, parent: Anchor | None, *, lossless: bool) -> Form | None:
    """Return the arrays that a file keeps, or None where they cannot lean on this base."""
    n_before = 0 if parent is None else parent.n_tokens
    cuts = [part for part in state.parts if layout.is_cut(part)]
    if n_before and not cuts:
        return None
    if isinstance(state, PackedState):
        return state if all(part.first == n_before for part in cuts) else None
    kept = cut_state(state, n_before)
    return plane_state(kept) if lossless else kept
