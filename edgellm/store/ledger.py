"""The ledger: one short line for each request, of what the snapshots did for it.

Numbers and codes only, no text. A line is added in one write, so that several processes never mix
theirs, and carries a checksum, so that a torn or foreign one is left out. A ledger that has grown
long is summed up: of each model's old lines one is left for each code.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from edgellm.errors import EdgeLLMError
from edgellm.fileio import PRIVATE_FILE_MODE, private_dir, write_atomic
from edgellm.store.disk.flight import Locks
from edgellm.store.uses import SAVED, Use, added, line_of, use_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

__all__ = ["SAVED", "Ledger", "Speed", "Totals", "Use"]

LEDGER_NAME: Final = "ledger"
MAX_BYTES: Final = 1 << 20
KEPT_LINES: Final = 32
"""Of each model, the newest ones that are not summed up: the speeds rest on them."""
HITS: Final = frozenset(["hit", "converted"])
NOT_ASKED: Final = frozenset(["live", "no_prefix", "not_worth", "off", "too_short"])
"""Codes of requests for which no snapshot was looked for."""
WEIGHT: Final = 0.3
"""Of the newest measurement in a speed; those before share the rest in the same way."""
LONG_TOKENS: Final = 64
"""Fewer tell how long a call takes, and not how fast prompts are read."""
_LOCK_WAIT_S: Final = 2.0
_READ_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast this machine is, the newest measurements counting most; None: not measured yet.

    Attributes:
        prefill_tokens_per_s: reading a prompt with one model.
        restore_bytes_per_s: from the look-up of a snapshot to its restored state, any model.
        save_bytes_per_s: writing snapshots, any model.
    """

    prefill_tokens_per_s: float | None = None
    restore_bytes_per_s: float | None = None
    save_bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Totals:
    """What snapshots did for all requests to one model.

    Attributes:
        model: its content id.
        codes: how many requests ended with each code, the most frequent first.
        reused_tokens: taken from snapshots.
        prefill_tokens_per_s: over all prompts of some length read here, or None.
        saved_s: what reading those tokens would have taken at that speed, less the time to restore
            them; None where that speed is not known.
        restore_s, restore_bytes, saved_bytes: sums.
    """

    model: str
    codes: tuple[tuple[str, int], ...]
    reused_tokens: int
    prefill_tokens_per_s: float | None
    saved_s: float | None
    restore_s: float
    restore_bytes: int
    saved_bytes: int

    @property
    def n_requests(self) -> int:
        """How many requests there were."""
        return sum(n for _, n in self.codes)

    @property
    def n_hits(self) -> int:
        """How many of them went on from a snapshot."""
        return sum(n for code, n in self.codes if code in HITS)

    @property
    def n_asked(self) -> int:
        """For how many of them a snapshot was looked for."""
        return sum(n for code, n in self.codes if code not in NOT_ASKED)


