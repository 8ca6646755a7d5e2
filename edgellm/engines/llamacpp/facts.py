"""What is known of a model in this engine: may it be snapshotted, what must a snapshot agree with."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any, Final

from edgellm.engines.llamacpp.memory import Announced
from edgellm.errors import DoesNotFit, ModelCorrupt, ModelUnsupported, UsageError
from edgellm.formats.gguf_memory import CELLS
from edgellm.ggml_types import MAX_THREADS, TYPES_BY_NAME
from edgellm.hw.memory import available_bytes
from edgellm.store.state import ELEMENT_BYTES, Fingerprint
from edgellm.units import format_bytes

if TYPE_CHECKING:
    from edgellm.core import ModelInfo
    from edgellm.engines.base import EngineSettings
    from edgellm.engines.llamacpp.context import Context
    from edgellm.engines.llamacpp.engine import LlamaCppEngine
    from edgellm.engines.llamacpp.library import Library, LogRing
    from edgellm.errors import ModelError
    from edgellm.formats.gguf_memory import KVSize

KV_TYPES: Final = ("f16", "f32", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")
MAX_CTX_FACTOR: Final = 64
_SHARE: Final = 0.8  # of the free memory
_MOST_OF_FAILED: Final = 0.75  # of a context that could not be had
SPLIT_RULE: Final = "1"  # segments cut at the boundary, each in chunks from its own start
_ATTENTION: Final = ("dense", "mla", "window")
_MROPE_TYPES: Final = (8, 40)  # LLAMA_ROPE_TYPE_MROPE and _IMROPE, llama.h
_MAX_VALUE_CHARS: Final = 500
_UNUSED: Final = "unused"  # by memory without keys and values, which is float32 always
ROTATION_VARIABLE: Final = "LLAMA_ATTN_ROT_DISABLE"  # read by llama.cpp for quantised KV types
_OFFLOADED: Final = re.compile(r"offloaded (\d+)/\d+ layers")
_MEMORY_PHRASES: Final = (
    "failed to allocate",
    "out of memory",
    "unable to allocate",
    "bad_alloc",
    "cannot allocate memory",
)
_MASK_BYTES: Final = 2  # the attention mask is f16, one row a token of the batch
_BUFFER: Final = re.compile(r"buffer of size (\d+)")
_MAPPING: Final = "mmap failed"
_NEWER_PHRASES: Final = ("wrong number of tensors", "unknown pre-tokenizer", "unknown tokenizer")


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


def check_context(
    model: ModelInfo, kv: KVSize | None, n_ctx: int, settings: EngineSettings, n_gpu_layers: int
) -> None:
    """Refuse a context that cannot fit, before the memory for it is asked for.

    Args:
        model: for its name and the context it was trained for.
        kv: what a token takes; None leaves it to the engine.
        n_ctx: tokens asked for.
        settings: the type of keys and values, the batch.
        n_gpu_layers: layers whose keys and values lie in another memory.

    Raises:
        UsageError: it is far beyond anything the model was made for.
        DoesNotFit: keys and values alone are larger than the memory that is free.
    """
    if n_ctx > MAX_CTX_FACTOR * model.n_ctx_train:
        raise UsageError(
            f"a context of {n_ctx} tokens for a model trained with {model.n_ctx_train}",
            hint=f"use at most --ctx {MAX_CTX_FACTOR * model.n_ctx_train}",
        )
    if kv is None or n_gpu_layers:
        return  # windows hold less, GPUs have their own memory: the engine will tell
    have = available_bytes()
    if kv.context_bytes(n_ctx, TYPES_BY_NAME[settings.kv_type]) > have:
        raise context_too_big(model, kv, n_ctx, settings, have)


def context_too_big(
    model: ModelInfo,
    kv: KVSize | None,
    n_ctx: int,
    settings: EngineSettings,
    have: int,
    reason: str = "",
) -> DoesNotFit:
    """Return the error for a context that cannot be had: asked, needed, there, the largest, the flag.

    Args:
        model: whose context it is.
        kv: what a token takes, None when unknown.
        n_ctx: tokens asked for.
        settings: the type of keys and values, the batch.
        have: bytes there are.
        reason: the engine's own words, when it was tried.
    """
    need = 0 if kv is None else kv.context_bytes(n_ctx, TYPES_BY_NAME[settings.kv_type])
    with_mask = need + n_ctx * settings.n_batch * _MASK_BYTES
    buffer = max((int(size) for size in _BUFFER.findall(reason)), default=0)
    parts = [f"keys and values take {format_bytes(need)}"] if need else []
    if buffer > need:  # else it is the keys' and values' own
        parts.append(f"a buffer to compute in takes {format_bytes(buffer)}")
        need += buffer
    message = f"a context of {n_ctx} tokens does not fit"
    message += f": {', '.join(parts)}" if parts else ""
    message += f", {format_bytes(have)} of memory are free"
    # All of it grows with the context; some room is left for what is not counted here. What has just
    # failed is no advice, whatever the figures say.
    share = min(_MOST_OF_FAILED, _SHARE * have / with_mask) if kv else 0.0
    most = int(n_ctx * share) // CELLS * CELLS
    hint = f"the largest that fits is about --ctx {most}" if most else "use a smaller --ctx"
    if settings.kv_type in ELEMENT_BYTES:
        hint += "; --kv-type q8_0 halves keys and values"
    return DoesNotFit(
        f"{message} ({reason})" if reason else message,
        path=model.path,
        hint=hint,
        need_bytes=need or None,
        have_bytes=have,
    )


def is_memory_error(reason: str) -> bool:
    """Return whether the engine's log speaks of memory it could not have."""
    return any(phrase in reason.lower() for phrase in _MEMORY_PHRASES)


