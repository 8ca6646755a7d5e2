"""Whatever happens to a snapshot, the next run is right: killed writers, flipped bits, cut files.

With a real engine over a tiny model: what is compared is the logits' bits, not a checksum's word.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edgellm.core import Done, Message, Request, Sampling
from edgellm.engines.base import EngineSettings
from edgellm.engines.llamacpp import LlamaCppEngine
from edgellm.errors import SnapshotIncompatible
from edgellm.runtime.local import LocalSession
from edgellm.store.snapshots import Hit, SnapshotStore

SYSTEM = "The cache keeps the keys and the values of every token. " * 12
REQUEST = Request(
    (Message("system", SYSTEM), Message("user", "What is the capital?")),
    max_tokens=8,
    sampling=Sampling(temperature=0),
)

# Kills itself at the N-th step of writing, or is killed by the clock of its parent.
_WRITER = """
import os, signal, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[4])
from test_snapshot_damage import answer
from edgellm.store.snapshots import SnapshotStore
steps = int(sys.argv[3])
def fault(step, path):
    global steps
    steps -= 1
    time.sleep(0.002)
    if not steps:
        os.kill(os.getpid(), signal.SIGKILL)
print(answer(Path(sys.argv[1]), SnapshotStore(Path(sys.argv[2]), fault=fault)).text)
"""


def answer(model: Path, store: SnapshotStore | None) -> Done:
    """One run of the fixed request, as a program would make it."""
    engine = LlamaCppEngine(model, EngineSettings(n_threads=1))
    with LocalSession(engine, store=store) as session:
        return session.generate(REQUEST)


@pytest.mark.parametrize(
    "n_kills", [8, pytest.param(100, marks=pytest.mark.full)], ids=["few", "hundred"]
)
def test_killed_writers_leave_a_right_next_run(tiny_models, tmp_path, n_kills):
    """After kill -9 at a random step of the write, the next run is right and cleans the store."""
    model, seed = tiny_models / "tiny-llama.gguf", random.Random(3)
    steps: list[str] = []
    counted = SnapshotStore(tmp_path / "counted", fault=lambda step, _: steps.append(step))
    expected = answer(model, counted).text
    n_killed = n_orphans = 0
    for turn in range(n_kills):
        root = tmp_path / f"store-{turn}"
        step = seed.randint(1, len(steps))
        child = subprocess.run(
            [
                sys.executable,
                "-c",
                _WRITER,
                str(model),
                str(root),
                str(step),
                str(Path(__file__).parent),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert child.returncode in (0, -signal.SIGKILL), child.stderr
        n_killed += child.returncode == -signal.SIGKILL
        n_orphans += len(list(root.rglob("*.tmp")))
        assert answer(model, SnapshotStore(root)).text == expected
        assert SnapshotStore(root).check() == []  # nothing is left for `check --fix`
        assert answer(model, SnapshotStore(root)).snapshot.reason == "hit"
    assert n_killed > n_kills // 2
    assert n_orphans > n_kills // 4  # the kills fell into the write, not before or after it


def test_a_kill_in_the_middle_really_happened(tiny_models, tmp_path):
    """The harness kills: the first step of a write ends the child by signal, with nothing stored."""
    child = subprocess.run(
        [sys.executable, "-c", _WRITER, str(tiny_models / "tiny-llama.gguf"), str(tmp_path / "s"), "2",
         str(Path(__file__).parent)],
        capture_output=True,
        check=False,
    )  # fmt: skip
    assert child.returncode == -signal.SIGKILL
    assert list(SnapshotStore(tmp_path / "s").entries()) == []


def damage(data: bytes, seed: random.Random) -> bytes:
    """Flip bits, cut, extend, zero a span or move a span of a file."""
    out = bytearray(data)
    at = seed.randrange(len(out))
    match seed.randrange(5):
        case 0:
            for _ in range(seed.randint(1, 3)):
                out[seed.randrange(len(out))] ^= 1 << seed.randrange(8)
        case 1:
            del out[at:]
        case 2:
            out += seed.randbytes(seed.randint(1, 200))
        case 3:
            out[at : at + 64] = bytes(len(out[at : at + 64]))
        case _:
            span = out[at : at + 64]
            del out[at : at + 64]
            to = seed.randrange(len(out) + 1)
            out[to:to] = span
    return bytes(out)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize("n", [500, pytest.param(5000, marks=pytest.mark.full)], ids=str)
def test_damaged_snapshots_are_misses(tiny_models, tmp_path, name, n):
    """Random damage: the store misses, or gives back exactly the state that makes the same bits."""
    seed, store = random.Random(7), SnapshotStore(tmp_path / "store")
    engine = LlamaCppEngine(tiny_models / f"tiny-{name}.gguf", EngineSettings(n_threads=1))
    engine.reserve(512)
    prefix = [i * 7 % 500 for i in range(150)]
    engine.decode(prefix)
    state = engine.capture()
    fingerprint = engine.fingerprint()
    path = store.save(fingerprint, prefix, state).path
    whole = path.read_bytes()
    engine.restore(state)
    expected = engine.decode([5, 6, 7]).copy()
    n_hits = 0
    for _ in range(n):
        damaged = damage(whole, seed)
        path.write_bytes(damaged)
        found = store.lookup(fingerprint, prefix)
        if isinstance(found, Hit):
            n_hits += 1
            engine.restore(found.state)
            assert np.array_equal(expected, engine.decode([5, 6, 7]))
            assert damaged == whole
    assert n_hits < n // 20  # zeroing zeros changes nothing; the rest must be caught
    path.write_bytes(whole)
    assert isinstance(store.lookup(fingerprint, prefix), Hit)
    engine.close()


def test_five_hundred_failed_restores_poison_nothing(tiny_models):
    """A context that refused many foreign states answers like a fresh one."""
    opened = [
        LlamaCppEngine(tiny_models / f"tiny-{name}.gguf", EngineSettings(n_threads=1))
        for name in ("llama", "qwen3moe", "llama")
    ]
    engine, other, fresh = opened
    for one in opened:
        one.reserve(512)
    other.decode(list(range(100)))
    foreign = other.capture()
    for _ in range(500):
        with pytest.raises(SnapshotIncompatible):
            engine.restore(foreign)
    prompt = list(range(200))
    assert np.array_equal(engine.decode(prompt), fresh.decode(prompt))
    for one in opened:
        one.close()
