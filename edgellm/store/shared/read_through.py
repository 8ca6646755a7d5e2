"""ReadThroughStore: a store that asks a shared place for what it has not, and may put there what it makes.

To whoever uses it, it is a store: a prefix that came from elsewhere is found like one that was here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from edgellm.core import Tier
from edgellm.errors import UsageError
from edgellm.store.answers import Hit, Saved
from edgellm.store.shared.sharing import SharedTier
from edgellm.store.snapshots import SnapshotStore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from edgellm.store.answers import Miss, Skipped
    from edgellm.store.disk.names import TokenIds
    from edgellm.store.shared.remote import RemoteTier, Seals
    from edgellm.store.state import Fingerprint, KVState, Landing, PackedState

UNKNOWN_TOKENS_PER_S: Final = 1000.0
"""How fast a model is taken to read that was never timed: then a transfer has to be quick."""


class ReadThroughStore(SnapshotStore):
    """A `SnapshotStore` with a shared tier behind it.

    Args:
        root: the folder of the store.
        place: where the shared values lie.
        seals: names and seals under the shared secret.
        refusal: asked before each exchange: why it may not be, or "".
        max_bytes: larger values are neither fetched nor sent.
        writes_back: put there what is saved here.
        how: the other arguments of `SnapshotStore`.

    Attributes:
        shared: the tier, its counts and its trouble.
        tokens_per_s: how fast the model reads a prompt; a transfer that would take longer is given up.

    Raises:
        UsageError: the store is to be encrypted; what lies in the shared place is not.
    """

    def __init__(
        self,
        root: Path,
        place: RemoteTier,
        seals: Seals,
        *,
        refusal: Callable[[], str],
        max_bytes: int,
        writes_back: bool = False,
        **how: Any,
    ) -> None:
        super().__init__(root, **how)
        if self.secret is not None:
            raise UsageError(
                "an encrypted store is not shared: its snapshots would lie there as they are",
                hint="leave out the key or the shared tier",
            )
        self.tokens_per_s: Callable[[], float | None] = lambda: None
        self.shared = SharedTier(
            self._files,
            place,
            seals,
            refusal=refusal,
            max_bytes=max_bytes,
            writes_back=writes_back,
        )

    @property
    def exchanged(self) -> str:
        """Say what went to and came from the shared tier."""
        return str(self.shared.exchanged)

    def close(self) -> None:
        """Give the connection back."""
        self.shared.close()

    def longest(
        self,
        fingerprint: Fingerprint,
        tokens: TokenIds,
        lengths: Sequence[int] | Mapping[int, Sequence[int]],
        tier: Tier = Tier.EXACT,
        *,
        landing: Landing | None = None,
    ) -> Hit | Miss:
        """Return the longest prefix that is here, or that the shared place has and sends in time."""
        found = super().longest(fingerprint, tokens, lengths, tier, landing=landing)
        n_here = found.state.n_tokens if isinstance(found, Hit) else 0
        cuts = lengths if isinstance(lengths, Mapping) else dict.fromkeys(lengths, ())
        longer = {n: cuts[n] for n in cuts if n > n_here}
        speed = self.tokens_per_s() or UNKNOWN_TOKENS_PER_S
        if longer and self.shared.fetch(
            fingerprint, tokens, longer, tier, lambda n: (n - n_here) / speed
        ):
            return super().longest(fingerprint, tokens, lengths, tier, landing=landing)
        return found

    def save(
        self,
        fingerprint: Fingerprint,
        tokens: TokenIds,
        state: KVState | PackedState,
        *,
        cuts: Sequence[int] = (),
        **how: Any,
    ) -> Saved | Skipped:
        """Write the state here, and offer the file to the shared place."""
        outcome = super().save(fingerprint, tokens, state, cuts=cuts, **how)
        if isinstance(outcome, Saved):
            self.shared.offer(fingerprint, tokens, outcome.path, cuts)
        return outcome
