"""Where rows land: in the engine's own memory where it gives some that fits, else in fresh arrays."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edgellm.core import Tier
from edgellm.store.format.codec import pack_state, unpack_state
from edgellm.store.snapshots import Hit, Miss, Saved, SnapshotStore
from edgellm.store.state import KVState, PackedState, Part, PartOutline, Section

if TYPE_CHECKING:
    from collections.abc import Callable

TOKENS = list(range(100, 140))
DTYPES = {"f32": np.uint32, "f16": np.uint16, "bf16": np.uint16}


class Blob:
    """Lays rows out in one buffer as an engine does: at odd places, values channel by channel."""

    def __init__(self, *, transposed: bool = False, at: int = 3) -> None:
        self.transposed = transposed
        self.at = at
        self.outlines: list[tuple[PartOutline, ...]] = []
        self.given: KVState | None = None

    def __call__(self, outline: tuple[PartOutline, ...]) -> KVState:
        """Give a state of this outline in a buffer full of ones."""
        self.outlines.append(outline)
        n_bytes = sum(s.shape[0] * s.shape[1] * 4 + 64 for p in outline for s in p.sections)
        self._free = np.full(n_bytes + self.at, 0xFF, np.uint8)[self.at :]
        parts = tuple(
            Part(p.kind, p.first, p.n_tokens, tuple(self._section(s) for s in p.sections))
            for p in outline
        )
        self.given = KVState(outline[0].first + outline[0].n_tokens, parts)
        return self.given

    def _section(self, section: Any) -> Section:
        dtype = np.dtype(DTYPES.get(section.type, np.uint8))
        n, m = section.shape
        turned = self.transposed and section.role == "V"
        shape = (m, n) if turned else (n, m)
        data = self._free[: n * m * dtype.itemsize]
        self._free = self._free[n * m * dtype.itemsize + 7 :]
        rows = np.ndarray(shape, dtype, data.data)
        return Section(section.layer, section.role, section.type, rows.T if turned else rows)


def save(store: SnapshotStore, files: Any, state: KVState | PackedState, **how: Any) -> Saved:
    """Save a state of the first tokens."""
    saved = store.save(files.FINGERPRINT, TOKENS[: state.n_tokens], state, **how)
    assert isinstance(saved, Saved), saved
    return saved


@pytest.mark.parametrize("at", [0, 1, 2, 3])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("kind", ["f16", "bf16", "f32", "q8_0"])
def test_rows_land_in_the_memory_that_was_given(
    store: SnapshotStore, snapshot_files: Any, kind: str, transposed: bool, at: int
):
    """The hit's state is the very object, whatever the strides and addresses of its rows."""
    state = snapshot_files.state(12, kind)
    save(store, snapshot_files, state)
    blob = Blob(transposed=transposed, at=at)
    found = store.lookup(snapshot_files.FINGERPRINT, TOKENS[:12], landing=blob)
    assert isinstance(found, Hit), found
    assert found.state is blob.given
    assert snapshot_files.same(state, found.state)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("tier", [Tier.Q8, Tier.Q6, Tier.Q5, Tier.Q4])
def test_packed_rows_are_unpacked_where_they_land(
    store: SnapshotStore, snapshot_files: Any, tier: Tier, transposed: bool
):
    """No second copy is made of what was packed."""
    packed = pack_state(snapshot_files.smooth(40), tier)
    assert isinstance(packed, PackedState)
    save(store, snapshot_files, packed)
    blob = Blob(transposed=transposed)
    found = store.lookup(snapshot_files.FINGERPRINT, TOKENS, tier, landing=blob)
    assert isinstance(found, Hit), found
    assert found.state is blob.given
    assert snapshot_files.same(unpack_state(packed), found.state)


def _stepping(outline: tuple[PartOutline, ...], steps: tuple[int, int]) -> KVState:
    """Give rows that step through memory, backwards where a step is negative."""
    parts = []
    for part in outline:
        sections = []
        for s in part.sections:
            shape = tuple(n * abs(step) for n, step in zip(s.shape, steps, strict=True))
            rows = np.zeros(shape, DTYPES.get(s.type, np.uint8))[:: steps[0], :: steps[1]]
            sections.append(Section(s.layer, s.role, s.type, rows))
        parts.append(Part(part.kind, part.first, part.n_tokens, tuple(sections)))
    return KVState(outline[0].first + outline[0].n_tokens, tuple(parts))


