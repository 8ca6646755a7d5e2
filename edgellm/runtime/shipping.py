"""Snapshots that leave for another machine, each with a probe: what the engine said after it.

Who receives them says the same first, before an answer rests on it: see `admission.py`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from edgellm.core import Tier
from edgellm.errors import SnapshotCorrupt, SnapshotError, UsageError
from edgellm.ggml_types import TYPES_BY_NAME
from edgellm.store.answers import Hit
from edgellm.store.disk import names
from edgellm.store.explain import field_changes
from edgellm.store.file.read import read_tokens
from edgellm.store.finding import find
from edgellm.store.packs.pack import digest_of, write_pack
from edgellm.store.packs.pack_format import Manifest, PackedFile
from edgellm.store.packs.probe import take_probe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from edgellm.engines.base import Engine, EngineSettings
    from edgellm.runtime.session import SessionOptions
    from edgellm.store.packs.probe import Probe
    from edgellm.store.packs.signing import Signer
    from edgellm.store.snapshots import SnapshotInfo, SnapshotStore
    from edgellm.store.state import KVState

_COARSEST: Final = Tier.Q4
_PROBED: Final = "\n"


@dataclass(frozen=True, slots=True)
class Exported:
    """A pack that was written.

    Attributes:
        n_bytes: its length.
        manifest: what is in it.
    """

    n_bytes: int
    manifest: Manifest


def export(
    model: Path,
    options: SessionOptions,
    store: SnapshotStore,
    keys: Sequence[str],
    out: Path,
    signer: Signer | None = None,
) -> Exported:
    """Write snapshots, and those they lean on, with what this model says after each.

    Args:
        model: that they are of.
        options: adapters, GPU layers and threads count; what the snapshots' own fields say of the
            type of keys and values and of flash attention goes before.
        store: where they lie.
        keys: of the snapshots.
        out: the pack; a file there is replaced, see `pack.check_out`.
        signer: who vouches for it, or None.

    Raises:
        UsageError: a key is unknown, the snapshots are not of one model and one setting, or not of
            this model.
        SnapshotError: one of them cannot be used.
        EdgeLLMError: the model cannot be opened.
        OSError: the pack cannot be written.
    """
    from edgellm.engines.llamacpp import LlamaCppEngine

    entries = _with_parents(store, keys)
    engine = LlamaCppEngine(model, _settings(options.engine, entries[0]))
    try:
        engine.reserve(max(entry.n_tokens for entry in entries) + 1)
        return export_from(engine, store, entries, out, signer)
    finally:
        engine.close()


def export_from(
    engine: Engine,
    store: SnapshotStore,
    entries: Sequence[SnapshotInfo],
    out: Path,
    signer: Signer | None = None,
    *,
    clock: Callable[[], float] = time.time,
) -> Exported:
    """Write a pack with an engine that is open; see `export`.

    Args:
        engine: with a context for the longest of them and one token more.
        store: where they lie.
        entries: the snapshots, those that others lean on first.
        out: the pack.
        signer: who vouches for it, or None.
        clock: gives the time to write down, Unix seconds.
    """
    fingerprint = engine.fingerprint()
    token = (engine.tokenize(_PROBED, special=False, add_bos=False) or [0])[-1]
    packed = []
    for entry in entries:
        header, ids = read_tokens(entry.path, open_file=store.files.opened)
        if changes := field_changes(header.fingerprint, fingerprint):
            told = ", ".join(f"{c.name} {c.stored or '-'}, now {c.now or '-'}" for c in changes)
            raise UsageError(
                f"snapshot {entry.key} is not of this model as it is opened here: {told}",
                hint="give the --model and --lora that it was made with",
            )
        found = find(store.files, fingerprint, ids, _COARSEST, cuts=header.cuts)
        if not isinstance(found, Hit):
            raise SnapshotError(found.reason, path=entry.path)
        n_bytes, sha256 = digest_of(store.files, entry.path)
        parent = "" if entry.parent is None else entry.parent.key
        probe = _probed(engine, found.state, token, entry.path)
        key = names.key_of(fingerprint.digest(), ids, cuts=header.cuts)
        packed.append(PackedFile(key, entry.n_tokens, n_bytes, sha256, parent, probe))
    manifest = Manifest(fingerprint.hard, int(clock()), tuple(packed))
    paths = [entry.path for entry in entries]
    return Exported(write_pack(out, manifest, store.files, paths, signer), manifest)


def _settings(asked: EngineSettings, entry: SnapshotInfo) -> EngineSettings:
    """Return the settings that a snapshot was made with; a recurrent memory names none."""
    kv_type, flash = entry.field("kv_type_k"), entry.field("flash_attention")
    if kv_type in TYPES_BY_NAME:
        asked = replace(asked, kv_type=kv_type)
    if flash in {"on", "off"}:  # as it was resolved then: `auto` may choose otherwise here
        asked = replace(asked, flash_attention="on" if flash == "on" else "off")
    return asked


def _probed(engine: Engine, state: KVState, token: int, path: Path) -> Probe:
    engine.restore(state)
    try:
        return take_probe(token, engine.decode([token])[0])
    except ValueError as err:
        raise SnapshotCorrupt(
            f"what the engine says after it is no number: {err}", path=path
        ) from err
    finally:
        engine.truncate(0)


def _with_parents(store: SnapshotStore, keys: Sequence[str]) -> list[SnapshotInfo]:
    """Return the snapshots of these keys and those they lean on, which come first.

    Raises:
        UsageError: one is not there, or they are not of one model and one setting.
    """
    known = {entry.key: entry for entry in store.entries()}
    wanted: dict[str, SnapshotInfo] = {}
    for key in keys:
        line: list[SnapshotInfo] = []
        at: str | None = key
        while at is not None and at not in wanted:
            entry = known.get(at)
            if entry is None:
                raise UsageError(f"no snapshot {at}", hint="see `edgellm snapshots ls`")
            line.insert(0, entry)
            at = None if entry.parent is None else entry.parent.key
        wanted |= {entry.key: entry for entry in line}
    found = list(wanted.values())
    if not found or any(entry.fields != found[0].fields for entry in found):
        raise UsageError(
            "a pack holds snapshots of one model with one setting",
            hint="export the others into another pack",
        )
    if store.secret is not None and any(entry.parent for entry in found):
        raise UsageError(
            "snapshots that lean on others cannot leave an encrypted store",
            hint="warm the prompt into a store without a key, and export from there",
        )
    return found
