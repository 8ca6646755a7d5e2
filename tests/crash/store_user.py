"""A process that uses a store beside others. Not a test: the tests of this folder start it.

store_user.py once ROOT LOG         read one cold prefix as all of them do, and print its hash
store_user.py mixed ROOT SEED N CAP  N mixed operations, then a line of JSON that counts them
store_user.py busy ROOT SEED CAP     the same for ever, after the line `ready`
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import random
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np

from edgellm.store.snapshots import Hit, Saved, SnapshotStore
from edgellm.store.state import Anchor, Fingerprint, KVState, Part, Section

FINGERPRINT = Fingerprint(hard=(("model", "ab" * 32),))
N_PREFIXES = 24
CUTS = (150, 300)
WIDTH = 128
WAIT_S = 20.0


def state(i: int, n: int) -> KVState:
    """Return the state after `n` tokens of prefix `i`: always the same bits."""
    rng = np.random.default_rng(i)
    arrays = [rng.integers(0, 1 << 16, (CUTS[-1], WIDTH), np.uint16) for _ in "KV"]
    sections = (Section(0, "K", "f16", arrays[0][:n]), Section(0, "V", "f16", arrays[1][:n]))
    return KVState(n, (Part("dense", 0, n, sections),))


def tokens(i: int, n: int = CUTS[-1]) -> list[int]:
    """Return the first tokens of prefix `i`."""
    return list(range(1000 * i, 1000 * i + n))


def digest(state: KVState) -> str:
    """Return a hash of all rows."""
    parts = [s.rows.tobytes() for part in state.parts for s in part.sections]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def is_right(i: int, hit: Hit) -> bool:
    """Return whether a hit is bit for bit what any process saved."""
    return digest(hit.state) == digest(state(i, hit.state.n_tokens))


def read_once(store: SnapshotStore, log: Path) -> str:
    """Get a cold prefix as a session does; every prefill leaves a line in the log."""
    while True:
        found = store.lookup(FINGERPRINT, tokens(0))
        if isinstance(found, Hit):
            return digest(found.state)
        lease = store.lease(FINGERPRINT, tokens(0))
        if lease is None:
            store.await_other(FINGERPRINT, tokens(0), WAIT_S)
            continue
        with lease:
            if isinstance(store.lookup(FINGERPRINT, tokens(0)), Hit):
                continue  # another one was done between the look and the lease
            with log.open("a") as file:
                file.write("prefill\n")
            time.sleep(0.1)
            store.save(FINGERPRINT, tokens(0), state(0, CUTS[-1]))


def disk_bytes(root: Path) -> int:
    """Count what the disk gives to everything below a folder, as `du` does."""
    n_bytes = 0
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            with contextlib.suppress(FileNotFoundError):
                n_bytes += (Path(folder) / name).lstat().st_blocks * 512
    return n_bytes


def step(store: SnapshotStore, rng: random.Random, counts: Counter[str]) -> None:
    """Do one operation, chosen at random, and count what came of it."""
    i = int(N_PREFIXES * rng.random() ** 2)
    if rng.random() < 0.05:
        store.prune(rng.randrange(1 << 20))
        counts["prune"] += 1
        return
    found = store.longest(FINGERPRINT, tokens(i), CUTS)
    if isinstance(found, Hit):
        counts["hit" if is_right(i, found) else "WRONG"] += 1
    else:
        counts[found.code] += 1
    if isinstance(found, Hit) and found.state.n_tokens == CUTS[-1]:
        return
    lease = store.lease(FINGERPRINT, tokens(i))
    if lease is None:
        done = store.await_other(FINGERPRINT, tokens(i), 0.05)
        counts["waited" if done else "timeout"] += 1
        return
    with lease:
        base: Anchor | None = None
        for n in CUTS:
            outcome = store.save(FINGERPRINT, tokens(i, n), state(i, n), base=base)
            base = outcome.anchor
            counts["saved" if isinstance(outcome, Saved) else outcome.reason] += 1


def mixed(root: Path, seed: int, n: int, cap: int) -> None:
    """Do so many operations, and look at the disk after each one."""
    store, rng, counts = SnapshotStore(root, cap_bytes=cap), random.Random(seed), Counter[str]()
    most = 0
    for _ in range(n):
        step(store, rng, counts)
        most = max(most, disk_bytes(root))
    print(json.dumps({"counts": counts, "most_bytes": most}))


def busy(root: Path, seed: int, cap: int) -> None:
    """Work until the end."""
    store, rng = SnapshotStore(root, cap_bytes=cap), random.Random(seed)
    print("ready", flush=True)
    for _ in itertools.count():
        step(store, rng, Counter())


def main(mode: str, root: str, *rest: str) -> None:
    """Run one mode; see the head of this file."""
    if mode == "once":
        print(read_once(SnapshotStore(Path(root)), Path(rest[0])))
    else:
        {"mixed": mixed, "busy": busy}[mode](Path(root), *map(int, rest))


if __name__ == "__main__":
    main(*sys.argv[1:])