@pytest.mark.parametrize("steps", [(-1, 1), (1, -1), (-1, -1), (1, 2), (2, 3)])
@pytest.mark.parametrize("how", ["state", "smooth", "packed"])
def test_rows_land_in_memory_of_any_strides(
    store: SnapshotStore, snapshot_files: Any, how: str, steps: tuple[int, int]
):
    """Also where neither rows nor columns have their elements side by side."""
    tier = Tier.Q4 if how == "packed" else Tier.EXACT
    state = snapshot_files.packed(tier) if how == "packed" else getattr(snapshot_files, how)()
    save(store, snapshot_files, state, lossless=how == "smooth")
    given: list[KVState] = []

    def landing(outline: tuple[PartOutline, ...]) -> KVState:
        given.append(_stepping(outline, steps))
        return given[-1]

    found = store.lookup(snapshot_files.FINGERPRINT, TOKENS[:12], tier, landing=landing)
    assert isinstance(found, Hit), found
    assert found.state is given[0]
    expected = unpack_state(state) if isinstance(state, PackedState) else state
    assert snapshot_files.same(expected, found.state)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("kind", ["f16", "bf16", "f32"])
def test_byte_planes_are_joined_where_they_land(
    store: SnapshotStore, snapshot_files: Any, kind: str, transposed: bool
):
    """Compressed rows too, in every layout."""
    state = snapshot_files.smooth(40, kind)
    save(store, snapshot_files, state, lossless=True)
    blob = Blob(transposed=transposed)
    found = store.lookup(snapshot_files.FINGERPRINT, TOKENS, landing=blob)
    assert isinstance(found, Hit), found
    assert found.state is blob.given
    assert snapshot_files.same(state, found.state)


@pytest.mark.parametrize("transposed", [False, True])
def test_all_files_of_a_chain_land_in_one_memory(
    store: SnapshotStore, snapshot_files: Any, transposed: bool
):
    """Each fills its slice of the same rows; the outline is that of the whole state."""
    short = snapshot_files.hybrid(8, 1)
    base = save(store, snapshot_files, short)
    state = snapshot_files.grown(short, 12, 2)
    save(store, snapshot_files, state, base=base.anchor)
    blob = Blob(transposed=transposed)
    found = store.lookup(snapshot_files.FINGERPRINT, TOKENS[:12], landing=blob)
    assert isinstance(found, Hit), found
    assert found.state is blob.given
    assert snapshot_files.same(state, found.state)
    (outline,) = blob.outlines
    assert [(p.kind, p.first, p.n_tokens) for p in outline] == [
        ("dense", 0, 12),
        ("window", 7, 5),
        ("recurrent", 11, 1),
        ("opaque", 0, 12),
    ]
    assert {s.shape[0] for s in outline[0].sections} == {12}


def _read_only(state: KVState) -> KVState:
    for part in state.parts:
        for section in part.sections:
            section.rows.flags.writeable = False
    return state


def _with_first(state: KVState, **fields: Any) -> KVState:
    first = dataclasses.replace(state.parts[0], **fields)
    return KVState(state.n_tokens, (first, *state.parts[1:]))


def _with_rows(state: KVState, change: Callable[[Any], Any]) -> KVState:
    section = state.parts[0].sections[0]
    changed = dataclasses.replace(section, rows=change(section.rows))
    return _with_first(state, sections=(changed, *state.parts[0].sections[1:]))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda _: None,
        _read_only,
        lambda state: KVState(state.n_tokens, state.parts[1:]),
        lambda state: KVState(state.n_tokens + 1, state.parts),
        lambda state: _with_first(state, sections=()),
        lambda state: _with_first(state, first=1),
        lambda state: _with_rows(state, lambda rows: rows[:-1]),
        lambda state: _with_rows(state, lambda rows: rows.view(np.int16)),
        lambda state: _with_rows(state, lambda rows: rows.view(np.uint8)),
        lambda state: _with_rows(state, lambda rows: rows.astype(">u2")),
    ],
)
def test_memory_that_does_not_fit_is_not_used(
    store: SnapshotStore, snapshot_files: Any, spoil: Callable[[KVState], KVState | None]
):
    """Whoever gives none, or the wrong one, gets fresh arrays."""
    state = snapshot_files.state()
    save(store, snapshot_files, state)
    blob = Blob()
    found = store.lookup(
        snapshot_files.FINGERPRINT, TOKENS[:12], landing=lambda outline: spoil(blob(outline))
    )
    assert isinstance(found, Hit), found
    assert found.state is not blob.given
    assert snapshot_files.same(state, found.state)


def test_nothing_is_asked_for_before_the_header_is_right(store: SnapshotStore, snapshot_files: Any):
    """Memory is taken for what the file can fill; what was filled by damage is not handed out."""
    saved = save(store, snapshot_files, snapshot_files.state())
    content = saved.path.read_bytes()
    blob = Blob()
    saved.path.write_bytes(content[:-1])
    found = store.lookup(snapshot_files.FINGERPRINT, TOKENS[:12], landing=blob)
    assert isinstance(found, Miss)
    assert blob.outlines == []
    save(store, snapshot_files, snapshot_files.state())
    damaged = bytearray(saved.path.read_bytes())
    damaged[-100] ^= 1
    saved.path.write_bytes(damaged)
    found = store.lookup(snapshot_files.FINGERPRINT, TOKENS[:12], landing=blob)
    assert isinstance(found, Miss)
    assert found.code == "corrupt"
    assert len(blob.outlines) == 1
