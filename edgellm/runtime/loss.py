"""What rounding costs a model: measured once, and kept beside the other things that may be deleted.

The same tokens are read after the exact state and after each tier's, so that nothing but the rounding
differs. The memory is left as it was, bit for bit.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Final

from edgellm.core import Tier
from edgellm.errors import DoesNotFit
from edgellm.evaluate.divergence import kl_divergence
from edgellm.fileio import AtomicWriter, private_dir
from edgellm.policy.snapshots import coarsest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from edgellm.engines.base import Engine
    from edgellm.store.state import Fingerprint, KVState

N_SCORED: Final = 64
TIERS: Final = (Tier.Q8, Tier.Q6, Tier.Q5, Tier.Q4)
FORMAT: Final = 1
_MAX_FILE_BYTES: Final = 4096
# Plain prose of several kinds, which no prompt is likely to hold.
_TEXT: Final = (
    "The lighthouse keeper wrote down the weather every evening: wind from the west, 14 knots, rain "
    "after midnight. On Tuesday the boat brought flour, two letters and a box of nails. What did the "
    "second letter say? It said that the bridge had been closed, that nobody knew for how long, and "
    "that the price of oil had doubled. He counted his candles, made a list, and lit only one. "
)


def measure_losses(engine: Engine, state: KVState) -> dict[Tier, float]:
    """Return the mean KL divergence of each tier from the exact state, in nats.

    Args:
        engine: its memory holds `state`, and holds it again afterwards.
        state: after some prefix.

    Returns:
        Tier to loss; without those that cannot be packed, empty where the context has no room.

    Raises:
        SnapshotIncompatible: the engine does not take its own state; its memory is then empty.
        Cancelled, EngineFailed: of decoding.
    """
    from edgellm.store.format.codec import pack_state, unpack_state
    from edgellm.store.state import PackedState

    tokens = engine.tokenize(_TEXT, special=False, add_bos=False)[:N_SCORED]
    losses: dict[Tier, float] = {}
    if len(tokens) == N_SCORED and engine.position + N_SCORED <= engine.n_ctx:
        engine.restore(state)
        exact = engine.decode(tokens, "all").copy()
        for tier in TIERS:
            packed = pack_state(state, tier)
            if isinstance(packed, PackedState):
                engine.restore(unpack_state(packed))
                mean = float(kl_divergence(exact, engine.decode(tokens, "all")).mean())
                losses[tier] = max(0.0, mean)
    engine.restore(state)
    return {tier: loss for tier, loss in losses.items() if math.isfinite(loss)}


def describe(losses: Mapping[Tier, float], allowed: float) -> str:
    """Return what is told the user about a measurement."""
    if not losses:
        return "what rounding costs this model could not be measured: snapshots stay exact"
    figures = ", ".join(f"{tier.value} {loss:.2g}" for tier, loss in losses.items())
    chosen = coarsest(losses, allowed).value
    return f"measured once what rounding costs this model, in nats: {figures}; kept as {chosen}"


class LossBook:
    """Measured losses on disk, one small file a fingerprint; what cannot be read was not measured.

    Args:
        folder: below the cache folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, dict[Tier, float]] = {}

    def get(self, fingerprint: Fingerprint) -> dict[Tier, float] | None:
        """Return what was measured under a fingerprint, or None."""
        digest = fingerprint.digest()
        if digest not in self._known:
            read = _read(self._path(digest))
            if read is None:
                return None
            self._known[digest] = read
        return self._known[digest]

    def put(self, fingerprint: Fingerprint, losses: Mapping[Tier, float]) -> None:
        """Keep what was measured; where the disk refuses, until this process ends."""
        digest = fingerprint.digest()
        self._known[digest] = dict(losses)
        if not losses:  # another prompt may leave room for it
            return
        values = {tier.value: loss for tier, loss in losses.items()}
        text = json.dumps({"format": FORMAT, "kl_mean": values}, sort_keys=True)
        try:
            private_dir(self._folder)
            with AtomicWriter(self._path(digest)) as out:
                out.write(text.encode())
        except (OSError, DoesNotFit):
            return

    def _path(self, digest: str) -> Path:
        return self._folder / f"{digest[:32]}.json"


def _read(path: Path) -> dict[Tier, float] | None:
    """Read one file of losses; None for whatever is not one."""
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_FILE_BYTES + 1)
        value = json.loads(text) if len(text) <= _MAX_FILE_BYTES else None
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        return None
    measured = value.get("kl_mean")
    if not isinstance(measured, dict):
        return None
    losses: dict[Tier, float] = {}
    for tier in TIERS:
        loss = measured.get(tier.value)
        if isinstance(loss, (int, float)) and not isinstance(loss, bool):
            if not (math.isfinite(loss) and loss >= 0):
                return None
            losses[tier] = float(loss)
    return losses