class Ledger:
    """The ledger of the store below one folder.

    Args:
        root: the store's folder.
        max_bytes: a longer ledger is summed up.
    """

    def __init__(self, root: Path, *, max_bytes: int = MAX_BYTES) -> None:
        self.path = root / LEDGER_NAME
        self._locks = Locks(root)
        self._max_bytes = max_bytes
        self._wait_s = _LOCK_WAIT_S

    def record(self, use: Use) -> bool:
        """Add a line; False where that cannot be done, which is no reason to fail.

        Raises:
            ValueError: the model is no hex number, or the code not in small letters.
        """
        line = line_of(use)
        try:
            private_dir(self.path.parent)
            lease = self._locks.take(LEDGER_NAME, self._wait_s)
            # Whoever keeps it so long is stuck: a line may get lost, but no request waits again.
            self._wait_s = _LOCK_WAIT_S if lease else 0.0
            try:
                if _append(self.path, line) > self._max_bytes and lease and lease.is_locked:
                    self._sum_up()
            finally:
                if lease is not None:
                    lease.release()
        except (OSError, EdgeLLMError):  # a full disk, as it is said while summing up
            return False
        return True

    def uses(self) -> list[Use]:
        """Return all lines that are whole, in the order in which they were added."""
        return [use for use in map(use_of, self._lines()) if use is not None]

    def totals(self) -> tuple[Totals, ...]:
        """Return what was done for each model, the one with the most requests first."""
        models: dict[str, list[Use]] = {}
        for use in self.uses():
            models.setdefault(use.model, []).append(use)
        totals = [_totals(model, uses) for model, uses in models.items()]
        return tuple(sorted(totals, key=lambda one: (-one.n_requests, one.model)))

    def speed(self, model: str) -> Speed:
        """Return how fast prompts of a model are read here, and snapshots of any read and written."""
        uses = [use for use in self.uses() if use.n_requests == 1]
        own = [use for use in uses if use.model == model]
        return Speed(
            _mean(_telling(own), lambda use: (use.prefill_tokens, use.prefill_s)),
            _mean(uses, lambda use: (use.restore_bytes, use.restore_s)),
            _mean(uses, lambda use: (use.saved_bytes, use.save_s)),
        )

    def _lines(self) -> list[bytes]:
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        try:
            fd = os.open(self.path, flags | getattr(os, "O_BINARY", 0))
            with os.fdopen(fd, "rb") as file:
                return file.read(_READ_BYTES).split(b"\n")
        except OSError:
            return []

    def _sum_up(self) -> None:
        """Write the ledger anew, the newest lines of each model as they are. The lock is held."""
        sums: dict[tuple[str, str], Use] = {}
        newest: list[Use] = []
        n_kept: dict[str, int] = {}
        for use in reversed(self.uses()):
            n_kept[use.model] = n_kept.get(use.model, 0) + 1
            if n_kept[use.model] <= KEPT_LINES and use.n_requests == 1:
                newest.append(use)
            else:
                before = sums.get((use.model, use.code))
                sums[use.model, use.code] = added(use, before) if before else use
        kept = [*sums.values(), *reversed(newest)]
        write_atomic(self.path, b"".join(line_of(use) for use in kept))


def _append(path: Path, line: bytes) -> int:
    """Add a line and return how long the file is now, in bytes."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    flags |= (
        getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    )
    fd = os.open(path, flags, PRIVATE_FILE_MODE)
    try:
        os.write(fd, line)
        return os.fstat(fd).st_size
    finally:
        os.close(fd)


def _telling(uses: Sequence[Use]) -> Sequence[Use]:
    """Return those that tell how fast prompts are read: the long ones, or all if there is none."""
    return [use for use in uses if use.prefill_tokens >= LONG_TOKENS * use.n_requests] or uses


def _totals(model: str, uses: Sequence[Use]) -> Totals:
    codes: dict[str, int] = {}
    total = hits = read = Use(model, "")
    for use in _telling(uses):
        read = added(read, use)
    for use in uses:
        total = added(total, use)
        if use.code in HITS:
            hits = added(hits, use)
        if use.code != SAVED:
            codes[use.code] = codes.get(use.code, 0) + use.n_requests
    speed = read.prefill_tokens / read.prefill_s if read.prefill_s > 0 else None
    return Totals(
        model=model,
        codes=tuple(sorted(codes.items(), key=lambda pair: (-pair[1], pair[0]))),
        reused_tokens=hits.reused_tokens,
        prefill_tokens_per_s=speed or None,
        saved_s=hits.reused_tokens / speed - hits.restore_s if speed else None,
        restore_s=hits.restore_s,
        restore_bytes=total.restore_bytes,
        saved_bytes=total.saved_bytes,
    )


def _mean(uses: Iterable[Use], of: Callable[[Use], tuple[int, float]]) -> float | None:
    """Return the speed over some uses, the newest counting most."""
    mean: float | None = None
    for amount, seconds in map(of, uses):
        if amount > 0 and seconds > 0:
            speed = amount / seconds
            mean = speed if mean is None else mean + WEIGHT * (speed - mean)
    return mean
