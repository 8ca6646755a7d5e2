"""What is known of a model in this engine: may it be snapshotted, what must a snapshot agree with."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Final

from edgellm.errors import DoesNotFit, UsageError
from edgellm.ggml_types import TYPES_BY_NAME
from edgellm.store.state import ELEMENT_BYTES, Fingerprint
from edgellm.units import format_bytes

if TYPE_CHECKING:
    from edgellm.core import ModelInfo
    from edgellm.engines.base import EngineSettings
    from edgellm.engines.llamacpp.context import Context
    from edgellm.engines.llamacpp.engine import LlamaCppEngine
    from edgellm.engines.llamacpp.library import Library, LogRing

KV_TYPES: Final = ("f16", "f32", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")
MAX_THREADS: Final = 512  # GGML_MAX_N_THREADS, ggml.h
MAX_CTX_FACTOR: Final = 64
SPLIT_RULE: Final = "1"  # segments cut at the boundary, each in chunks from its own start
_PARSED: Final = ("dense", "window", "mla")
_MAX_VALUE_CHARS: Final = 500
_ROTATION_VARIABLE: Final = "LLAMA_ATTN_ROT_DISABLE"  # read by llama.cpp for quantised KV types
_OFFLOADED: Final = re.compile(r"offloaded (\d+)/\d+ layers")
_MEMORY_PHRASES: Final = ("failed to allocate", "out of memory", "unable to allocate", "bad_alloc")


def check_settings(settings: EngineSettings) -> int:
    """Refuse what the library would answer with a crash or a riddle; return ggml's KV type.

    Raises:
        UsageError: a value is out of range, or two contradict each other.
    """
    kv_type = settings.kv_type
    if kv_type not in KV_TYPES:
        raise UsageError(f"KV type {kv_type!r} is not one of {', '.join(KV_TYPES)}")
    if kv_type not in ELEMENT_BYTES and settings.flash_attention == "off":
        raise UsageError(
            f"KV type {kv_type} needs flash attention",
            hint="leave --flash-attn at auto, or use --kv-type f16",
        )
    if not 0 <= settings.n_threads <= MAX_THREADS:
        raise UsageError(f"{settings.n_threads} threads; the engine runs 1 to {MAX_THREADS}")
    if settings.n_batch < 1:
        raise UsageError(f"a batch of {settings.n_batch} tokens decodes nothing")
    return TYPES_BY_NAME[kv_type].id


def check_context(model: ModelInfo, n_ctx: int, kv_type: str, n_gpu_layers: int) -> None:
    """Refuse a context that cannot fit, before the memory for it is asked for.

    Raises:
        UsageError: it is far beyond anything the model was made for.
        DoesNotFit: keys and values alone are larger than the memory that is free.
    """
    if n_ctx > MAX_CTX_FACTOR * model.n_ctx_train:
        raise UsageError(
            f"a context of {n_ctx} tokens for a model trained with {model.n_ctx_train}",
            hint=f"use at most --ctx {MAX_CTX_FACTOR * model.n_ctx_train}",
        )
    if model.memory != "dense" or n_gpu_layers or not model.n_heads:
        return  # windows hold less, GPUs have their own memory: the engine will tell
    import psutil

    row = TYPES_BY_NAME[kv_type]
    per_token = 2 * model.n_layers * model.n_kv_heads * (model.n_embd // model.n_heads)
    need = n_ctx * per_token * row.block_bytes // row.block_size
    have = int(psutil.virtual_memory().available)
    if need > have:
        raise DoesNotFit(
            f"keys and values of {n_ctx} tokens take {format_bytes(need)}, "
            f"{format_bytes(have)} of memory are free",
            path=model.path,
            hint="use a smaller --ctx or --kv-type q8_0",
            need_bytes=need,
            have_bytes=have,
        )


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
