"""The memory of the scripted engine: key and value rows, and logits computed from nothing else."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from edgellm.errors import SnapshotIncompatible
from edgellm.store.state import KVState, Part, PartOutline, Section, SectionOutline

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from edgellm.store.state import Role

N_DENSE_LAYERS: Final = 2
N_WINDOW_LAYERS: Final = 1
N_CHANNELS: Final = 8
_ROLES: tuple[Role, Role] = ("K", "V")
_DTYPES: Final = {"f16": np.uint16, "f32": np.uint32}
# Whole numbers up to this are exact in f16.
_F16_WHOLE = 2048


class ScriptedMemory:
    """Rows of f16 per position: dense layers see all of them, window layers the last ones.

    With a state, one number stands for all positions as well, each made of the one before.

    Channel 0 of the first key is the token id, channel 1 its place in the decode call; the other
    channels are a hash of model, token, place and position.

    Args:
        content: stands for the model's weights.
        n_window: tokens the window layers see; 0 has no such layers.
        restore_moves: logits also depend on where the memory was last restored.
        has_state: keep a state, which cannot be taken back to an earlier position.
    """

    n_channels = N_CHANNELS

    def __init__(
        self, content: str, *, n_window: int, restore_moves: bool = False, has_state: bool = False
    ) -> None:
        self.content_id = hashlib.sha256(content.encode()).hexdigest()
        self.n_window = n_window
        self.restore_moves = restore_moves
        self.has_state = has_state
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
        self._states = np.zeros(capacity, np.uint64)
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
        if self.has_state:
            state = self._states[self.n_tokens - 1] if self.n_tokens else np.uint64(0)
            for at in range(n):
                state = self._states[self.n_tokens + at] = _mix(seeds[at : at + 1] ^ state)[0]
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
        seen = dense + window + self._states[: self.n_tokens] + np.uint64(self._n_restored)
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
        if 0 < n_tokens < (self.n_tokens if self.has_state else self._n_restored):
            return False
        self.n_tokens = n_tokens
        if n_tokens == 0:
            self._window_first = 0
            self._n_restored = 0
        return True

    def outline(self, n_tokens: int) -> tuple[PartOutline, ...]:
        """Return the shapes of the state after so many tokens."""
        parts = [_rows_outline("dense", 0, n_tokens, N_DENSE_LAYERS)]
        if self.n_window:
            first = max(0, n_tokens - self.n_window)
            parts.append(_rows_outline("window", first, n_tokens - first, N_WINDOW_LAYERS))
        if self.has_state:
            halves: tuple[Role, Role] = ("R", "S")
            sections = tuple(SectionOutline(0, role, "f32", (1, 1)) for role in halves)
            parts.append(PartOutline("recurrent", n_tokens - 1, 1, sections))
        return tuple(parts)

    def landing(self, parts: tuple[PartOutline, ...]) -> KVState | None:
        """Return a state of these shapes, rows of zeros; None where this memory has others."""
        n_tokens = parts[0].first + parts[0].n_tokens if parts else 0
        if not 0 < n_tokens <= self.capacity or parts != self.outline(n_tokens):
            return None
        return KVState(
            n_tokens,
            tuple(_part(part, lambda s: np.zeros(s.shape, _DTYPES[s.type])) for part in parts),
        )

    def capture(self) -> KVState:
        """Copy the rows out: all of the dense layers, what the next token sees of the window's."""
        parts = (_part(part, self._place(part, copy=True)) for part in self.outline(self.n_tokens))
        return KVState(self.n_tokens, tuple(parts))

    def restore(self, state: KVState) -> None:
        """Put captured rows in place.

        Raises:
            SnapshotIncompatible: other parts, shapes or positions; the memory is left empty.
        """
        self.truncate(0)
        n_tokens = state.n_tokens
        if not 0 < n_tokens <= self.capacity:
            raise SnapshotIncompatible(f"{n_tokens} tokens into a room of {self.capacity}")
        wanted = self.outline(n_tokens)
        if tuple(map(_outline, state.parts)) != wanted:
            raise SnapshotIncompatible("the parts of the memory are others than here")
        self._rows[:, :, :n_tokens] = 0
        for part, its_outline in zip(state.parts, wanted, strict=True):
            place = self._place(its_outline)
            for section, shape in zip(part.sections, its_outline.sections, strict=True):
                place(shape)[...] = section.rows
        self._add_up(0, n_tokens)
        self.n_tokens = n_tokens
        self._window_first = wanted[1].first if self.n_window else 0
        self._n_restored = n_tokens if self.restore_moves else 0

    def _place(
        self, part: PartOutline, *, copy: bool = False
    ) -> Callable[[SectionOutline], NDArray[Any]]:
        """Return what gives the rows of each of a part's sections, as views or as a copy."""
        last = part.first + part.n_tokens
        states = self._states[part.first : last].view("<u4").reshape(-1, 1, 2)
        base = N_DENSE_LAYERS if part.kind == "window" else 0
        rows = self._rows[base:, :, part.first : last]

        def place(section: SectionOutline) -> NDArray[Any]:
            if part.kind == "recurrent":
                found = states[0, :, "RS".index(section.role)].reshape(1, 1)
            else:
                found = rows[section.layer, _ROLES.index(section.role)]
            return found.copy() if copy else found

        return place

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


def _rows_outline(
    kind: Literal["dense", "window"], first: int, n: int, n_layers: int
) -> PartOutline:
    sections = tuple(
        SectionOutline(layer, role, "f16", (n, N_CHANNELS))
        for role in _ROLES
        for layer in range(n_layers)
    )
    return PartOutline(kind, first, n, sections)


def _part(part: PartOutline, rows: Callable[[SectionOutline], NDArray[Any]]) -> Part:
    sections = tuple(Section(s.layer, s.role, s.type, rows(s)) for s in part.sections)
    return Part(part.kind, part.first, part.n_tokens, sections)


def _outline(part: Part) -> PartOutline:
    sections = tuple(
        SectionOutline(s.layer, s.role, s.type, (s.rows.shape[0], s.rows.shape[1]))
        for s in part.sections
    )
    return PartOutline(part.kind, part.first, part.n_tokens, sections)


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hash each number. Source: the finaliser of SplitMix64 (Steele, Lea, Flood 2014)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    result: NDArray[np.uint64] = values ^ (values >> np.uint64(31))
    return result
