"""Where the weights lie: mapped from the file, copied into another layout, or on a GPU.

The engine copies matrices of some types so that several rows are computed at once; which ones depends on the
CPU.
Source: `ggml_repack_get_optimal_repack_type` in repack.cpp, `load_tensors` in llama-model.cpp,
llama.cpp 0c1e57098.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgellm.formats.gguf_shape import ModelShape, Weight

# Types to the number of rows that are put together, by a feature of the CPU as /proc/cpuinfo names it.
_REPACKED: Final[Mapping[str, Mapping[str, int]]] = {
    "avx2": {"q4_0": 8, "q4_K": 8, "iq4_nl": 8, "mxfp4": 8},
    "avx512f": {"q2_K": 8},
    "asimddp": {"q4_0": 4, "q8_0": 4, "iq4_nl": 4, "mxfp4": 4, "q1_0": 4}
    | {"q4_K": 8, "q5_K": 8, "q6_K": 8},
}
_EMBEDDING: Final = "token_embd.weight"
_LOOKED_UP: Final = (_EMBEDDING, "per_layer_token_embd.weight")
_MATRIX, _EXPERTS = 2, 3  # dimensions; other tensors are not multiplied with as they are


class Lying(NamedTuple):
    """Bytes of weights, by where they lie.

    Attributes:
        mapped_bytes: of the file, mapped into the process.
        repacked_bytes: copied, so that the file is not needed for them.
        gpu_bytes: in a GPU's memory.
    """

    mapped_bytes: int
    repacked_bytes: int
    gpu_bytes: int


def lying(
    shape: ModelShape, *, n_gpu_layers: int, repack: bool, flags: frozenset[str] | None
) -> Lying:
    """Return where the weights lie.

    Args:
        shape: the model's sizes.
        n_gpu_layers: layers on the GPU, counted from the end; the output is one of them.
        repack: whether copies are allowed.
        flags: the CPU's features; None takes those of a CPU that copies the most.
    """
    first = shape.model.n_layers + 1 - n_gpu_layers
    mapped = repacked = on_gpu = 0
    for weight in shape.weights:
        layer = shape.model.n_layers if weight.layer is None else weight.layer
        copied = repack and _is_repacked(weight, flags)
        if weight.name in _LOOKED_UP:
            mapped += weight.n_bytes
            if shape.tied and weight.name == _EMBEDDING:  # the output is a copy, where it is one
                on_gpu += weight.n_bytes if n_gpu_layers > 0 else 0
                repacked += weight.n_bytes if copied and n_gpu_layers <= 0 else 0
        elif layer >= first:
            on_gpu += weight.n_bytes
        elif copied:
            repacked += weight.n_bytes
        else:
            mapped += weight.n_bytes
    return Lying(mapped, repacked, on_gpu)


def _is_repacked(weight: Weight, flags: frozenset[str] | None) -> bool:
    experts = "_exps." in weight.name
    if len(weight.shape) != (_EXPERTS if experts else _MATRIX):
        return False
    features = _REPACKED if flags is None else flags & _REPACKED.keys()
    together = (_REPACKED[name].get(weight.type.name, 0) for name in features)
    return any(count and weight.shape[1] % count == 0 for count in together)
