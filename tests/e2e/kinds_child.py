"""Run by test_memory_kinds.py, in processes of their own: take states, or go on from them.

    kinds_child.py cold|warm MODELS WORK CASES

CASES is JSON: a list of [model, settings, prefix length]. Each way prints one JSON line with a digest
of the logits of a 16-token suffix in one call and of 4 greedy tokens after it. `cold` decodes the
prefix, saves its state in a store at WORK, and goes on; `warm` starts from what the store holds, read
into the engine's own rows.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from edgellm.engines.base import EngineSettings
from edgellm.engines.llamacpp import LlamaCppEngine
from edgellm.engines.llamacpp.frame import LandedState
from edgellm.store.snapshots import Hit, SnapshotStore

N_SUFFIX, N_GREEDY = 16, 4


def go_on(engine: LlamaCppEngine, suffix: list[int]) -> list[str]:
    """Decode the suffix and four greedy tokens; return a digest of each call's logits."""
    rows = engine.decode(suffix, "all")
    seen = [rows.tobytes()]
    for _ in range(N_GREEDY):
        rows = engine.decode([int(rows[-1].argmax())])
        seen.append(rows.tobytes())
    return [hashlib.sha256(row).hexdigest() for row in seen]


def cold(engine: LlamaCppEngine, tokens: list[int], store: SnapshotStore) -> dict[str, Any]:
    """Decode the prefix, save its state, and go on as a session does."""
    prefix, suffix = tokens[:-N_SUFFIX], tokens[-N_SUFFIX:]
    engine.decode(prefix)
    state = engine.capture()
    saved = store.save(engine.fingerprint(), tuple(prefix), state)
    if engine.restore_moves:
        engine.restore(state)
    parts = [[part.kind, part.first, part.n_tokens, len(part.sections)] for part in state.parts]
    digests = go_on(engine, suffix)
    # Without attention, its settings change nothing, and the state is stored already.
    return {"digests": digests, "parts": parts, "stored": saved.anchor is not None or str(saved)}


def warm(engine: LlamaCppEngine, tokens: list[int], store: SnapshotStore) -> dict[str, Any]:
    """Go on from the stored state, over a memory that held something else before."""
    prefix, suffix = tokens[:-N_SUFFIX], tokens[-N_SUFFIX:]
    engine.decode(tokens[5:20])
    found = store.lookup(engine.fingerprint(), tuple(prefix), landing=engine.landing)
    if not isinstance(found, Hit):
        return {"digests": [], "missed": str(found)}
    landed = isinstance(found.state, LandedState)
    engine.restore(found.state)
    return {"digests": go_on(engine, suffix), "landed": landed}


def main() -> None:
    """Run all cases of one way."""
    way, models, store = sys.argv[1], Path(sys.argv[2]), SnapshotStore(Path(sys.argv[3]))
    for model, settings, n in json.loads(Path(sys.argv[4]).read_text()):
        wanted = EngineSettings(**{"n_threads": 1, "n_batch": 64, **settings})
        engine = LlamaCppEngine(models / f"tiny-{model}.gguf", wanted)
        engine.reserve(512)
        tokens = [int(t) for t in np.random.default_rng(n).integers(0, 500, n + N_SUFFIX)]
        run = cold if way == "cold" else warm
        print(json.dumps(run(engine, tokens, store)))
        engine.close()


if __name__ == "__main__":
    main()
