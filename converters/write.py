"""Weights from checkpoint to file in one pass: slabs of rows are read, changed, packed, appended.

Memory is bounded by the slabs in flight, not by a tensor or the model. Slabs are cut the same way
for any number of threads and appended in order, so the bytes never depend on it.
"""

from __future__ import annotations

import math
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import xxhash

from edgellm.errors import ConvertError, ModelCorrupt
from edgellm.kernels.ggml import GgmlType, quantize

from .gguf_head import padding
from .shards import Shards

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from .checkpoint import TensorSource
    from .plan import FilePlan, TensorPlan

    Sink = Callable[[bytes | memoryview], None]
    Progress = Callable[[int, int], None]

_Scalar = TypeVar("_Scalar", bound=np.generic)

SLAB_ELEMENTS: Final = 1 << 19
_STORED_AS: Final = {"F32": GgmlType.F32, "F16": GgmlType.F16, "BF16": GgmlType.BF16}
_DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}
_IMPORTS_BYTES: Final = 43_000_000
_F16_MAX: Final = 65504.0
# Block types keep an f16 scale: the largest weight divided by the largest code.
_LARGEST: Final = {
    GgmlType.F16: _F16_MAX,
    GgmlType.Q8_0: _F16_MAX * 127,
    GgmlType.Q4_0: _F16_MAX * 8,
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

    The factors were fitted to runs of SmolLM2 with one to eight threads, and hold within 10 % there.
    """
    slab = 0.0
    for tensor in plan.tensors:
        n = math.prod(tensor.shape)
        read = _DTYPES[tensor.source.entry.dtype].itemsize if tensor.source else 0
        slab = max(slab, min(n, SLAB_ELEMENTS) * (read + 6 + 4.5 * tensor.n_bytes / n))
    return int(_IMPORTS_BYTES + 18 * len(plan.head) + (n_threads + 1) * slab)


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
    n_per_row = tensor.shape[-1] if len(tensor.shape) > 1 else 1
    n_rows = math.prod(tensor.shape) // n_per_row
    unit = tensor.head_rows or 1
    step = max(1, SLAB_ELEMENTS // (n_per_row * unit)) * unit
    for first in range(0, n_rows, step):
        yield Slab(tensor, first, min(step, n_rows - first), n_per_row)


def pack(slab: Slab, shards: Shards) -> memoryview:
    """Read a slab, interleave its rows if need be, and store it in its type."""
    tensor = slab.tensor
    if tensor.source is None:
        return np.ascontiguousarray(tensor.values, np.dtype("<f4")).data.cast("B")
    entry = tensor.source.entry
    itemsize = _DTYPES[entry.dtype].itemsize
    stride = slab.n_per_row * itemsize
    offset = entry.offset + slab.first * stride
    raw = shards.read(tensor.source.path, offset, slab.n_rows * stride)
    rows = np.frombuffer(raw, _DTYPES[entry.dtype]).reshape(slab.n_rows, slab.n_per_row)
    values = to_float32(rows)
    _check_range(values, tensor.type, tensor.source)
    if tensor.type is _STORED_AS[entry.dtype]:
        return np.ascontiguousarray(interleave(rows, tensor.head_rows)).data.cast("B")
    return quantize(interleave(values, tensor.head_rows), tensor.type).data.cast("B")


def to_float32(rows: NDArray[Any]) -> NDArray[np.float32]:
    """Widen f16, or bf16 given as its 16 bits, to float32; float32 is returned as it is."""
    if rows.dtype == np.uint16:
        bits = rows.astype(np.uint32)
        bits <<= np.uint32(16)
        return bits.view(np.float32)
    return rows.astype(np.float32, copy=False)


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


def _check_range(values: NDArray[np.float32], ggml_type: GgmlType, source: TensorSource) -> None:
    low, high = float(values.min()), float(values.max())
    name = source.entry.name
    if not (math.isfinite(low) and math.isfinite(high)):
        n = int(values.size - np.isfinite(values).sum())
        raise ModelCorrupt(
            f"tensor {name!r} holds {n} values that are no finite numbers", path=source.path
        )
    largest = _LARGEST.get(ggml_type)
    if largest is not None and max(-low, high) > largest:
        raise ConvertError(
            f"tensor {name!r} has a weight of {max(-low, high):.6g}; "
            f"{ggml_type.name} holds at most {largest:.6g}",
            path=source.path,
            hint="use --type bf16 or f32",
        )
