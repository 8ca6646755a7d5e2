"""The programs that `store.py` runs, each in a process of its own: one job as JSON in, figures out.

Run as `python _store_programs.py NAME` with a `Job` as JSON on stdin; the figures, as JSON, are the
last line on stdout. Times are medians of the job's repeats, in milliseconds.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgellm.core import Tier
from edgellm.engines.base import EngineSettings
from edgellm.engines.llamacpp import LlamaCppEngine
from edgellm.store.format.codec import pack_state, unpack_state
from edgellm.store.snapshots import Hit, Saved, SnapshotStore
from edgellm.store.state import Fingerprint, KVState, PackedState

LOSSLESS = "lossless"
KINDS = ("exact", "q8", "q4", LOSSLESS)


@dataclass(frozen=True, slots=True)
class Job:
    """What one process is to do.

    Attributes:
        model: a GGUF file.
        folder: where its store lies.
        text: what prompts are cut from.
        n_prefix, n_suffix: lengths in tokens.
        n_threads: CPU threads.
        kv_type: type of keys and values.
        repeats: of everything that is timed.
    """

    model: str
    folder: str
    text: str
    n_prefix: int
    n_suffix: int = 16
    n_threads: int = 0
    kv_type: str = "f16"
    repeats: int = 7


class Bench:
    """A loaded model with a context, and a store for each way to keep a state."""

    def __init__(self, job: Job) -> None:
        settings = EngineSettings(
            n_threads=job.n_threads, n_gpu_layers=0, kv_type=job.kv_type, flash_attention="on"
        )
        self.job = job
        self.engine = LlamaCppEngine(Path(job.model), settings)
        self.engine.reserve(job.n_prefix + 1024)
        tokens = self.engine.tokenize(job.text, special=False, add_bos=True)
        while len(tokens) < job.n_prefix + 512:
            tokens = tokens + tokens[1:]
        self.prefix = tokens[: job.n_prefix]
        self.suffix = tokens[job.n_prefix : job.n_prefix + job.n_suffix]
        self.stores = {kind: SnapshotStore(Path(job.folder, kind)) for kind in KINDS}

    @property
    def fingerprint(self) -> Fingerprint:
        """What the engine is now."""
        return self.engine.fingerprint()

    def prefill(self) -> float:
        """Decode the prefix into an empty memory; return the milliseconds."""
        self.engine.truncate(0)
        started = time.perf_counter()
        self.engine.decode(self.prefix)
        return (time.perf_counter() - started) * 1000

    def find(self, kind: str) -> Hit:
        """Look the prefix up and read it to where the engine wants it."""
        tier = Tier.EXACT if kind == LOSSLESS else Tier(kind)
        found = self.stores[kind].lookup(
            self.fingerprint, self.prefix, tier, landing=self.engine.landing
        )
        if not isinstance(found, Hit):
            raise SystemExit(f"{kind}: {found.reason}")
        return found

    def restore(self, kind: str) -> None:
        """Look up, verify, restore."""
        self.engine.restore(self.find(kind).state)

    def raw_blob(self) -> np.ndarray:
        """Return the engine's own bytes of the memory as it is."""
        return self.engine._context.state()


def timed(repeats: int, step: Callable[[], object], before: Callable[[], object]) -> float:
    """Return the median milliseconds of a step, each after another one that is not timed."""
    return by_turns(repeats, {"step": step}, before)["step"]


def by_turns(
    repeats: int, steps: Mapping[str, Callable[[], object]], before: Callable[[], object]
) -> dict[str, float]:
    """Return the median milliseconds of each step; one follows the other, none repeats itself.

    A step that repeats itself finds its own bytes in the processor's caches, which no start does.
    """
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repeats):
        for name, step in steps.items():
            before()
            started = time.perf_counter()
            step()
            times[name].append((time.perf_counter() - started) * 1000)
    return {name: statistics.median(each) for name, each in times.items()}


def make(job: Job) -> dict[str, Any]:
    """Decode the prefix, save it in every way, and say what each took."""
    bench = Bench(job)
    prefill_ms = min(bench.prefill() for _ in range(2))
    figures: dict[str, Any] = {"prefill_ms": prefill_ms, "raw_bytes": int(bench.raw_blob().size)}
    state = bench.engine.capture()
    figures["state_bytes"] = sum(s.rows.nbytes for part in state.parts for s in part.sections)
    for kind in KINDS:
        form: KVState | PackedState = state
        if kind not in ("exact", LOSSLESS):
            form = pack_state(state, Tier(kind))
        saved = bench.stores[kind].save(
            bench.fingerprint, bench.prefix, form, lossless=kind == LOSSLESS
        )
        if not isinstance(saved, Saved):
            raise SystemExit(f"{kind}: {saved.reason}")
        figures[f"{kind}_bytes"] = saved.n_bytes
    return figures


