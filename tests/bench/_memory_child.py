"""Run by memory.py and the tests of the estimate, in processes of their own.

    _memory_child.py log < JSON     what llama.cpp says it allocates
    _memory_child.py use < JSON     load, prefill, decode and copy the memory out, for a parent that watches

`log` reads a list of [model, list of settings] and prints, in the same order, lists of the sizes in MiB
that the engine logs: `kv` (one for each cache and state), `compute`, and for the model `repacked`. `use` reads
one settings with `model` and `n_tokens`; at the end it prints what its mappings are made of.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

_SIZE = re.compile(r"(\S+)\s+(model|KV|RS|compute|DSV4 \w+ state) buffer size = +([\d.]+) MiB")
_FLASH = {"auto": -1, "off": 0, "on": 1}
_NO_OF_TYPE = {
    "f32": 0,
    "f16": 1,
    "q4_0": 2,
    "q4_1": 3,
    "q5_0": 6,
    "q5_1": 7,
    "q8_0": 8,
    "bf16": 30,
}
_N_DECODED = 4


def log(wanted: list[tuple[str, list[dict[str, Any]]]]) -> list[list[dict[str, Any]]]:
    """Open every model with every settings; return the sizes that the engine tells."""
    import llama_cpp

    pieces: list[str] = []

    @llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
    def told(_level: int, text: bytes, _data: Any) -> None:
        pieces.append(text.decode("utf-8", "replace"))

    def sizes() -> list[tuple[str, str, float]]:
        found = [(where, what, float(mib)) for where, what, mib in _SIZE.findall("".join(pieces))]
        pieces.clear()
        return found

    llama_cpp.llama_log_set(told, None)
    llama_cpp.llama_backend_init()
    answers = []
    for path, cases in wanted:
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = 0
        model = llama_cpp.llama_model_load_from_file(path.encode(), params)
        repacked = sum(mib for where, _, mib in sizes() if where == "CPU_REPACK")
        rows = []
        for case in cases:
            context = llama_cpp.llama_init_from_model(model, _context(llama_cpp, case))
            found = sizes()
            llama_cpp.llama_free(context)
            rows.append(
                {
                    "repacked": repacked,
                    "kv": [mib for _, what, mib in found if what not in ("compute", "model")],
                    "compute": sum(mib for _, what, mib in found if what == "compute"),
                }
            )
        answers.append(rows)
        llama_cpp.llama_model_free(model)
    return answers


def _context(library: Any, case: dict[str, Any]) -> Any:
    """Return parameters as the engine's adapter sets them."""
    params = library.llama_context_default_params()
    params.n_ctx = case["n_ctx"]
    params.n_batch = params.n_ubatch = min(case["n_batch"], case["n_ctx"])
    params.n_seq_max = 1
    params.type_k = params.type_v = _NO_OF_TYPE[case["kv_type"]]
    params.flash_attn_type = _FLASH[case["flash_attention"]]
    params.swa_full = False
    return params


def use(case: dict[str, Any]) -> dict[str, int]:
    """Do what a worker does with a model; return the bytes of the file and of code that are mapped in."""
    import edgellm.runtime.local  # noqa: F401  # what a worker has loaded besides
    from edgellm.engines.base import EngineSettings
    from edgellm.engines.llamacpp import LlamaCppEngine

    settings = EngineSettings(
        n_batch=case["n_batch"],
        n_threads=case["n_threads"],
        n_gpu_layers=0,
        kv_type=case["kv_type"],
        flash_attention=case["flash_attention"],
    )
    engine = LlamaCppEngine(Path(case["model"]), settings)
    vocab = engine.vocab()
    engine.reserve(case["n_ctx"])
    engine.decode([10 + i % 200 for i in range(case["n_tokens"])])
    for i in range(_N_DECODED):
        engine.decode([10 + i])
    state = engine.capture() if case["snapshots"] else None
    made = _mapped(case["model"]) | {"n_vocab": vocab.n_tokens, "n_state": state is not None}
    engine.close()
    return made


def _mapped(model: str) -> dict[str, int]:
    """Return the bytes of this process's file mappings that are in memory: the model's, and others."""
    name, found = Path(model).name, {"model_bytes": 0, "code_bytes": 0}
    kind = ""
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8", errors="replace").splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            path = line.split(maxsplit=5)[5:] or [""]
            kind = "model_bytes" if path[0].endswith(name) else "code_bytes"
            kind = kind if path[0].startswith("/") else ""
        elif kind and line.startswith(("Rss:", "Anonymous:")):
            sign = 1 if line.startswith("Rss:") else -1
            found[kind] += sign * int(line.split()[1]) * 1024
    return found


if __name__ == "__main__":
    given = json.load(sys.stdin)
    json.dump(log(given) if sys.argv[1] == "log" else use(given), sys.stdout)
