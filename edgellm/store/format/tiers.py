"""The tiers: how many bits each keeps of keys and values, and what its files say of themselves.

`exact` keeps the bits. The others keep the first four positions exact, because attention rests on
them, and round the rest: keys per channel, whose offsets are steady from token to token, values per
token, whose sizes are not. A coarser tier is never given to somebody who asked for a finer one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from edgellm.core import Tier

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgellm.store.state import Role

KV_CODEC: Final = "kv-codec-1"
"""The feature that a reader of packed sections needs; another codec would be another feature."""

BITS: Final = "bits"
"""Exactness of tier `exact`: the very bits that were captured."""

ROUNDED: Final = "rounded"
"""Exactness of the others: numbers near those captured, the same ones at every reading."""

EXACTNESS: Final = (BITS, ROUNDED)
PACKED_TYPE: Final = "f16"
"""The element type that can be packed. Sections of any other type stay exact."""

N_EXACT_POSITIONS: Final = 4
"""The first positions of a prefix are attention sinks: an error there reaches every head."""


@dataclass(frozen=True, slots=True)
class Coding:
    """How the keys or the values of a tier are rounded.

    Attributes:
        bits: of one code; 8 is symmetric (a scale), fewer are asymmetric (a scale and a minimum).
        group: how many elements share a scale: tokens of one channel (K), channels of a token (V).
    """

    bits: int
    group: int


_CODINGS: Final[Mapping[tuple[Tier, str], Coding]] = {
    (Tier.Q8, "K"): Coding(8, 128),
    (Tier.Q8, "V"): Coding(8, 64),
    (Tier.Q6, "K"): Coding(6, 64),
    (Tier.Q6, "V"): Coding(6, 64),
    (Tier.Q5, "K"): Coding(5, 64),
    (Tier.Q5, "V"): Coding(5, 64),
    (Tier.Q4, "K"): Coding(4, 32),
    (Tier.Q4, "V"): Coding(4, 32),
}
_FINEST_FIRST: Final = (Tier.EXACT, Tier.Q8, Tier.Q6, Tier.Q5, Tier.Q4)
TIER_NAMES: Final = tuple(tier.value for tier in _FINEST_FIRST)


def coding(tier: Tier, role: Role) -> Coding | None:
    """Return how sections of this role are rounded, or None where they never are."""
    return _CODINGS.get((tier, role))


def exactness(tier: Tier) -> str:
    """Return what the tier promises about the numbers."""
    return BITS if tier is Tier.EXACT else ROUNDED


def serves(stored: Tier, wanted: Tier) -> bool:
    """Return whether a file of tier `stored` may answer somebody who asks for `wanted`."""
    return _FINEST_FIRST.index(stored) <= _FINEST_FIRST.index(wanted)


def n_exact_rows(first: int, n_tokens: int) -> int:
    """Return how many rows of a packed section stay exact.

    Args:
        first: the position of its first row; a window that starts late has none.
        n_tokens: its rows.
    """
    return min(n_tokens, max(0, N_EXACT_POSITIONS - first))
