"""How much memory a model will take under given settings, by parts. Pure: sizes in, bytes out.

Keys and values are exact; what is computed in is a model of the engine's largest graph, held against the
engine's own log; what a process takes before any model is a measured constant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from edgellm.policy.estimate_kv import kv_bytes_by_layer

if TYPE_CHECKING:
    from edgellm.formats.gguf_shape import ModelShape


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
        weights_resident_bytes: copies of weights in another layout, or read because they are not mapped.
        kv_bytes: keys, values, and recurrent states.
        compute_bytes: intermediate results of the largest graph, and the logits.
        staging_bytes: one copy of the memory while a snapshot is taken.
        process_bytes: interpreter and libraries.
        gpu_weights_bytes: weights in the GPU's memory.
        gpu_kv_bytes: keys, values and states in the GPU's memory.
        gpu_compute_bytes: intermediate results in the GPU's memory.
        unknown: what was not counted, in words; empty if all was.
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
    """
    kv = kv_bytes_by_layer(
        shape,
        n_ctx=settings.n_ctx,
        n_batch=settings.n_batch,
        kv_type=settings.kv_type,
        transposed=settings.flash_attention == "off",
    )
    first_on_gpu = shape.model.n_layers + 1 - settings.n_gpu_layers
    on_gpu = sum(n_bytes for layer, n_bytes in kv.items() if layer >= first_on_gpu)
    kv_bytes = sum(kv.values()) - on_gpu
    return Estimate(
        weights_mapped_bytes=shape.weight_bytes,
        weights_resident_bytes=0,
        kv_bytes=kv_bytes,
        compute_bytes=0,
        staging_bytes=sum(kv.values()) if settings.snapshots else 0,
        process_bytes=0,
        gpu_kv_bytes=on_gpu,
        unknown=shape.unknown,
    )
