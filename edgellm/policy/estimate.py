"""How much memory a model will take under given settings, by parts. Pure: sizes in, bytes out.

Keys and values are exact. What is computed in is the engine's largest graph, placed as the engine places it.
What a process takes before any model, and for each entry of the vocabulary, are measured constants.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from edgellm.policy.estimate_graph import graph_space
from edgellm.policy.estimate_kv import LEAST_CTX, context_cells, kv_bytes_by_layer
from edgellm.policy.estimate_weights import lying
from edgellm.policy.estimate_work import book_bytes, work_bytes

if TYPE_CHECKING:
    from edgellm.formats.gguf_shape import ModelShape

# Linux on x86-64, Python 3.11, llama-cpp-python 0.3.36: `tests/bench/memory.py` prints what is measured.
_PROCESS_BYTES: Final = (
    60 << 20
)  # interpreter, numpy, this package, the engine's library, their code
_ENTRY_BYTES: Final = (
    212  # of the vocabulary: a token in the engine's tables, or a rule that joins two
)
_NEVER_FLASH: Final = ("grok",)  # the engine turns it off for these
_LOGIT_BYTES: Final = 4
_LOGIT_COPIES: Final = 2  # the engine's row, and the one that is sampled from


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """The settings that memory depends on, all of them decided.

    Attributes:
        n_ctx: tokens of the context.
        n_batch: tokens of one decode call.
        kv_type: ggml's name of the type of keys and values.
        n_gpu_layers: layers in the GPU's memory, the output counts as one after the last.
        n_threads: CPU threads.
        flash_attention: how attention is computed.
        repack: whether weights may be copied into the layout this CPU computes fastest with.
        snapshots: whether prefixes are kept, which copies the memory out once.
    """

    n_ctx: int
    n_batch: int = 512
    kv_type: str = "f16"
    n_gpu_layers: int = 0
    n_threads: int = 1
    flash_attention: Literal["auto", "on", "off"] = "auto"
    repack: bool = True
    snapshots: bool = True


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes by parts; those of a GPU lie in its memory, all others in the host's.

    Attributes:
        weights_mapped_bytes: of the file, mapped: reclaimable, but read again for every token.
        weights_resident_bytes: copies of weights in another layout, for which the file is not needed.
        kv_bytes: keys, values, and recurrent states.
        compute_bytes: intermediate results as far as they are written to, the space to work in, and
            the description of the graph.
        staging_bytes: one copy of the memory while a snapshot is taken.
        process_bytes: interpreter, libraries, vocabulary.
        gpu_weights_bytes: weights in the GPU's memory.
        gpu_kv_bytes: keys, values and states in the GPU's memory.
        gpu_compute_bytes: intermediate results in the GPU's memory.
        reserved_bytes: address space of intermediate results, which is more than is written to: logits
            are reserved for a whole batch. What limits address space counts this.
        unknown: what was not counted, or roughly, in words; empty if all was.
    """

    weights_mapped_bytes: int
    weights_resident_bytes: int
    kv_bytes: int
    compute_bytes: int
    staging_bytes: int
    process_bytes: int
    gpu_weights_bytes: int = 0
    gpu_kv_bytes: int = 0
    gpu_compute_bytes: int = 0
    reserved_bytes: int = 0
    unknown: tuple[str, ...] = ()

    @property
    def resident_bytes(self) -> int:
        """Return what the host must have and cannot take back: all but the mapped file."""
        return (
            self.weights_resident_bytes
            + self.kv_bytes
            + self.compute_bytes
            + self.staging_bytes
            + self.process_bytes
        )

    @property
    def total_bytes(self) -> int:
        """Return what the host should have: without the mapped file decoding crawls."""
        return self.resident_bytes + self.weights_mapped_bytes

    @property
    def gpu_bytes(self) -> int:
        """Return what the GPU must have."""
        return self.gpu_weights_bytes + self.gpu_kv_bytes + self.gpu_compute_bytes


def estimate(
    shape: ModelShape, settings: PlanSettings, *, flags: frozenset[str] | None = None
) -> Estimate:
    """Return the memory that a model takes under these settings.

    Args:
        shape: the model's sizes.
        settings: what is asked for.
        flags: the CPU's features as `/proc/cpuinfo` names them, which decide what is repacked; None
            takes those of a CPU that repacks the most.

    Raises:
        KeyError: a type of keys and values that ggml does not have.
    """
    cells = context_cells(settings.n_ctx)
    n_batch = min(settings.n_batch, max(settings.n_ctx, LEAST_CTX))
    flash = settings.flash_attention != "off" and shape.model.architecture not in _NEVER_FLASH
    kv = kv_bytes_by_layer(
        shape, n_ctx=cells, n_batch=n_batch, kv_type=settings.kv_type, transposed=not flash
    )
    first_on_gpu = shape.model.n_layers + 1 - settings.n_gpu_layers
    on_gpu = sum(n_bytes for layer, n_bytes in kv.items() if layer >= first_on_gpu)
    weights = lying(shape, n_gpu_layers=settings.n_gpu_layers, repack=settings.repack, flags=flags)
    space = graph_space(shape, n_ctx=cells, n_batch=n_batch, kv_type=settings.kv_type, flash=flash)
    work = work_bytes(
        shape,
        n_batch=n_batch,
        n_threads=settings.n_threads,
        cells=cells,
        kv_type=settings.kv_type,
        flash=flash,
    )
    always = _LOGIT_COPIES * _LOGIT_BYTES * shape.widths.vocab + book_bytes(shape, n_batch)
    uses_gpu = settings.n_gpu_layers > 0
    computes = settings.n_gpu_layers <= shape.model.n_layers  # the host does, a part at least
    return Estimate(
        weights_mapped_bytes=weights.mapped_bytes,
        weights_resident_bytes=weights.repacked_bytes,
        kv_bytes=sum(kv.values()) - on_gpu,
        compute_bytes=always + (space.touched_bytes + work if computes else space.input_bytes),
        staging_bytes=sum(kv.values()) if settings.snapshots else 0,
        process_bytes=_PROCESS_BYTES + _ENTRY_BYTES * (shape.widths.vocab + shape.n_merges),
        gpu_weights_bytes=weights.gpu_bytes,
        gpu_kv_bytes=on_gpu,
        gpu_compute_bytes=space.reserved_bytes if uses_gpu else 0,
        reserved_bytes=space.reserved_bytes,
        unknown=(*shape.unknown, *(("the GPU's driver and its own buffers",) if uses_gpu else ())),
    )
