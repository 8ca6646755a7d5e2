"""Snapshots that came in a pack, probed at their first use.

The engine here restores one, decodes one token more, and must say what the maker's engine said. Then
the snapshot is one like any other. Else it goes, and the prompt is read as if it had never been there.
Where the machine is to blame, short of memory or of room, nothing is decided and it waits on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from edgellm.core import Tier
from edgellm.errors import EngineFailed, SnapshotError, SnapshotIncompatible
from edgellm.runtime.found import changed_fields, mixed
from edgellm.store.answers import Hit, Skipped
from edgellm.store.disk import names
from edgellm.store.finding import find
from edgellm.store.packs.imports import Imports
from edgellm.store.packs.probe import compare

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from edgellm.engines.base import Engine
    from edgellm.store.packs.imports import Waiting
    from edgellm.store.snapshots import SnapshotStore
    from edgellm.store.state import Fingerprint

_COARSEST: Final = Tier.Q4
_NOT_NOW: Final = frozenset({"no_memory", "unreadable"})
"""Codes of misses that say nothing about the snapshot."""


class Undecided(SnapshotError):
    """A snapshot could not be probed or moved just now, and nothing is wrong with it."""


def admit(
    engine: Engine,
    store: SnapshotStore,
    fingerprint: Fingerprint,
    tokens: Sequence[int],
    lengths: Sequence[int] | Mapping[int, Sequence[int]],
) -> list[str]:
    """Let imported snapshots of a prompt into the store, if the engine says what their makers' did.

    Costs one look at a folder where nothing waits. Where something does, the engine's memory is
    empty afterwards, and the store's ordinary lookup finds what was admitted. Where nothing can be
    written, nothing is looked at.

    Args:
        engine: with a context that has room for one token behind the longest.
        store: into which they go.
        fingerprint: of the engine.
        tokens: the prompt.
        lengths: of the prefixes that a snapshot is looked for, as `SnapshotStore.longest` takes them.

    Returns:
        What the user should be told, a phrase each.

    Raises:
        Cancelled: the engine was stopped; nothing was decided.
    """
    imports = Imports(store.files)
    if not imports.root.is_dir() or store.closed:
        return []
    notes: list[str] = []
    for ids, cuts in names.prefixes_of(names.token_ids(tokens), lengths):
        waiting = imports.waiting(fingerprint.digest(), ids, cuts)
        if waiting is None:
            continue
        which = f"an imported snapshot of {waiting.entry.n_tokens} tokens"
        try:
            problem = _tried(engine, store, imports, waiting, fingerprint)
        except MemoryError:
            break  # nothing was decided: it waits for another time
        except Undecided as err:
            notes.append(f"{which} waits on: {err.message}")
            break
        if not problem:
            break
        imports.drop(waiting)
        notes.append(f"{which} was removed: {problem}")
    return notes


def _tried(
    engine: Engine,
    store: SnapshotStore,
    imports: Imports,
    waiting: Waiting,
    fingerprint: Fingerprint,
) -> str:
    """Probe a snapshot that waits and admit it; return why it is of no use, or "".

    Raises:
        Undecided, MemoryError: it may be of use another time.
    """
    found = find(waiting.files, fingerprint, waiting.ids, _COARSEST, cuts=waiting.cuts)
    if not isinstance(found, Hit):
        if found.code in _NOT_NOW:
            raise Undecided(found.reason)
        return found.reason
    try:
        engine.restore(found.state)
        verdict = compare(waiting.entry.probe, engine.decode([waiting.entry.probe.token])[0])
    except (SnapshotIncompatible, EngineFailed, ValueError) as err:
        return f"the engine does not take it ({err})"
    finally:
        engine.truncate(0)  # not cut back: few memories can forget the probe's token
    if not verdict.agrees:
        return f"the engine says something else after it ({verdict.divergence:.2g} nats off)"
    try:
        if imports.admit(waiting):
            return ""
        if found.info.tier is not Tier.EXACT:
            return "it leans on a snapshot of which there is another one here"
        # The same bits, but whole: what it leans on is stored here in another file.
        made_under = mixed(fingerprint, changed_fields(found))
        outcome = store.save(made_under, waiting.tokens(), found.state, cuts=waiting.cuts)
    except (SnapshotError, OSError) as err:
        raise Undecided(f"it cannot be moved ({err})") from err
    if isinstance(outcome, Skipped) and not outcome.is_stored:
        raise Undecided(f"it cannot be kept ({outcome.reason})")
    imports.drop(waiting)
    return ""