def warm(job: Job) -> dict[str, Any]:
    """Restore what `make` left, in a fresh process, the page cache hot."""
    bench = Bench(job)
    engine = bench.engine
    for kind in KINDS:
        bench.restore(kind)
    blob = bench.raw_blob()

    def empty() -> None:
        engine._context.clear(data=True)  # the same start for all: nothing of it in a cache

    steps: dict[str, Callable[[], object]] = {
        f"{kind}_restore_ms": lambda k=kind: bench.restore(k) for kind in KINDS
    }
    steps["set_data_ms"] = lambda: engine._context._set_state(blob)
    figures = by_turns(job.repeats, steps, empty)
    figures["fingerprint_ms"] = timed(job.repeats, engine.fingerprint, empty)
    figures["suffix_ms"] = timed(
        job.repeats, lambda: engine.decode(bench.suffix), lambda: (empty(), bench.restore("exact"))
    )
    return figures


def cold(job: Job) -> dict[str, Any]:
    """Restore with the files dropped from the page cache before each."""
    bench = Bench(job)
    engine = bench.engine

    def drop() -> None:
        engine._context.clear(data=True)
        for path in Path(job.folder).rglob("*.ekv"):
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    steps: dict[str, Callable[[], object]] = {
        f"{kind}_cold_ms": lambda k=kind: bench.restore(k) for kind in KINDS
    }
    return by_turns(job.repeats, steps, drop)


def memory(job: Job) -> dict[str, Any]:
    """Say how much the peak of this process grows while a state is captured and saved."""
    bench = Bench(job)
    bench.prefill()
    before = _reset_peak()
    state = bench.engine.capture()
    saved = bench.stores["exact"].save(bench.fingerprint, bench.prefix, state)
    grown = _peak() - before
    if not isinstance(saved, Saved):
        raise SystemExit(saved.reason)
    n_bytes = sum(s.rows.nbytes for part in state.parts for s in part.sections)
    return {"peak_bytes": grown, "state_bytes": n_bytes}


def exact(job: Job) -> dict[str, Any]:
    """Compare a restored memory with the uninterrupted one: forced logits, then greedy tokens."""
    bench = Bench(job)
    engine = bench.engine
    forced = (bench.prefix * 2)[7:71]
    figures: dict[str, Any] = {"max_dlogit": 0.0, "greedy_equal": 0}
    runs = []
    for is_warm in (False, True):
        if is_warm:
            engine.truncate(0)
            bench.restore("exact")
        else:
            bench.prefill()
            if engine.restore_moves:  # what the cold run of a session does too
                engine.restore(engine.capture())
        logits = engine.decode(forced, "all").copy()
        token, tokens = int(np.argmax(logits[-1])), []
        for _ in range(256):
            tokens.append(token)
            token = int(np.argmax(engine.decode([token])[0]))
        runs.append((logits, tokens))
    figures["max_dlogit"] = float(np.abs(runs[0][0] - runs[1][0]).max())
    figures["greedy_equal"] = sum(a == b for a, b in zip(runs[0][1], runs[1][1], strict=True))
    return figures


def loss(job: Job) -> dict[str, Any]:
    """Mean KL divergence of rounded states, beside the engine's own noise, on the text that follows."""
    from edgellm.evaluate.divergence import kl_divergence, top1_agreement

    bench = Bench(job)
    engine = bench.engine
    bench.prefill()
    state = engine.capture()
    forced = engine.tokenize(job.text, special=False, add_bos=True)[job.n_prefix :][:256]

    def logits(of: KVState, *, one_by_one: bool = False) -> np.ndarray:
        engine.truncate(0)
        engine.restore(of)
        if one_by_one:
            return np.concatenate([engine.decode([token]).copy() for token in forced])
        return engine.decode(forced, "all").copy()

    reference = logits(state)
    noise = logits(state, one_by_one=True)
    figures = {
        "noise_kl": float(kl_divergence(reference, noise).mean()),
        "noise_top1": float(top1_agreement(reference, noise).mean()),
        "n_forced": len(forced),
    }
    for kind in ("q8", "q4"):
        rounded = logits(unpack_state(pack_state(state, Tier(kind))))
        figures[f"{kind}_kl"] = float(kl_divergence(reference, rounded).mean())
        figures[f"{kind}_top1"] = float(top1_agreement(reference, rounded).mean())
    return figures


