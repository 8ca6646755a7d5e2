"""A file decided before a byte is written: its tensors, where each comes from, its exact size."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from edgellm.kernels.ggml import require_quantizers, row_bytes, traits

from .checkpoint import few
from .gguf_head import pack_head, padding

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from edgellm.kernels.ggml import GgmlType

    from .choice import Choice
    from .gguf_head import Packable

_EXAMPLES: Final = 2  # names in a warning that is printed for each kind of fallback


@dataclass(frozen=True, slots=True)
class Source:
    """Where a tensor's weights lie.

    Attributes:
        path: the file.
        name: of the tensor in that file.
        type: how they are stored there.
        offset: of the first byte, from the start of the file.
    """

    path: Path
    name: str
    type: GgmlType
    offset: int


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """One tensor of the file.

    Attributes:
        name: in the GGUF.
        shape: rows first.
        type: how it is stored.
        n_bytes: without padding.
        source: where it comes from, or None when `values` holds it.
        values: a small computed tensor.
        head_rows: rows per attention head when they must be interleaved, else 0.
    """

    name: str
    shape: tuple[int, ...]
    type: GgmlType
    n_bytes: int
    source: Source | None
    values: NDArray[np.float32] | None = None
    head_rows: int = 0


@dataclass(frozen=True, slots=True)
class Fallback:
    """How many tensors are not of the type the mix gives them, because rows do not fill its blocks.

    Attributes:
        wanted: the type of the mix, such as `q4_k`.
        stored: the type they have instead.
        n_tensors: how many.
    """

    wanted: str
    stored: str
    n_tensors: int


@dataclass(frozen=True, slots=True)
class FilePlan:
    """A file to be written: `head` as it will stand there, then `tensors` in order.

    Attributes:
        architecture: what the source calls itself.
        key_values: the metadata inside `head`, as a reader gives it.
        tensors: the tensors, in file order.
        head: bytes before the first tensor, padding included.
        n_bytes: exact size of the file.
        n_params: weights, computed tensors left out.
        fallbacks: tensors whose rows do not fit the mix.
        generation: 1 when the weights come from an unquantised source, one more for each
            quantised file between.
        warnings: what the user should know.
    """

    architecture: str
    key_values: Mapping[str, Any]
    tensors: tuple[TensorPlan, ...]
    head: bytes
    n_bytes: int
    n_params: int
    fallbacks: tuple[Fallback, ...] = ()
    generation: int = 1
    warnings: tuple[str, ...] = ()

    @property
    def bits_per_weight(self) -> float:
        """Bits of tensor data for each weight."""
        return 8 * sum(tensor.n_bytes for tensor in self.tensors) / self.n_params


def stored_bytes(ggml_type: GgmlType, shape: tuple[int, ...]) -> int:
    """Return the bytes of a tensor, rows first, without padding."""
    return row_bytes(ggml_type, shape[-1] if shape else 1) * math.prod(shape[:-1])


def head_of(values: Mapping[str, Packable], tensors: Sequence[TensorPlan]) -> tuple[bytes, int]:
    """Return the bytes before the weights, and the size of the whole file.

    Raises:
        ConvertError: a value cannot be written; names the key.
    """
    head = pack_head(values, ((t.name, t.shape, int(t.type), t.n_bytes) for t in tensors))
    return head, len(head) + sum(t.n_bytes + padding(t.n_bytes) for t in tensors)


def require_types(tensors: Sequence[TensorPlan]) -> None:
    """Check that every tensor that changes its type can be stored in the new one here.

    Raises:
        MissingExtra: the engine's library is needed, and not installed.
    """
    require_quantizers({t.type for t in tensors if t.source and t.source.type is not t.type})


def count_fallbacks(choices: Mapping[str, Choice], warnings: list[str]) -> tuple[Fallback, ...]:
    """Count the tensors that are not of the mix's type; each kind adds a warning."""
    kinds = Counter((c.wanted, c.type) for c in choices.values() if c.wanted is not c.type)
    made = []
    for (wanted, stored), n in kinds.items():
        names = [name for name, c in choices.items() if (c.wanted, c.type) == (wanted, stored)]
        fallback = Fallback(wanted.name.lower(), stored.name.lower(), n)
        made.append(fallback)
        warnings.append(
            f"{n} of {len(choices)} matrices are {fallback.stored}, not {fallback.wanted}: their "
            f"rows are no multiple of {traits(wanted).block_size}: {few(names, _EXAMPLES)}"
        )
    return tuple(made)
