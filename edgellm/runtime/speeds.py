"""Speeds: how fast this machine reads prompts and moves snapshots, and what is written down of it.

What this very process measured comes first, then what the ledger has of earlier ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgellm.store.ledger import SAVED, Speed, Use

if TYPE_CHECKING:
    from edgellm.store.ledger import Ledger
    from edgellm.store.state import Fingerprint

_MODEL_FIELD = "model"


class Speeds:
    """What was measured for one model.

    Args:
        ledger: of the store, or None to write nothing down.
    """

    def __init__(self, ledger: Ledger | None = None) -> None:
        self._ledger = ledger
        self._model = ""
        self._prompt = (0, 0.0)
        self._restored = (0, 0.0)
        self._saved = (0, 0.0)
        self._read: tuple[str, Speed] | None = None

    def note_model(self, fingerprint: Fingerprint) -> None:
        """Say whose speeds these are."""
        self._model = self._model or dict(fingerprint.hard).get(_MODEL_FIELD, "")

    def note_prompt(self, n_tokens: int, seconds: float) -> None:
        """Add one decode call of a prompt."""
        self._prompt = _plus(self._prompt, n_tokens, seconds)

    def note_restored(self, n_bytes: int, seconds: float) -> None:
        """Add one restore, from the look-up on."""
        self._restored = _plus(self._restored, n_bytes, seconds)

    def note_saved(self, n_bytes: int, seconds: float) -> None:
        """Add one snapshot that was written; called in the thread that wrote it."""
        self._saved = _plus(self._saved, n_bytes, seconds)
        self.record(SAVED, saved=(n_bytes, seconds))

    def record(
        self,
        code: str,
        *,
        reused_tokens: int = 0,
        read: tuple[int, float] = (0, 0.0),
        restored: tuple[int, float] = (0, 0.0),
        saved: tuple[int, float] = (0, 0.0),
    ) -> None:
        """Write one line into the ledger; a model without a content id has none.

        Args:
            code: of the request's `SnapshotUse`, or `SAVED`.
            reused_tokens: of the prompt, not decoded anew.
            read: tokens that were decoded, and seconds.
            restored: bytes, and seconds from the look-up on.
            saved: bytes, and seconds.
        """
        if self._ledger is None or not _is_hex(self._model):
            return
        use = Use(
            self._model,
            code,
            reused_tokens=reused_tokens,
            prefill_tokens=read[0],
            prefill_s=read[1],
            restore_bytes=restored[0],
            restore_s=restored[1],
            saved_bytes=saved[0],
            save_s=saved[1],
        )
        self._ledger.record(use)

    @property
    def prompt_tokens_per_s(self) -> float | None:
        """How fast the model reads, or None when nobody knows."""
        return per_s(*self._prompt) or self._before.prefill_tokens_per_s

    @property
    def restore_bytes_per_s(self) -> float | None:
        """How fast snapshots are restored, or None when none was."""
        return per_s(*self._restored) or self._before.restore_bytes_per_s

    @property
    def save_bytes_per_s(self) -> float | None:
        """How fast snapshots are written, or None when none was."""
        return per_s(*self._saved) or self._before.save_bytes_per_s

    @property
    def _before(self) -> Speed:
        """Read the ledger, once the model is known."""
        if self._ledger is None:
            return Speed()
        if self._read is None or self._read[0] != self._model:
            self._read = (self._model, self._ledger.speed(self._model))
        return self._read[1]


def per_s(amount: float, seconds: float) -> float | None:
    """Return amount for each second, or None where nothing was measured."""
    return amount / seconds if amount > 0 and seconds > 0 else None


def _plus(sums: tuple[int, float], amount: int, seconds: float) -> tuple[int, float]:
    return sums[0] + amount, sums[1] + seconds


def _is_hex(text: str) -> bool:
    return bool(text) and all(char in "0123456789abcdef" for char in text)
