"""SharedTier: read-through and write-back between a store and a place that machines share.

What comes from there is checked like a local file, and more: it is sealed, then whole, then of this
fingerprint and these tokens, and only then written into the store, where the next lookup finds it. A
place that fails is not asked again by this session: it costs one prefill at most. Each exchange needs a
permit, asked for at the time, and is counted.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Final

from edgellm.errors import (
    DoesNotFit,
    FetchError,
    SnapshotCorrupt,
    SnapshotError,
    SnapshotIncompatible,
)
from edgellm.store.disk import names
from edgellm.store.file.chain import BaseMissing, base_path
from edgellm.store.format.layout import MAX_LINKS
from edgellm.store.shared.adopting import adopt, header_of, plain_bytes
from edgellm.store.shared.remote import SEAL_BYTES, Exchanged

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from edgellm.core import Tier
    from edgellm.store.disk.files import Files
    from edgellm.store.disk.names import TokenIds
    from edgellm.store.shared.remote import RemoteTier, Seals
    from edgellm.store.state import Fingerprint

_FIRST_PIECE_BYTES: Final = 256 << 10  # small: it tells how fast the rest will come
_PIECE_BYTES: Final = 8 << 20


class SharedTier:
    """The shared place as one session uses it.

    Args:
        files: of the session's own store, which has no key.
        place: where the values lie.
        seals: names and seals under the shared secret.
        refusal: asked before each exchange: why it may not be, or "".
        max_bytes: larger values are neither fetched nor sent.
        writes_back: put there what this machine makes.

    Attributes:
        trouble: why the place is not asked any more, or "".
    """

    def __init__(
        self,
        files: Files,
        place: RemoteTier,
        seals: Seals,
        *,
        refusal: Callable[[], str],
        max_bytes: int,
        writes_back: bool = False,
    ) -> None:
        self._files, self._place, self._seals = files, place, seals
        self._refusal, self._max_bytes, self._writes_back = refusal, max_bytes, writes_back
        self._counts = Exchanged()
        self._counting = threading.Lock()  # the writer's thread sends while another may fetch
        self._broken: set[str] = set()  # names of values that a good one may replace
        self.trouble = ""

    @property
    def exchanged(self) -> Exchanged:
        """Return the counts so far."""
        return self._counts

    def fetch(
        self,
        fingerprint: Fingerprint,
        tokens: TokenIds,
        lengths: Sequence[int] | Mapping[int, Sequence[int]],
        tier: Tier,
        worth_s: Callable[[int], float],
    ) -> bool:
        """Bring the longest of some prefixes into the store; return whether one came.

        Args:
            fingerprint: of the engine that asks.
            tokens: the whole prompt.
            lengths: of prefixes that the store has not, as `SnapshotStore.longest` takes them.
            tier: the coarsest that will do.
            worth_s: how long it would take to decode a prefix of so many tokens; a transfer that is
                going to take longer is given up.
        """
        ids = names.token_ids(tokens)
        deadline_s = perf_counter()
        if not self._may():
            return False
        try:
            for n, (prefix, cuts) in enumerate(names.prefixes_of(ids, lengths)):
                until_s = deadline_s + worth_s(len(prefix) // names.TOKEN_BYTES)
                if n and perf_counter() > until_s:  # the questions alone took as long as reading
                    break
                if self._bring(fingerprint, prefix, cuts, tier, until_s):
                    return True
        except FetchError as err:
            self._give_up(err)
        return False

    def offer(
        self, fingerprint: Fingerprint, tokens: TokenIds, path: Path, cuts: Sequence[int] = ()
    ) -> bool:
        """Put a file of the store there, and before it what it leans on, unless they lie there already.

        Returns:
            Whether it was sent.
        """
        if not self._writes_back:
            return False
        ids = names.token_ids(tokens)
        inside = names.cuts_below(cuts, len(ids) // names.TOKEN_BYTES)
        try:
            return self._put(fingerprint.digest(), ids, inside, path)
        except FetchError as err:
            self._give_up(err)
        except (SnapshotError, OSError, MemoryError):  # gone, too large, or the machine is busy
            pass
        return False

    def close(self) -> None:
        """Give the connection back."""
        self._place.close()

    def keep_here(self, reason: str) -> None:
        """Exchange nothing any more: what waits to be sent may hold what must stay here."""
        self.trouble = self.trouble or reason

    def _may(self) -> bool:
        """Return whether the place may be spoken to now."""
        if not self.trouble:
            self.trouble = self._refusal()
        return not self.trouble

    def _give_up(self, err: FetchError) -> None:
        self.trouble = err.message

    def _count(self, **more: int) -> None:
        with self._counting:
            grown = {name: getattr(self._counts, name) + n for name, n in more.items()}
            self._counts = replace(self._counts, **grown)

    def _put(
        self,
        digest: str,
        ids: bytes,
        cuts: tuple[int, ...],
        path: Path,
        *,
        is_base: bool = False,
    ) -> bool:
        """Send a file, and what it leans on, unless there is one of its length under its name.

        What leans on another base than the one there could be used by nobody, and is not sent.

        Returns:
            Whether it was sent; of a base, whether it is what lies there now.

        Raises:
            FetchError: the place failed.
            SnapshotError, OSError: a file is gone, or larger than may be sent.
        """
        if not self._may():
            return False
        content = plain_bytes(self._files, path, self._max_bytes)
        name = self._seals.name(digest, ids, cuts)
        value = self._seals.seal(name, content)
        if name not in self._broken and self._place.size(name) == SEAL_BYTES + len(content):
            return is_base and self._place.read(name, 0, SEAL_BYTES) == value[0]
        base = header_of(path, content, len(ids)).parent
        if base is not None:
            below = ids[: base.n_tokens * names.TOKEN_BYTES]
            inside = names.cuts_below(cuts, base.n_tokens)
            if not self._put(digest, below, inside, base_path(path, base), is_base=True):
                return False
        self._place.write(name, value)
        self._broken.discard(name)
        self._count(n_sent=1, bytes_out=SEAL_BYTES + len(content))
        return True

    def _bring(
        self,
        fingerprint: Fingerprint,
        ids: bytes,
        cuts: tuple[int, ...],
        tier: Tier,
        deadline_s: float,
        depth: int = 0,
    ) -> bool:
        """Fetch one snapshot, and first what it leans on; return whether it is in the store.

        Raises:
            FetchError: the place failed.
        """
        name = self._seals.name(fingerprint.digest(), ids, cuts)
        self._count(n_asked=1)
        n_bytes = self._place.size(name)
        if n_bytes is None:
            return False
        try:
            value = self._transfer(name, n_bytes, deadline_s)
            content = self._seals.open(name, value)
            try:
                adopt(self._files, fingerprint, ids, content, tier, cuts)
            except BaseMissing as err:
                n_base = err.base.n_tokens * names.TOKEN_BYTES
                if depth == MAX_LINKS or not 0 < n_base < len(ids):
                    raise
                inside = names.cuts_below(cuts, err.base.n_tokens)
                base = ids[:n_base]
                if not self._bring(fingerprint, base, inside, tier, deadline_s, depth + 1):
                    raise
                adopt(self._files, fingerprint, ids, content, tier, cuts)
        except (SnapshotError, DoesNotFit, OSError, MemoryError) as err:
            if isinstance(err, SnapshotCorrupt):
                self._broken.add(name)
            self._count(n_refused=1)
            return False
        self._count(n_fetched=1)
        return True

    def _transfer(self, name: str, n_bytes: int, deadline_s: float) -> memoryview:
        """Read a value piece by piece.

        Raises:
            SnapshotIncompatible: it is too large, too slow, or changes meanwhile.
            MemoryError: there is no room for it.
        """
        if not SEAL_BYTES < n_bytes <= self._max_bytes:
            raise SnapshotIncompatible(f"a value of {n_bytes} bytes")
        value, got, started_s = bytearray(n_bytes), 0, perf_counter()
        n_next = _FIRST_PIECE_BYTES
        while got < n_bytes:
            piece = self._place.read(name, got, min(n_bytes - got, n_next))
            self._count(bytes_in=len(piece))
            value[got : got + len(piece)] = piece
            got += len(piece)
            now_s = perf_counter()
            took_s = max(now_s - started_s, 1e-6)
            left_s = took_s * (n_bytes - got) / max(got, 1)
            # About half a second's worth: a command must end well within its own time limit.
            n_next = min(_PIECE_BYTES, max(_FIRST_PIECE_BYTES, int(got / took_s / 2)))
            if not piece or now_s + left_s > deadline_s:
                raise SnapshotIncompatible(f"{got} of {n_bytes} bytes came in time")
        return memoryview(value)
