"""The memory of the scripted engine: key and value rows, and logits computed from nothing else."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

import numpy as np

from edgellm.errors import SnapshotIncompatible
from edgellm.store.state import KVState, Part, Section

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from edgellm.store.state import PartKind, Role

N_DENSE_LAYERS: Final = 2
N_WINDOW_LAYERS: Final = 1
N_CHANNELS: Final = 8
_ROLES: tuple[Role, Role] = ("K", "V")
# Whole numbers up to this are exact in f16.
_F16_WHOLE = 2048


class ScriptedMemory:
    """Rows of f16 per position: dense layers see all of them, window layers the last ones.

    Channel 0 of the first key is the token id, channel 1 its place in the decode call; the other
    channels are a hash of model, token, place and position.

    Args:
        content: stands for the model's weights.
        n_window: tokens the window layers see; 0 has no such layers.
        restore_moves: logits also depend on where the memory was last restored.
    """

    n_channels = N_CHANNELS

    def __init__(self, content: str, *, n_window: int, restore_moves: bool = False) -> None:
        self.content_id = hashlib.sha256(content.encode()).hexdigest()
        self.n_window = n_window
        self.restore_moves = restore_moves
        self.n_layers = N_DENSE_LAYERS + (N_WINDOW_LAYERS if n_window else 0)
        self.n_tokens = 0
        self._key = np.uint64(int(self.content_id[:16], 16))
        # Where the window layers' rows start: a restore brings the last ones only.
        self._window_first = 0
        self._n_restored = 0
        self.allocate(0)

    @property
    def capacity(self) -> int:
        """Return how many tokens there is room for."""
        return self._rows.shape[2]

    def allocate(self, capacity: int) -> None:
        """Make room for `capacity` tokens and forget those there are."""
        # Shape (layer, K or V, position, channel); f16 bits.
        self._rows = np.zeros((self.n_layers, 2, capacity, N_CHANNELS), np.uint16)
        # Shape (dense or window, position): what each position adds to the logits.
        self._sums = np.zeros((2, capacity), np.uint64)
        self.truncate(0)

    def append(self, tokens: Sequence[int]) -> None:
        """Add the tokens of one decode call."""
        n = len(tokens)
        ids = np.asarray(tokens, np.uint64)
        places = np.arange(n, dtype=np.uint64) % np.uint64(_F16_WHOLE)
        positions = np.arange(self.n_tokens, self.n_tokens + n, dtype=np.uint64)
        seeds = _mix(_mix(_mix(self._key + ids) + places) + positions)
        lanes = np.arange(self.n_layers * 2 * N_CHANNELS, dtype=np.uint64)
        values = _mix(seeds[:, None] + lanes) % np.uint64(_F16_WHOLE)
        values = values.reshape(n, self.n_layers, 2, N_CHANNELS)
        values[:, 0, 0, 0] = ids
        values[:, 0, 0, 1] = places
        rows = values.astype(np.float16).view(np.uint16)
        self._rows[:, :, self.n_tokens : self.n_tokens + n] = rows.transpose(1, 2, 0, 3)
        self._add_up(self.n_tokens, self.n_tokens + n)
        self.n_tokens += n

    def tokens(self) -> list[int]:
        """Return the token ids, read back from the rows."""
        return self._numbers(0)

    def n_single(self, n_tokens: int) -> int:
        """Return how many of the last of `n_tokens` were each decoded by a call of its own."""
        places = self._numbers(1)[:n_tokens]
        return next((n for n, place in enumerate(reversed(places)) if place), n_tokens)

    def noise(self, first: int, n_vocab: int) -> NDArray[np.float32]:
        """Return numbers in [0, 1) that change with every bit of the rows a position may see.

        Args:
            first: the position of the first row of the result.
            n_vocab: length of a row.

        Returns:
            Shape (n_tokens - first, n_vocab).
        """
        dense, window = self._sums[:, : self.n_tokens].cumsum(axis=1, dtype=np.uint64)
        seen = dense + window + np.uint64(self._n_restored)
        if self.n_window:
            seen[self.n_window :] -= window[: -self.n_window]
        tokens = np.arange(n_vocab, dtype=np.uint64)
        grid = _mix(_mix(seen[first:, None]) + tokens)
        return (grid >> np.uint64(40)).astype(np.float32) / np.float32(1 << 24)

    def truncate(self, n_tokens: int) -> bool:
        """Forget all but the first `n_tokens`; False where that is not the memory there once was."""
        if not 0 <= n_tokens <= self.n_tokens:
            return False
        if 0 < n_tokens < self.n_tokens and self._window_first > max(0, n_tokens - self.n_window):
            return False
        if 0 < n_tokens < self._n_restored:
            return False
        self.n_tokens = n_tokens
        if n_tokens == 0:
            self._window_first = 0
            self._n_restored = 0
        return True

    def capture(self) -> KVState:
        """Copy the rows out: all of the dense layers, what the next token sees of the window's."""
        first = max(0, self.n_tokens - self.n_window)
        parts = [self._part("dense", 0, range(N_DENSE_LAYERS))]
        if self.n_window:
            parts.append(self._part("window", first, range(N_DENSE_LAYERS, self.n_layers)))
        return KVState(self.n_tokens, tuple(parts))

    def restore(self, state: KVState) -> None:
        """Put captured rows in place.

        Raises:
            SnapshotIncompatible: other parts, shapes or positions; the memory is left empty.
        """
        self.truncate(0)
        first = max(0, state.n_tokens - self.n_window) if self.n_window else 0
        wanted = [("dense", 0, N_DENSE_LAYERS)]
        if self.n_window:
            wanted.append(("window", first, N_WINDOW_LAYERS))
        if not 0 < state.n_tokens <= self.capacity:
            raise SnapshotIncompatible(f"{state.n_tokens} tokens into a room of {self.capacity}")
        if [(p.kind, p.first, len(p.sections) // 2) for p in state.parts] != wanted:
            raise SnapshotIncompatible("the parts of the memory are others than here")
        base = 0
        for part in state.parts:
            n_layers = len(part.sections) // 2
            for index, section in enumerate(part.sections):
                layer, role = index % n_layers, index // n_layers
                expected = (layer, _ROLES[role], "f16", (part.n_tokens, N_CHANNELS))
                found = (section.layer, section.role, section.type, section.rows.shape)
                if found != expected or part.first + part.n_tokens != state.n_tokens:
                    raise SnapshotIncompatible(f"a section is {found}, expected {expected}")
                rows = self._rows[base + layer, role]
                rows[: part.first] = 0
                rows[part.first : state.n_tokens] = section.rows
            base += n_layers
        self._add_up(0, state.n_tokens)
        self.n_tokens = state.n_tokens
        self._window_first = first
        self._n_restored = state.n_tokens if self.restore_moves else 0

    def _add_up(self, first: int, last: int) -> None:
        """Sum hashes of the rows from `first` to `last`, each with its layer, role and position."""
        lanes = np.arange(self.n_layers * 2 * N_CHANNELS, dtype=np.uint64)
        weights = _mix(lanes).reshape(self.n_layers, 2, 1, N_CHANNELS)
        positions = _mix(np.arange(first, last, dtype=np.uint64))[:, None]
        held = self._rows[:, :, first:last].astype(np.uint64)
        sums = _mix(held + weights + positions).sum(axis=(1, 3), dtype=np.uint64)
        self._sums[0, first:last] = sums[:N_DENSE_LAYERS].sum(axis=0, dtype=np.uint64)
        self._sums[1, first:last] = sums[N_DENSE_LAYERS:].sum(axis=0, dtype=np.uint64)

    def _numbers(self, channel: int) -> list[int]:
        bits = self._rows[0, 0, : self.n_tokens, channel]
        return [int(value) for value in bits.view(np.float16)]

    def _part(self, kind: PartKind, first: int, layers: range) -> Part:
        sections = tuple(
            Section(
                layer=layer - layers.start,
                role=role,
                type="f16",
                rows=self._rows[layer, index, first : self.n_tokens].copy(),
            )
            for index, role in enumerate(_ROLES)
            for layer in layers
        )
        return Part(kind, first, self.n_tokens - first, sections)


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hash each number. Source: the finaliser of SplitMix64 (Steele, Lea, Flood 2014)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    result: NDArray[np.uint64] = values ^ (values >> np.uint64(31))
    return result
