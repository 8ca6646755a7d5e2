"""What was saved comes back, bit for bit, whatever its type and memory layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edgellm.store.snapshots import Hit, Saved, SnapshotStore
from edgellm.store.state import KVState, Part, Section

if TYPE_CHECKING:
    from pathlib import Path


def round_trip(folder: Path, files: Any, state: KVState) -> Hit:
    """Save a state and look it up again."""
    store = SnapshotStore(folder)
    tokens = list(range(state.n_tokens))
    assert isinstance(store.save(files.FINGERPRINT, tokens, state), Saved)
    found = store.lookup(files.FINGERPRINT, tokens)
    assert isinstance(found, Hit), found
    return found


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32", "q8_0", "q4_0"])
@pytest.mark.parametrize("n", [1, 5, 129])
def test_every_type_and_part_comes_back(tmp_path: Path, snapshot_files: Any, kind: str, n: int):
    """Dense, window and opaque parts of each element type are the same bits again."""
    state = snapshot_files.state(n, kind)
    found = round_trip(tmp_path, snapshot_files, state)
    assert snapshot_files.same(state, found.state)
    assert found.info.n_tokens == n


def test_any_strides_are_put_in_order(tmp_path: Path, snapshot_files: Any):
    """Slices, steps, reversed and transposed views are stored as the values they show."""
    base = snapshot_files.rows(1, 64, 64, "f16")
    wide = snapshot_files.rows(2, 64, 64, "f32")
    views = [base[:8, :8], base[::8, ::2], base[7::-1], base[:, :8].T, wide[:8].T[:8], wide.T[:8]]
    views[0].flags.writeable = False
    kinds = ["f32" if view.dtype == np.uint32 else "f16" for view in views]
    sections = tuple(
        Section(i, "K", kind, view) for i, (kind, view) in enumerate(zip(kinds, views, strict=True))
    )
    state = KVState(8, (Part("dense", 0, 8, sections),))
    found = round_trip(tmp_path, snapshot_files, state)
    assert snapshot_files.same(state, found.state)
    assert all(s.rows.flags.c_contiguous for s in found.state.parts[0].sections)


def test_a_part_without_layers_is_kept(tmp_path: Path, snapshot_files: Any):
    """Some models announce a memory that no layer uses; its place in the order counts."""
    window = Part("window", 3, 2, snapshot_files.layers(1, 2, 32, "f16", 3))
    state = KVState(5, (Part("dense", 0, 5, ()), window))
    found = round_trip(tmp_path, snapshot_files, state)
    assert snapshot_files.same(state, found.state)
    assert len(found.state.parts) == 2


def test_keys_alone_are_kept(tmp_path: Path, snapshot_files: Any):
    """Compressed attention has no values."""
    keys = Section(0, "K", "f16", snapshot_files.rows(4, 6, 32, "f16"))
    state = KVState(6, (Part("dense", 0, 6, (keys,)),))
    assert snapshot_files.same(state, round_trip(tmp_path, snapshot_files, state).state)


def test_the_state_is_the_readers_own(tmp_path: Path, snapshot_files: Any):
    """Two lookups share no memory, and neither shares the file's."""
    state = snapshot_files.state()
    found = round_trip(tmp_path, snapshot_files, state)
    found.state.parts[0].sections[0].rows[:] = 0
    again = SnapshotStore(tmp_path).lookup(snapshot_files.FINGERPRINT, list(range(12)))
    assert isinstance(again, Hit)
    assert snapshot_files.same(state, again.state)
