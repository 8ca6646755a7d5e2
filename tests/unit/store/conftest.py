"""What the tests of the store share."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from edgellm.store.snapshots import Saved, SnapshotStore

if TYPE_CHECKING:
    from pathlib import Path

    from edgellm.store.state import Fingerprint

TOKENS = list(range(100, 112))
NOW_S = 1_700_000_000.9


@pytest.fixture(scope="session")
def dead_pid() -> int:
    """Return the id of a process that is no more."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    """Open a store at a known time."""
    return SnapshotStore(tmp_path / "snapshots", clock=lambda: NOW_S)


@pytest.fixture
def fingerprint(snapshot_files: Any) -> Fingerprint:
    """Name the model of these tests."""
    return snapshot_files.FINGERPRINT


@pytest.fixture
def saved(store: SnapshotStore, fingerprint: Fingerprint, snapshot_files: Any) -> Saved:
    """Save one snapshot."""
    outcome = store.save(fingerprint, TOKENS, snapshot_files.state())
    assert isinstance(outcome, Saved)
    return outcome
