"""Weights from checkpoint to file in one pass: slabs of rows are read, changed, packed, appended.

Memory is bounded by the slabs in flight, not by a tensor or the model. Slabs are cut the same way
for any number of threads and appended in order, so the bytes never depend on it.
"""

from __future__ import annotations

import math
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np
import xxhash

from edgellm.errors import ConvertError, ModelCorrupt
from edgellm.kernels.ggml import (
    GgmlType,
    can_dequantize,
    dequantize,
    quantize,
    row_bytes,
    traits,
)

from .gguf_head import padding
from .shards import Shards

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from .layout import FilePlan, Source, TensorPlan

    Sink = Callable[[bytes | memoryview], None]
    Progress = Callable[[int, int], None]

_Scalar = TypeVar("_Scalar", bound=np.generic)

SLAB_ELEMENTS: Final = 1 << 19
_IMPORTS_BYTES: Final = 40_000_000
_F16_MAX: Final = 65504.0
# Where a block keeps its f16 scales: offsets in bytes. Source: `block_*`, ggml-common.h.
_SCALES: Final = {
    GgmlType.F16: (0,),
    GgmlType.Q8_0: (0,),
    GgmlType.Q6_K: (208,),
    GgmlType.Q5_1: (0, 2),
    GgmlType.Q5_0: (0,),
    GgmlType.Q5_K: (0, 2),
    GgmlType.Q4_1: (0, 2),
    GgmlType.Q4_K: (0, 2),
    GgmlType.Q4_0: (0,),
    GgmlType.IQ4_NL: (0,),
}


@dataclass(frozen=True, slots=True)
class Slab:
    """Some rows of one tensor: `first` and `n_rows` count rows of `n_per_row` elements."""

    tensor: TensorPlan
    first: int
    n_rows: int
    n_per_row: int


def peak_memory_bytes(plan: FilePlan, n_threads: int) -> int:
    """Estimate the peak resident memory of a conversion: imports, metadata, slabs in flight.

    The factors were fitted to runs of SmolLM2 and gemma-3-270m, checkpoint and GGUF, with one and
    four threads: 6 % too low to 30 % too high there. The process that proves the file is not in it
    (`runtime.proof.peak_memory_bytes`).
    """
    slab = 0.0
    for tensor in plan.tensors:
        n = math.prod(tensor.shape)
        stored = traits(tensor.source.type) if tensor.source else None
        read = stored.type_bytes / stored.block_size if stored else 0
        slab = max(slab, min(n, SLAB_ELEMENTS) * (0.7 * read + 6 + 3.5 * tensor.n_bytes / n))
    return int(_IMPORTS_BYTES + 12.5 * len(plan.head) + (n_threads + 1) * slab)


def write_file(
    plan: FilePlan, sink: Sink, *, n_threads: int, progress: Progress | None = None
) -> tuple[bytes, ...]:
    """Append a planned file to `sink`, head first.

    Args:
        plan: what to write.
        sink: called with the file's bytes, in order.
        n_threads: workers that read and pack.
        progress: called with (bytes written, bytes in all).

    Returns:
        The xxh3-128 digest of each tensor's bytes, in file order.

    Raises:
        ConvertError: a weight is not finite, or beyond the range of the type it goes to.
        ModelCorrupt: a weight file changed since the plan was made.
    """
    sink(plan.head)
    done = len(plan.head)
    digests: list[bytes] = []
    with Shards() as shards, ThreadPoolExecutor(n_threads) as pool:
        packed = _in_order(pool, shards, plan, n_threads + 1)
        for tensor in plan.tensors:
            digest = xxhash.xxh3_128()
            written = 0
            while written < tensor.n_bytes:
                data = next(packed)
                digest.update(data)
                sink(data)
                written += data.nbytes
                if progress is not None:
                    progress(done + written, plan.n_bytes)
            digests.append(digest.digest())
            sink(bytes(padding(tensor.n_bytes)))
            done += tensor.n_bytes + padding(tensor.n_bytes)
    if progress is not None:
        progress(done, plan.n_bytes)
    return tuple(digests)


