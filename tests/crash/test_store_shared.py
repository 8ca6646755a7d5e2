"""One store, many processes, some of them killed: it is right, bounded, and nobody waits for ever."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import edgellm
from edgellm.store.disk.survey import survey
from edgellm.store.snapshots import Hit, Miss, Saved, SnapshotStore

USER = Path(__file__).parent / "store_user.py"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(edgellm.__file__).parents[1])}
CAP_BYTES = 1_200_000
ENTRY_BYTES = 200_000
"""More than the largest file of these tests takes, with its folder."""
MAX_DELAY_S = 0.25


@pytest.fixture(scope="module")
def user() -> ModuleType:
    """Load the program that the other processes run."""
    spec = importlib.util.spec_from_file_location("store_user", USER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _start(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, USER, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)


def _outputs(processes: list[subprocess.Popen[str]]) -> list[str]:
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes)
    return outputs


@pytest.mark.parametrize("n", [4, pytest.param(8, marks=pytest.mark.full)])
def test_a_cold_prefix_is_read_once(tmp_path: Path, n: int, user: ModuleType):
    """Of several processes that want it at once one reads it, and all get the same bits."""
    log = tmp_path / "log"
    outputs = _outputs([_start("once", tmp_path / "store", log) for _ in range(n)])
    assert log.read_text() == "prefill\n"
    assert {user.digest(user.state(0, user.CUTS[-1])) + "\n"} == set(outputs)
    assert list((tmp_path / "store" / "locks").glob("*.lock")) == []


@pytest.mark.parametrize(("n", "n_steps"), [(4, 25), pytest.param(8, 100, marks=pytest.mark.full)])
def test_mixed_work_of_many_processes(tmp_path: Path, n: int, n_steps: int):
    """Every hit is right, and at no moment is more on the disk than the cap and one file."""
    users = [_start("mixed", tmp_path, seed, n_steps, CAP_BYTES) for seed in range(n)]
    total: dict[str, int] = {}
    for output in _outputs(users):
        result = json.loads(output)
        assert result["most_bytes"] <= CAP_BYTES + ENTRY_BYTES
        for code, count in result["counts"].items():
            total[code] = total.get(code, 0) + count
    expected = {"hit", "not_stored", "base_missing", "saved", "already stored", "waited"}
    assert set(total) <= expected | {"timeout", "prune", "other processes are saving"}
    assert min(total.get("hit", 0), total.get("saved", 0)) > 0
    store = SnapshotStore(tmp_path, cap_bytes=CAP_BYTES)
    assert [finding.problem for finding in store.check() if "lean" not in finding.problem] == []
    assert survey(tmp_path).n_bytes <= CAP_BYTES


@pytest.mark.parametrize("n_kills", [12, pytest.param(200, marks=pytest.mark.full)])
def test_a_kill_in_the_middle_of_sharing_is_harmless(
    tmp_path: Path, n_kills: int, user: ModuleType
):
    """Kill -9 while saving, evicting or waiting: no wrong hit, no leftover, no lock that stays."""
    rng = random.Random(n_kills)
    survivor = _start("busy", tmp_path, 99, CAP_BYTES)
    try:
        n_hits = sum(_round(tmp_path, rng, seed, user) for seed in range(n_kills))
    finally:
        survivor.kill()
        survivor.communicate()
    assert n_hits
    store = SnapshotStore(tmp_path, cap_bytes=CAP_BYTES)
    store.prune()
    assert store.check() == []
    assert list((tmp_path / "locks").glob("*.lock")) == []
    outcome = store.save(user.FINGERPRINT, user.tokens(1000), user.state(1000, user.CUTS[-1]))
    assert isinstance(outcome, Saved)


def _round(root: Path, rng: random.Random, seed: int, user: ModuleType) -> int:
    """Kill a process at work, and use the store as the next one does; return the hits."""
    victim = _start("busy", root, seed, CAP_BYTES)
    assert victim.stdout is not None
    assert victim.stdout.readline() == "ready\n"
    time.sleep(rng.uniform(0, MAX_DELAY_S))
    victim.kill()
    victim.communicate()
    store = SnapshotStore(root, cap_bytes=CAP_BYTES)
    n_hits = 0
    for i in range(user.N_PREFIXES):
        found = store.longest(user.FINGERPRINT, user.tokens(i), user.CUTS)
        if isinstance(found, Hit):
            assert user.is_right(i, found)
            n_hits += 1
        else:
            assert isinstance(found, Miss)
            assert found.code in {"not_stored", "base_missing"}
    left = [path.name for path in root.rglob(f".*.{victim.pid}.*.tmp")]
    assert left == [] or _sweeps(root, victim.pid)
    assert survey(root).n_bytes <= CAP_BYTES + ENTRY_BYTES
    return n_hits


def _sweeps(root: Path, pid: int) -> bool:
    """Return whether what a killed process left goes as soon as nobody is writing."""
    for _ in range(100):
        SnapshotStore(root, cap_bytes=CAP_BYTES)._room.sweep()
        if list(root.rglob(f".*.{pid}.*.tmp")) == []:
            return True
        time.sleep(0.02)
    return False


def test_two_processes_stay_below_a_cap_of_20_mb(tmp_path: Path):
    """Fifty prefixes of a megabyte each, by two at once: the disk never has more than one too many."""
    users = [
        subprocess.Popen([sys.executable, "-c", FIFTY, tmp_path, str(i)], env=ENVIRONMENT)
        for i in range(2)
    ]
    most = 0
    while any(process.poll() is None for process in users):
        most = max(most, survey(tmp_path).n_bytes)
        time.sleep(0.005)
    assert [process.returncode for process in users] == [0, 0]
    assert 15_000_000 < most <= 20_000_000 + 1_100_000
    assert survey(tmp_path).n_bytes <= 20_000_000


FIFTY = """
import sys
from pathlib import Path
import numpy as np
from edgellm.store.disk.survey import survey
from edgellm.store.snapshots import Saved, SnapshotStore
from edgellm.store.state import Fingerprint, KVState, Part, Section
rows = np.random.default_rng(1).integers(0, 1 << 16, (500, 500), np.uint16)
state = KVState(500, (Part("dense", 0, 500, (Section(0, "K", "f16", rows), Section(0, "V", "f16", rows))),))
store = SnapshotStore(Path(sys.argv[1]), cap_bytes=20_000_000)
for i in range(50):
    first = 1000 * (50 * int(sys.argv[2]) + i)
    outcome = store.save(Fingerprint(()), range(first, first + 500), state)
    assert isinstance(outcome, Saved), outcome
"""


def test_a_small_disk_is_never_filled(tmp_path: Path, snapshot_files: Any):
    """On a disk of 8 MB that a store may fill up to the last megabyte, saves go on by eviction."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(disk)]
    if os.geteuid() or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small file system takes root and a right that containers lack")
    try:
        store = SnapshotStore(disk / "store", cap_bytes=1 << 30, floor_bytes=1 << 20)
        for i in range(30):
            tokens = range(i, i + 1500)
            outcome = store.save(snapshot_files.FINGERPRINT, tokens, snapshot_files.state(1500))
            assert isinstance(outcome, Saved)
            status = os.statvfs(disk)
            assert status.f_bavail * status.f_frsize >= 1 << 20
        assert store.check() == []
    finally:
        subprocess.run(["umount", disk], check=True)