def is_mapping_error(reason: str) -> bool:
    """Return whether the file lies where it cannot be mapped, which reading it does not need."""
    return _MAPPING in reason.lower() and not is_memory_error(reason)


def check_unmapped(model: ModelInfo, *, gpu: bool) -> None:
    """Refuse weights that must be read, and cannot: mapped, they would be paged in as needed.

    Args:
        model: for the length of its file.
        gpu: whether layers may go to another memory, which the engine then plans with.

    Raises:
        DoesNotFit: the file is longer than the memory that is free.
    """
    have = available_bytes()
    if gpu or model.file_bytes <= have:
        return
    raise DoesNotFit(
        "the file system cannot map the model, and to read it "
        f"{format_bytes(model.file_bytes)} are needed, {format_bytes(have)} of memory are free",
        path=model.path,
        hint="copy the model to a local disk, or use a smaller one",
        need_bytes=model.file_bytes,
        have_bytes=have,
    )


def load_error(model: ModelInfo, version: str, reason: str) -> DoesNotFit | ModelError:
    """Return the error for a model that the engine refused to load, with its own words."""
    if is_memory_error(reason):
        return DoesNotFit(
            f"the weights do not fit: {format_bytes(model.file_bytes)} are needed, "
            f"{format_bytes(available_bytes())} of memory are free ({reason})",
            path=model.path,
            hint="use a smaller model, or one with fewer bits per weight",
            need_bytes=model.file_bytes,
        )
    if "unknown model architecture" in reason:
        return ModelUnsupported(
            f"architecture {model.architecture!r} is not known to llama.cpp {version}",
            path=model.path,
            hint="a newer llama-cpp-python may know it",
        )
    if any(phrase in reason for phrase in _NEWER_PHRASES):
        return ModelUnsupported(
            f"llama.cpp {version} does not know all of it: {reason}",
            path=model.path,
            hint="the file was made for a newer engine",
        )
    return ModelCorrupt(
        f"llama.cpp {version} refuses the model: {reason}",
        path=model.path,
        hint="download or convert it again",
    )


def offloaded_layers(log: LogRing) -> int:
    """Return how many layers the library says it put on a GPU while it loaded the model."""
    found = log.search(_OFFLOADED)
    return int(found.group(1)) if found else 0


def snapshot_block(library: Library, model: Any, info: ModelInfo) -> str:
    """Return why this model's memory cannot be kept as a snapshot, or ""."""
    if library.mismatch:
        return f"llama.cpp's parameters are not the known ones ({library.mismatch})"
    has_state = library.lib.llama_model_is_recurrent(model) or library.lib.llama_model_is_hybrid(
        model
    )
    if info.memory in _ATTENTION and has_state:
        return f"the header announces {info.memory} memory, llama.cpp sees a recurrent one"
    return ""


def announced(library: Library, model: Any, info: ModelInfo, *, keys_only: bool) -> Announced:
    """Return what is known of a model's memory before it is seen."""
    return Announced(
        kind=info.memory,
        keys_only=keys_only,
        extra_cells=int(library.lib.llama_model_rope_type(model)) in _MROPE_TYPES,
        n_layers=int(library.lib.llama_model_n_layer(model)),
    )


def fingerprint(engine: LlamaCppEngine, context: Context, content: str) -> Fingerprint:
    """Return everything that changes the numbers in the memory, and what changes their rounding."""
    settings, library = engine.settings, engine.library
    is_attention = context.layout.kinds != ("recurrent",)
    hard = {
        "adapters": engine.adapters.identity(),
        "attention_rotation": context.attention_rotation,
        "engine": f"llama.cpp {library.version} ggml {library.commit}",
        "flash_attention": context.flash_attention if is_attention else _UNUSED,
        "kv_type_k": settings.kv_type if is_attention else _UNUSED,
        "kv_type_v": settings.kv_type if is_attention else _UNUSED,
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
    if not settings.repack:  # other kernels, which round otherwise
        soft["repack"] = "off"
    return Fingerprint(_pairs(hard), _pairs(soft))


def _pairs(values: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """Return sorted pairs of printable ASCII, which is what a snapshot's header can hold."""
    return tuple((name, _printable(value)) for name, value in sorted(values.items()))


@functools.lru_cache(maxsize=64)  # the same few at every request
def _printable(value: str) -> str:
    return "".join(c if " " <= c <= "~" else "?" for c in value[:_MAX_VALUE_CHARS])
