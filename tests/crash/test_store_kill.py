"""A writer killed at any moment leaves whole snapshots, or none, and the next use cleans up."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import edgellm
from edgellm.store.snapshots import Hit, Miss, Saved, SnapshotStore

WRITER = Path(__file__).parent / "killed_writer.py"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(edgellm.__file__).parents[1])}
LOOP_TOKENS = 1500
MAX_DELAY_S = 0.15


def test_a_kill_before_each_step_leaves_all_or_nothing(tmp_path: Path, snapshot_files: Any):
    """Before the rename there is no snapshot; after it there is the right one."""
    subprocess.run(
        [sys.executable, WRITER, "steps", tmp_path], check=True, timeout=60, env=ENVIRONMENT
    )
    folders = sorted(tmp_path.iterdir(), key=lambda folder: int(folder.name))
    assert len(folders) > 10
    hits = []
    for folder in folders:
        store = SnapshotStore(folder)
        found = store.lookup(snapshot_files.FINGERPRINT, range(12))
        hits.append(isinstance(found, Hit))
        assert found == Miss("not stored", "not_stored") or isinstance(found, Hit)
        if isinstance(found, Hit):
            assert snapshot_files.same(snapshot_files.state(), found.state)
        assert store.check() == []  # looking up has swept
        again = store.save(snapshot_files.FINGERPRINT, range(12), snapshot_files.state())
        assert isinstance(again, Saved) != hits[-1]
    # The last two children died after the rename, or not at all.
    assert hits == sorted(hits)
    assert hits.count(True) == 2


@pytest.mark.parametrize("n_kills", [10, pytest.param(100, marks=pytest.mark.full)])
def test_a_kill_at_a_random_moment_is_harmless(tmp_path: Path, snapshot_files: Any, n_kills: int):
    """Kill -9 in the middle of saving: the next process finds right states or none."""
    rng = random.Random(n_kills)
    states = [snapshot_files.state(LOOP_TOKENS, seed=seed) for seed in range(4)]
    n_hits = 0
    for round_ in range(n_kills):
        root = tmp_path / str(round_)
        _kill_after(rng.uniform(0, MAX_DELAY_S), root)
        store = SnapshotStore(root)
        for i in range(1000):
            tokens = range(i, i + LOOP_TOKENS)
            found = store.lookup(snapshot_files.FINGERPRINT, tokens)
            if isinstance(found, Miss):
                assert found == Miss("not stored", "not_stored")
                break
            n_hits += 1
            assert snapshot_files.same(states[i % 4], found.state)
        assert store.check() == []
        outcome = store.save(snapshot_files.FINGERPRINT, tokens, states[0])
        assert isinstance(outcome, Saved)
        store.remove()
    assert n_hits  # the kills fell into real work


def _kill_after(delay_s: float, root: Path) -> None:
    """Start a writer, let it save for a while, and kill it."""
    command = [sys.executable, WRITER, "loop", root]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=ENVIRONMENT) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        time.sleep(delay_s)
        assert writer.poll() is None
        writer.kill()
