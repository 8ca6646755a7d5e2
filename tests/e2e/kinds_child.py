"""Run by test_memory_kinds.py, in processes of their own: take states, or go on from them.

    kinds_child.py cold|warm MODELS WORK CASES

CASES is JSON: a list of [model, settings, prefix length]. Each way prints one JSON line with a digest
of the logits of a 16-token suffix in one call and of 4 greedy tokens after it. `cold` decodes the
prefix, keeps its state in WORK, and goes on; `warm` starts from that state.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np

from edgellm.engines.base import EngineSettings
from edgellm.engines.llamacpp import LlamaCppEngine

N_SUFFIX, N_GREEDY = 16, 4


def go_on(engine: LlamaCppEngine, suffix: list[int]) -> list[str]:
    """Decode the suffix and four greedy tokens; return a digest of each call's logits."""
    rows = engine.decode(suffix, "all")
    seen = [rows.tobytes()]
    for _ in range(N_GREEDY):
        rows = engine.decode([int(rows[-1].argmax())])
        seen.append(rows.tobytes())
    return [hashlib.sha256(row).hexdigest() for row in seen]


def cold(engine: LlamaCppEngine, tokens: list[int], kept: Path) -> dict[str, Any]:
    """Decode the prefix, take its state, and go on as a session does."""
    n = len(tokens) - N_SUFFIX
    engine.decode(tokens[:n])
    state = engine.capture()
    kept.write_bytes(pickle.dumps(state))
    if engine.restore_moves:
        engine.restore(state)
    kinds = [[part.kind, part.first, part.n_tokens, len(part.sections)] for part in state.parts]
    return {"digests": go_on(engine, tokens[n:]), "parts": kinds}


def warm(engine: LlamaCppEngine, tokens: list[int], kept: Path) -> dict[str, Any]:
    """Go on from the state, over a memory that held something else before."""
    engine.decode(tokens[5:20])
    engine.restore(pickle.loads(kept.read_bytes()))  # noqa: S301  # written by the other process
    return {"digests": go_on(engine, tokens[-N_SUFFIX:])}


def main() -> None:
    """Run all cases of one way."""
    way, models, work = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    for i, (model, settings, n) in enumerate(json.loads(Path(sys.argv[4]).read_text())):
        wanted = EngineSettings(**{"n_threads": 1, "n_batch": 64, **settings})
        engine = LlamaCppEngine(models / f"tiny-{model}.gguf", wanted)
        engine.reserve(512)
        tokens = [int(t) for t in np.random.default_rng(n).integers(0, 500, n + N_SUFFIX)]
        run = cold if way == "cold" else warm
        result = {"block": engine.snapshot_block()}
        if not result["block"]:
            result |= run(engine, tokens, work / f"{i}.state")
        engine.close()
        print(json.dumps(result))


if __name__ == "__main__":
    main()
