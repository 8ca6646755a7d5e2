"""A process that saves snapshots until it is killed. Not a test: `test_store_kill.py` starts it.

killed_writer.py steps ROOT   for N = 1, 2, ...: a child that kills itself before its N-th step
killed_writer.py loop ROOT    save one snapshot after the other, for ever
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import signal
import sys
from pathlib import Path
from typing import Any

from edgellm.store.snapshots import SnapshotStore

LOOP_TOKENS = 1500


def load_builders() -> Any:
    """Load the builders of states."""
    path = Path(__file__).parents[1] / "attacks" / "snapshot_files.py"
    spec = importlib.util.spec_from_file_location("snapshot_files", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class KillAt:
    """A fault hook that kills its process with SIGKILL before the N-th step."""

    def __init__(self, n: int) -> None:
        self.left = n

    def __call__(self, step: str, path: str) -> None:
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)


def steps(root: Path, files: Any) -> None:
    """Kill a child at each step of a save, in a folder of its own, until one gets through."""
    for n in itertools.count(1):
        child = os.fork()
        if not child:
            store = SnapshotStore(root / str(n), fault=KillAt(n))
            store.save(files.FINGERPRINT, range(12), files.state())
            os._exit(0)
        if os.WIFEXITED(os.waitpid(child, 0)[1]):
            return


def loop(root: Path, files: Any) -> None:
    """Save snapshots of ever new tokens, saying when the first one begins."""
    store = SnapshotStore(root)
    states = [files.state(LOOP_TOKENS, seed=seed) for seed in range(4)]
    print("ready", flush=True)
    for i in itertools.count():
        store.save(files.FINGERPRINT, range(i, i + LOOP_TOKENS), states[i % len(states)])


if __name__ == "__main__":
    {"steps": steps, "loop": loop}[sys.argv[1]](Path(sys.argv[2]), load_builders())