def _in_order(
    pool: ThreadPoolExecutor, shards: Shards, plan: FilePlan, n_in_flight: int
) -> Iterator[memoryview]:
    """Yield packed slabs in file order while at most `n_in_flight` exist."""
    waiting: deque[Future[memoryview]] = deque()
    try:
        for tensor in plan.tensors:
            for slab in cut(tensor):
                if len(waiting) == n_in_flight:
                    yield waiting.popleft().result()
                waiting.append(pool.submit(pack, slab, shards))
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


def cut(tensor: TensorPlan) -> Iterator[Slab]:
    """Cut a tensor into slabs of whole rows, of whole heads where rows are interleaved per head."""
    # A vector has no rows to keep whole, but blocks where it is copied from a quantised file.
    n_per_row = tensor.shape[-1] if len(tensor.shape) > 1 else traits(tensor.type).block_size
    n_rows = math.prod(tensor.shape) // n_per_row
    unit = tensor.head_rows or 1
    step = max(1, SLAB_ELEMENTS // (n_per_row * unit)) * unit
    for first in range(0, n_rows, step):
        yield Slab(tensor, first, min(step, n_rows - first), n_per_row)


def pack(slab: Slab, shards: Shards) -> memoryview:
    """Read a slab, interleave its rows if need be, and store it in its type."""
    tensor, source = slab.tensor, slab.tensor.source
    if source is None:
        return np.ascontiguousarray(tensor.values, np.dtype("<f4")).data.cast("B")
    stride = row_bytes(source.type, slab.n_per_row)
    offset = source.offset + slab.first * stride
    raw = shards.read(source.path, offset, slab.n_rows * stride)
    rows = np.frombuffer(raw, np.uint8).reshape(slab.n_rows, stride)
    if not can_dequantize(source.type):  # whole numbers, which are copied
        return rows.data.cast("B")
    values = dequantize(rows, source.type, slab.n_per_row)
    largest = _largest(values, source)
    if tensor.type is source.type:
        return np.ascontiguousarray(interleave(rows, tensor.head_rows)).data.cast("B")
    packed = quantize(interleave(values, tensor.head_rows), tensor.type)
    _check_scales(packed, tensor, largest)
    return packed.data.cast("B")


def interleave(rows: NDArray[_Scalar], head_rows: int) -> NDArray[_Scalar]:
    """Reorder rows of each head from halves to pairs: 0, d/2, 1, d/2 + 1, ...

    A checkpoint keeps the two halves of a rotary pair d/2 rows apart, the engine side by side.

    Args:
        rows: shape (n_heads * head_rows, n); whole heads.
        head_rows: rows of a head, even; 0 leaves everything as it is.
    """
    if not head_rows:
        return rows
    n = rows.shape[1]
    halves = rows.reshape(-1, 2, head_rows // 2, n)
    return halves.swapaxes(1, 2).reshape(-1, n)


def _largest(values: NDArray[np.float32], source: Source) -> float:
    """Return the largest magnitude; NaN and infinities are an error."""
    low, high = float(values.min()), float(values.max())
    if not (math.isfinite(low) and math.isfinite(high)):
        n = int(values.size - np.isfinite(values).sum())
        raise ModelCorrupt(
            f"tensor {source.name!r} holds {n} values that are no finite numbers", path=source.path
        )
    return max(-low, high)


def _check_scales(packed: NDArray[np.uint8], tensor: TensorPlan, largest: float) -> None:
    """Refuse blocks whose f16 scale overflowed: the engine would compute with infinities."""
    if largest <= _F16_MAX or tensor.source is None:  # no scale is larger than its weights
        return
    blocks = packed.reshape(-1, traits(tensor.type).type_bytes)
    for at in _SCALES.get(tensor.type, ()):
        if not np.isfinite(np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2")).all():
            number = "number" if tensor.type is GgmlType.F16 else "scale"
            raise ConvertError(
                f"tensor {tensor.source.name!r} has a weight of {largest:.6g}; "
                f"a {tensor.type.name} {number} holds at most {_F16_MAX:.0f}",
                path=tensor.source.path,
                hint="use --type bf16 or f32",
            )
