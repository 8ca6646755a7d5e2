"""A GGUF's conversion into another type decided before a byte is written.

Metadata is carried over as it stands, and so is every tensor that keeps its type. What was
quantised before does not become better: the file says from which generation its weights are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from edgellm.errors import ModelCorrupt, ModelUnsupported
from edgellm.formats.gguf_check import checked_model
from edgellm.kernels.ggml import GgmlType, can_dequantize, require_quantizers

from .checkpoint import few
from .choice import ModelFacts, choose_types
from .gguf_values import stored_values
from .layout import (
    FilePlan,
    Source,
    TensorPlan,
    count_fallbacks,
    head_of,
    require_types,
    stored_bytes,
)
from .presets import FLOATS, PRESETS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from edgellm.formats.gguf import GgufHeader

    from .choice import Choice
    from .gguf_head import Packable

GENERATION: Final = "edgellm.generation"
_QUANTIZATION_VERSION: Final = 2
_MAX_U32: Final = (1 << 32) - 1
# The copy is one whole file whose tensors are aligned to 32 bytes, whatever the source was.
_NOT_CARRIED: Final = ("general.alignment", "split.no", "split.count", "split.tensors.count")


def plan_requantization(path: Path, type_name: str) -> FilePlan:
    """Check a GGUF's header and decide what it becomes in another type; no weight is read.

    Args:
        path: the GGUF, of any architecture.
        type_name: a key of `PRESETS`.

    Raises:
        ModelNotFound, ModelCorrupt, ModelUnsupported: it is no whole model that can be read.
        MissingExtra: a type needs the engine's library, and it is not installed.
    """
    preset = PRESETS[type_name]
    require_quantizers({preset.type})
    header, info = checked_model(path)
    if not info.n_params:
        raise ModelCorrupt("there are no weights in it", path=path)
    shapes = {t.name: tuple(reversed(t.shape)) for t in header.tensors}
    warnings = list(info.warnings)
    choices = choose_types(shapes.items(), _facts(header, info.n_layers), preset)
    fallbacks = count_fallbacks(choices, warnings)
    tensors = _tensors(header, path, choices)
    require_types(tensors)
    generation = _generation(header, tensors, warnings)
    changed: dict[str, int] = {
        "general.file_type": preset.file_type,
        "general.quantization_version": _QUANTIZATION_VERSION,
    }
    if generation > 1:
        changed[GENERATION] = generation
    kept = {k: v for k, v in stored_values(header).items() if k not in _NOT_CARRIED}
    raw: dict[str, Packable] = {**kept, **changed}
    head, n_bytes = head_of(raw, tensors)
    values: dict[str, Any] = {key: changed.get(key, header.metadata.get(key)) for key in raw}
    return FilePlan(
        architecture=info.architecture,
        key_values=values,
        tensors=tensors,
        head=head,
        n_bytes=n_bytes,
        n_params=info.n_params,
        fallbacks=fallbacks,
        generation=generation,
        warnings=tuple(warnings),
    )


def _facts(header: GgufHeader, n_layers: int) -> ModelFacts:
    """Gather what the rules ask; `model_info` has checked the numbers that it shares with them."""
    architecture = str(header.metadata["general.architecture"])

    def first(name: str, default: int) -> int:
        value = header.metadata.get(f"{architecture}.{name}", default)
        if isinstance(value, np.ndarray) and value.size:
            value = value.flat[0].item()
        return value if isinstance(value, int) and value >= 0 else default

    n_heads = first("attention.head_count", 0)
    n_kv_heads = first("attention.head_count_kv", n_heads)
    return ModelFacts(architecture, n_layers, n_heads, n_kv_heads, first("expert_count", 0))


def _tensors(header: GgufHeader, path: Path, choices: dict[str, Choice]) -> tuple[TensorPlan, ...]:
    made = []
    for tensor in header.tensors:
        stored = GgmlType(tensor.type.id)
        chosen = choices[tensor.name].type if tensor.name in choices else stored
        if chosen is not stored and not can_dequantize(stored):
            raise ModelUnsupported(
                f"tensor {tensor.name!r} is {tensor.type.name}, which cannot be expanded", path=path
            )
        shape = tuple(reversed(tensor.shape))
        source = Source(path, tensor.name, stored, header.data_start + tensor.offset)
        made.append(TensorPlan(tensor.name, shape, chosen, stored_bytes(chosen, shape), source))
    return tuple(made)


def _generation(header: GgufHeader, tensors: Sequence[TensorPlan], warnings: list[str]) -> int:
    """Return the generation of the weights: one above the source's where blocks are expanded.

    Blocks that are copied lose nothing. A file without the key is of generation 1.
    """
    known = header.metadata.get(GENERATION, 1)
    if type(known) is not int or not 1 <= known < _MAX_U32:
        raise ModelCorrupt(f"metadata {GENERATION!r} is no count", path=header.path)
    lossy = [t for t in tensors if t.source and t.source.type not in FLOATS]
    expanded = {
        t.source.type.name.lower() for t in lossy if t.source and t.type is not t.source.type
    }
    if expanded:
        warnings.append(
            f"the weights were quantised before ({few(sorted(expanded))}): what that took away "
            f"stays away and the loss adds up; the file is marked generation {known + 1}"
        )
        return known + 1
    if known > 1:
        warnings.append(f"the weights were quantised before: the file is of generation {known}")
    return known