def disk_cache(job: Job) -> dict[str, Any]:
    """Keep and load the same prefix with llama-cpp-python's own cache on disk."""
    from llama_cpp import Llama
    from llama_cpp.llama_cache import LlamaDiskCache

    bench = Bench(job)
    tokens = bench.prefix
    bench.engine.close()
    llm = Llama(
        job.model,
        n_ctx=job.n_prefix + 1024,
        n_threads=job.n_threads or None,
        n_threads_batch=job.n_threads or None,
        flash_attn=True,
        verbose=False,
    )
    folder = Path(job.folder, "LlamaDiskCache")
    cache = LlamaDiskCache(str(folder))
    llm.eval(tokens)
    cache[tokens] = llm.save_state()
    times = []
    for _ in range(job.repeats):
        llm.reset()
        started = time.perf_counter()
        llm.load_state(LlamaDiskCache(str(folder))[tokens])
        times.append((time.perf_counter() - started) * 1000)
        cache[tokens] = llm.save_state()  # reading takes it out
    n_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    llm.close()
    return {"disk_cache_ms": statistics.median(times), "disk_cache_bytes": n_bytes}


def lookups(job: Job) -> dict[str, Any]:
    """Time a lookup among 1,000 files, a hit of a small one and a miss, and the model's identity."""
    from edgellm.formats.gguf import read_header
    from edgellm.formats.identity import content_id

    os.environ["EDGELLM_HOME"] = str(Path(job.folder).resolve() / "home")
    model = Path(job.folder, "model.gguf")
    model.parent.mkdir(parents=True, exist_ok=True)
    model.symlink_to(job.model)
    header = read_header(model)
    started = time.perf_counter()
    content_id(model, header)
    identity_first_ms = (time.perf_counter() - started) * 1000
    identity_ms = timed(job.repeats, lambda: content_id(model, header), lambda: None)
    bench = Bench(job)
    engine = bench.engine
    engine.truncate(0)
    engine.decode(bench.prefix)
    state = engine.capture()
    store = SnapshotStore(Path(job.folder, "many"))
    fingerprint = bench.fingerprint
    first = store.save(fingerprint, bench.prefix, state)
    if not isinstance(first, Saved):
        raise SystemExit(first.reason)
    content = first.path.read_bytes()
    for number in range(899):
        (first.path.parent / f"{number:032x}.ekv").write_bytes(content)
    gone = subprocess.Popen(["true"])
    gone.wait()
    for number in range(100):  # as `fileio.temp_name` names what a killed writer leaves
        orphan = first.path.parent / f".{number:032x}.ekv.{gone.pid}.{number:08x}.tmp"
        orphan.write_bytes(content)
    other = [*bench.prefix[:-1], bench.prefix[-1] ^ 1]
    fresh = SnapshotStore(store.root)
    started = time.perf_counter()
    fresh.lookup(fingerprint, other)
    first_ms = (time.perf_counter() - started) * 1000
    miss_ms = timed(job.repeats * 5, lambda: fresh.lookup(fingerprint, other), lambda: None)
    left = sum(path.suffix == ".tmp" for path in first.path.parent.iterdir())
    if left:
        raise SystemExit(f"{left} orphans were not removed")
    hit_ms = timed(job.repeats * 5, lambda: fresh.lookup(fingerprint, bench.prefix), lambda: None)
    return {
        "first_lookup_ms": first_ms,
        "miss_ms": miss_ms,
        "hit_ms": hit_ms,
        "identity_first_ms": identity_first_ms,
        "identity_ms": identity_ms,
    }


def _reset_peak() -> int:
    """Set the peak of the resident memory back to what is resident; return that, in bytes."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return _peak()


def _peak() -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    raise SystemExit("the kernel names no peak of the resident memory")


PROGRAMS = {f.__name__: f for f in (make, warm, cold, memory, exact, loss, disk_cache, lookups)}

if __name__ == "__main__":
    print(json.dumps(PROGRAMS[sys.argv[1]](Job(**json.load(sys.stdin)))))
