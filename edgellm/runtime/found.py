"""Found: a stored state that an engine can restore, its own or one that was laid out anew."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from edgellm.core import Tier

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgellm.store.answers import Hit
    from edgellm.store.state import Anchor, Fingerprint, KVState


@dataclass(frozen=True, slots=True)
class Found:
    """A state that can be restored.

    Attributes:
        state: as this engine takes it.
        key, n_bytes: of the file.
        tier: of what is restored: that of the file, or what a conversion left of it.
        anchor: what a longer snapshot may lean on.
        n_links: of how many files it came.
        reason, code: for `SnapshotUse`.
        changed: names of the soft fields that differ now.
        cuts: where its prefix was cut before its end.
        find_s: time to look it up, read and check it on this machine's disk.
    """

    state: KVState
    key: str
    n_bytes: int
    tier: Tier
    anchor: Anchor
    n_links: int
    reason: str
    code: str
    changed: tuple[str, ...]
    cuts: tuple[int, ...]
    find_s: float


def mixed(now: Fingerprint, changed: Sequence[str]) -> Fingerprint:
    """Return the fingerprint of what is made on top of other settings: its rounding is of both.

    Args:
        now: of the engine.
        changed: names of the soft fields that differ.
    """
    soft = {**dict(now.soft), **dict.fromkeys(changed, "mixed")}
    return replace(now, soft=tuple(sorted(soft.items())))


def changed_fields(hit: Hit) -> tuple[str, ...]:
    """Return the names of the soft fields that differ from those of a state that was found."""
    return tuple(change.partition(":")[0] for change in hit.soft_changes)


def own(hit: Hit) -> Found:
    """Return what was saved under the engine's own fingerprint."""
    changed = "; ".join(hit.soft_changes)
    reason = f"hit, rounding may differ ({changed})" if changed else "hit"
    return _found(hit, hit.state, reason, "hit")


def converted(hit: Hit, state: KVState, source: Fingerprint, now: Fingerprint) -> Found:
    """Return what was saved under other settings, and laid out anew as `state`.

    Args:
        hit: as it was found.
        state: as the engine takes it.
        source: under which it was saved.
        now: of the engine.
    """
    here = dict(now.hard)
    differing = [f"{name} {value}" for name, value in source.hard if here.get(name) != value]
    reason = f"converted from {', '.join(differing)}: rounding differs"
    found = _found(hit, state, reason, "converted")
    # Of the numbers that a cold run would have, no more is left than q8_0 keeps.
    is_rounded = found.tier is Tier.EXACT and any(one.startswith("kv_type") for one in differing)
    return replace(found, tier=Tier.Q8) if is_rounded else found


def _found(hit: Hit, state: KVState, reason: str, code: str) -> Found:
    info = hit.info
    return Found(
        state=state,
        key=info.key,
        n_bytes=info.n_bytes,
        tier=info.tier,
        anchor=hit.anchor,
        n_links=hit.n_links,
        reason=reason,
        code=code,
        changed=changed_fields(hit),
        cuts=info.cuts,
        find_s=hit.find_s,
    )
