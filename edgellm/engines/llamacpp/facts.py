"""What is known of a model in this engine: may it be snapshotted, what must a snapshot agree with."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Final

from edgellm.errors import UsageError
from edgellm.ggml_types import TYPES_BY_NAME
from edgellm.store.state import Fingerprint

if TYPE_CHECKING:
    from edgellm.core import ModelInfo
    from edgellm.engines.llamacpp.context import Context
    from edgellm.engines.llamacpp.engine import LlamaCppEngine
    from edgellm.engines.llamacpp.library import Library, LogRing

KV_TYPES: Final = ("f16", "f32", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")
SPLIT_RULE: Final = "1"  # segments cut at the boundary, each in chunks from its own start
_PARSED: Final = ("dense", "window", "mla")
_MAX_VALUE_CHARS: Final = 500
_ROTATION_VARIABLE: Final = "LLAMA_ATTN_ROT_DISABLE"  # read by llama.cpp for quantised KV types
_OFFLOADED: Final = re.compile(r"offloaded (\d+)/\d+ layers")
_MEMORY_PHRASES: Final = ("failed to allocate", "out of memory", "unable to allocate", "bad_alloc")


def kv_type_id(name: str) -> int:
    """Return ggml's number of a KV type.

    Raises:
        UsageError: keys and values cannot be kept in that type.
    """
    if name not in KV_TYPES:
        raise UsageError(f"KV type {name!r} is not one of {', '.join(KV_TYPES)}")
    return TYPES_BY_NAME[name].id


def is_memory_error(reason: str) -> bool:
    """Return whether the engine's log speaks of memory it could not have."""
    return any(phrase in reason.lower() for phrase in _MEMORY_PHRASES)


def offloaded_layers(log: LogRing) -> int:
    """Return how many layers the library says it put on a GPU while it loaded the model."""
    found = log.search(_OFFLOADED)
    return int(found.group(1)) if found else 0


def snapshot_block(library: Library, model: Any, info: ModelInfo) -> str:
    """Return why this model's memory cannot be kept as a snapshot, or ""."""
    if library.mismatch:
        return f"llama.cpp's parameters are not the known ones ({library.mismatch})"
    kind = info.memory
    if library.lib.llama_model_is_recurrent(model):
        kind = "recurrent"
    elif library.lib.llama_model_is_hybrid(model):
        kind = "hybrid"
    if kind not in _PARSED:
        return f"{kind} memory is not snapshotted"
    has_window = int(library.lib.llama_model_n_swa(model)) > 0
    if has_window != (kind == "window"):
        return f"the header announces {kind} memory, llama.cpp sees another kind"
    return ""


def fingerprint(engine: LlamaCppEngine, context: Context, content: str) -> Fingerprint:
    """Return everything that changes the numbers in the memory, and what changes their rounding."""
    settings, library = engine.settings, engine.library
    hard = {
        "adapters": "none",
        "attention_rotation": os.environ.get(_ROTATION_VARIABLE, ""),
        "engine": f"llama.cpp {library.version} ggml {library.commit}",
        "flash_attention": context.flash_attention,
        "kv_type_k": settings.kv_type,
        "kv_type_v": settings.kv_type,
        "memory": engine.model.memory,
        "model": content,
        "architecture": engine.model.architecture,
        "n_streams": "1",
        "name": engine.model.name,
        "rope": "model",
        "split": SPLIT_RULE,
    }
    soft = {
        "cpu": library.lib.llama_print_system_info().decode("ascii", "replace").strip(),
        "n_batch": str(settings.n_batch),
        "n_gpu_layers": "auto" if settings.n_gpu_layers is None else str(settings.n_gpu_layers),
        "n_threads": str(engine.n_threads),
    }
    return Fingerprint(_pairs(hard), _pairs(soft))


def _pairs(values: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """Return sorted pairs of printable ASCII, which is what a snapshot's header can hold."""
    return tuple(
        (name, "".join(c if " " <= c <= "~" else "?" for c in value[:_MAX_VALUE_CHARS]))
        for name, value in sorted(values.items())
    )
