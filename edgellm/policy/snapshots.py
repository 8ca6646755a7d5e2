"""How a prefix is kept on disk under `--snapshot auto`, and whether it is kept at all.

Unknown facts never speak against a snapshot: the first one of a machine is what measures it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from edgellm.core import Tier
from edgellm.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

BYTES_OF_EXACT: Final[Mapping[Tier, float]] = {
    Tier.EXACT: 1.0,
    Tier.Q8: 0.51,
    Tier.Q6: 0.41,
    Tier.Q5: 0.35,
    Tier.Q4: 0.32,
}
"""Length of a tier's files as a share of an exact one's; `tests/bench/tiers.py` prints it."""

LOSSLESS_BYTES_OF_EXACT: Final = 0.87
"""The same for byte planes with zstd: keys and values are nearly random bits."""

UNPACK_BYTES_PER_S: Final = 400e6
"""What undoing the planes is taken to manage on one core of a small machine."""

EXPECTED_READS: Final = 4
"""A snapshot is written once; each of so many later starts is charged its share of that."""

OPENING_S: Final = 0.005
"""What a restore costs before its first byte: looking it up, and the engine's own call."""


@dataclass(frozen=True, slots=True)
class SnapshotFacts:
    """What is known when a prefix has been read; None where nothing was measured yet.

    Attributes:
        n_tokens: length of the prefix.
        state_bytes: of its memory as captured.
        prefill_tokens_per_s: how fast the model reads.
        write_bytes_per_s: how fast snapshots were written.
        read_bytes_per_s: how fast they were read, checked and restored.
        free_bytes: what may be taken of the disk.
        loss_allowed: mean KL divergence that the user accepts, in nats.
        losses: mean KL divergence of each tier, as measured on this model.
    """

    n_tokens: int
    state_bytes: int
    prefill_tokens_per_s: float | None = None
    write_bytes_per_s: float | None = None
    read_bytes_per_s: float | None = None
    free_bytes: int | None = None
    loss_allowed: float = 0.0
    losses: Mapping[Tier, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Choice:
    """How a prefix is kept.

    Attributes:
        tier: one that is kept, never `off` or `auto`.
        lossless: whether its bytes are squeezed without loss.
        keep: False where the snapshot costs more than it saves.
        reason: one phrase, for `--stats`.
    """

    tier: Tier
    lossless: bool
    keep: bool
    reason: str


def coarsest(losses: Mapping[Tier, float], allowed: float) -> Tier:
    """Return the tier of the fewest bytes whose measured loss is allowed; exact if none is.

    Args:
        losses: mean KL divergence of each tier that was measured, in nats.
        allowed: the largest that is accepted; 0 accepts none.
    """
    if not allowed > 0:  # also where it is no number
        return Tier.EXACT
    fitting = [
        tier for tier, loss in losses.items() if tier in BYTES_OF_EXACT and 0 <= loss <= allowed
    ]
    return min(fitting, key=BYTES_OF_EXACT.__getitem__, default=Tier.EXACT)


def choose(facts: SnapshotFacts) -> Choice:
    """Decide how a prefix is kept, and whether.

    Byte planes are taken where the disk is so slow that reading fewer bytes pays for unpacking. A
    snapshot is not kept where it does not fit, or where reading it, with its share of the write,
    takes as long as reading the prompt again.
    """
    tier = coarsest(facts.losses, facts.loss_allowed)
    lossless = tier is Tier.EXACT and _planes_pay(facts)
    share = LOSSLESS_BYTES_OF_EXACT if lossless else BYTES_OF_EXACT[tier]
    n_bytes = max(0, int(facts.state_bytes * share))
    named = _named(tier, facts, lossless=lossless)
    if facts.free_bytes is not None and n_bytes > facts.free_bytes:
        need, have = format_bytes(n_bytes), format_bytes(max(0, facts.free_bytes))
        return Choice(tier, lossless, keep=False, reason=f"{need} do not fit {have} of free space")
    prefill_s = _seconds(facts.n_tokens, facts.prefill_tokens_per_s)
    cost_s = _cost_s(facts, n_bytes, lossless=lossless)
    if prefill_s is not None and cost_s is not None and cost_s >= prefill_s:
        return Choice(
            tier,
            lossless,
            keep=False,
            reason=f"a snapshot costs {_ms(cost_s)} a start, the prefill {_ms(prefill_s)}",
        )
    return Choice(tier, lossless, keep=True, reason=named)


def _planes_pay(facts: SnapshotFacts) -> bool:
    if not facts.read_bytes_per_s or facts.read_bytes_per_s <= 0:
        return False
    saved_s_per_byte = (1 - LOSSLESS_BYTES_OF_EXACT) / facts.read_bytes_per_s
    return saved_s_per_byte > 1 / UNPACK_BYTES_PER_S


def _cost_s(facts: SnapshotFacts, n_bytes: int, *, lossless: bool) -> float | None:
    """Return what one start pays for the snapshot, or None where no speed is known."""
    read_s = _seconds(n_bytes, facts.read_bytes_per_s)
    if read_s is None:
        return None
    write_s = _seconds(n_bytes, facts.write_bytes_per_s) or 0.0
    unpack_s = facts.state_bytes / UNPACK_BYTES_PER_S if lossless else 0.0
    return OPENING_S + read_s + unpack_s + write_s / EXPECTED_READS


def _seconds(amount: int, per_s: float | None) -> float | None:
    return amount / per_s if per_s is not None and per_s > 0 else None


def _named(tier: Tier, facts: SnapshotFacts, *, lossless: bool) -> str:
    if lossless:
        return "byte planes: the disk is slow"
    if tier is Tier.EXACT:
        return "exact: no tier fits the loss allowed" if facts.loss_allowed > 0 else "exact"
    return f"{tier.value}: {facts.losses[tier]:.2g} nats of {facts.loss_allowed:g} allowed"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"
