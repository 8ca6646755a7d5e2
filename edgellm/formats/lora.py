"""A LoRA adapter's GGUF against the model it is for: refused here, or the engine dies of it later.

An adapter holds, for a weight W of the model, two matrices A and B; the engine then computes with
W + scale * alpha / rank * B A. Its loader compares two dimensions and believes the rest.
Source: `llama_adapter_lora_init_impl` (llama-adapter.cpp), `build_lora_mm`, `build_lora_mm_id` and
`build_inp_embd` (llama-graph.cpp), llama.cpp 0c1e57098; each rule was seen to end its process, to
give NaN, or to be skipped without a word.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from edgellm.errors import ModelCorrupt, ModelUnsupported
from edgellm.formats.gguf import FLOAT32, read_header

if TYPE_CHECKING:
    from collections.abc import Iterable
    from os import PathLike

    from edgellm.formats.gguf import GgufHeader, TensorInfo

ALPHA: Final = "adapter.lora.alpha"
ACTIVATED: Final = "adapter.alora.invocation_tokens"
TYPES: Final = ("f32", "f16", "bf16", "q8_0")
"""What `convert_lora_to_gguf.py` writes."""

# What the graphs multiply with directly, adapters or not: in any architecture, and in some. Measured
# on a model of every kind of memory; the compressed attention's (MLA) from src/models/*.cpp.
_SKIPPED: Final = re.compile(
    r"(^|\.)(ssm_(conv1d|a|d|norm)|shortconv\.conv|attn_[kv]_b|indexer\.\w+|time_mix_[wavg][12]|"
    r"(time|channel)_mix_lerp_\w+|(output_)?hc_\w+|\w+_ape)(\.weight)?$"
)
_SKIPPED_IN: Final = {
    **dict.fromkeys(
        ("bailingmoe3", "deepseek2", "kimi-k3", "kimi-linear", "plm"),
        re.compile(r"\.attn_(q|q_a|q_b|kv_a_mqa|kv_b)\.weight$"),
    ),
    **dict.fromkeys(
        ("deepseek32", "dots3note", "glm-dsa", "glm5-next", "hy-v4", "minicpm3"),
        re.compile(r"\.attn_(q_a|q_b|kv_a_mqa|kv_b)\.weight$"),
    ),
    "deepseek4": re.compile(r"^output\.weight$"),
}
_ENDS: Final = (".lora_a", ".lora_b")
_NORM: Final = "_norm.weight"
_NOTHING: Final = re.compile(r"(?!)")
_EMBEDDING: Final = "token_embd.weight"
_OUTPUT: Final = "output.weight"
_WRONG_MODEL: Final = "use the model that the adapter was trained on"
_AGAIN: Final = "convert the adapter again"


@dataclass(frozen=True, slots=True)
class LoraInfo:
    """What an adapter file says of itself.

    Attributes:
        path: the file.
        alpha: numerator of the factor alpha / rank; 0 leaves the factor out.
        targets: the model's tensors that it changes, sorted.
        file_bytes: size of the file.
        warnings: what the user should know of a file that works, one phrase each.
    """

    path: str
    alpha: float
    targets: tuple[str, ...]
    file_bytes: int
    warnings: tuple[str, ...] = ()


def checked_lora(path: str | PathLike[str], model: GgufHeader) -> tuple[GgufHeader, LoraInfo]:
    """Read an adapter's header and refuse what does not fit the model, or what an engine dies of.

    Args:
        path: the adapter, a GGUF file.
        model: the header of a model that was checked.

    Returns:
        The adapter's header, and what it says.

    Raises:
        ModelNotFound: there is no such file.
        ModelCorrupt: its numbers contradict each other, its size, or the model's shapes.
        ModelUnsupported: it is whole, and no adapter of this model or of this engine.
    """
    header = read_header(path)
    _check_kind(header, model)
    alpha = _alpha(header)
    pairs = _pairs(header)
    there = {tensor.name: tensor for tensor in model.tensors}
    for name, (a, b) in pairs.items():
        _check_pair(header, there, name, a, b)
    warnings = _skipped(header, str(model.metadata["general.architecture"]), pairs)
    return header, LoraInfo(header.path, alpha, tuple(sorted(pairs)), header.file_bytes, warnings)


def _skipped(header: GgufHeader, architecture: str, pairs: Iterable[str]) -> tuple[str, ...]:
    """Return what to warn of in an adapter of which the engine uses a part only.

    Raises:
        ModelUnsupported: it uses nothing of it.
    """
    own = _SKIPPED_IN.get(architecture, _NOTHING)
    names = list(pairs)
    left = [name for name in names if _SKIPPED.search(name) or own.search(name)]
    if len(left) == len(names):
        raise ModelUnsupported(
            f"llama.cpp would use none of its {len(names)} pairs of matrices, such as for "
            f"{left[0]!r}: the adapter would change nothing",
            path=header.path,
            hint="merge it into the checkpoint and convert that",
        )
    norms = [tensor.name for tensor in header.tensors if tensor.name.endswith(_NORM)]
    return tuple(
        f"{len(unused)} {what} in the adapter {header.path} are not used: llama.cpp skips "
        f"{unused[0]!r} and the like"
        for what, unused in ((f"of {len(names)} pairs", left), ("norms", norms))
        if unused
    )


def _check_kind(header: GgufHeader, model: GgufHeader) -> None:
    wanted = {
        "general.type": "adapter",
        "adapter.type": "lora",
        "general.architecture": model.metadata.get("general.architecture"),
    }
    for key, value in wanted.items():
        found = header.metadata.get(key)
        if isinstance(found, str) and found == value:
            continue
        shown = "is missing" if found is None else f"is {str(found)[:40]!r}"
        other = key == "general.architecture"
        raise ModelUnsupported(
            f"no LoRA adapter for this model: metadata {key!r} {shown}, not {value!r}",
            path=header.path,
            hint=_WRONG_MODEL if other else "give a file that convert_lora_to_gguf.py wrote",
        )
    if ACTIVATED in header.metadata:
        raise ModelUnsupported(
            "the adapter wakes only at certain tokens (aLoRA), which is not done here",
            path=header.path,
        )


def _alpha(header: GgufHeader) -> float:
    """Return alpha, 0 without one; another type than float32 ends the engine's process."""
    if ALPHA not in header.metadata:
        return 0.0
    alpha = header.metadata[ALPHA]
    if header.kinds[ALPHA] != FLOAT32 or not isinstance(alpha, float):
        raise ModelCorrupt(
            f"metadata {ALPHA!r} is of type {header.kinds[ALPHA]}, not float32 ({FLOAT32})",
            path=header.path,
            hint=_AGAIN,
        )
    if not math.isfinite(alpha):
        raise ModelCorrupt(
            f"metadata {ALPHA!r}: {alpha} is no number to compute with",
            path=header.path,
            hint=_AGAIN,
        )
    return alpha


def _pairs(header: GgufHeader) -> dict[str, tuple[TensorInfo, TensorInfo]]:
    """Return the A and the B of each of the model's tensors."""
    halves: dict[str, dict[str, TensorInfo]] = {}
    for tensor in header.tensors:
        name, end = tensor.name[:-7], tensor.name[-7:]
        if end in _ENDS and name and not any(other in name for other in _ENDS):
            halves.setdefault(name, {})[end] = tensor
        elif not tensor.name.endswith(_NORM):
            raise ModelUnsupported(
                f"tensor {tensor.name!r} is no half of a pair (`NAME.lora_a`, `NAME.lora_b`)",
                path=header.path,
                hint=_AGAIN,
            )
    for name, found in halves.items():
        for end in _ENDS:
            if end not in found:
                raise ModelCorrupt(
                    f"tensor {name + end!r} is missing", path=header.path, hint=_AGAIN
                )
    if not halves:
        raise ModelCorrupt(
            f"no pairs of matrices among {len(header.tensors)} tensors", path=header.path
        )
    return {name: (found[_ENDS[0]], found[_ENDS[1]]) for name, found in halves.items()}


def _check_pair(
    header: GgufHeader, there: dict[str, TensorInfo], name: str, a: TensorInfo, b: TensorInfo
) -> None:
    target = there.get(name)
    if target is None:
        raise ModelUnsupported(
            f"the model has no tensor {name!r}", path=header.path, hint=_WRONG_MODEL
        )
    for half in (a, b):
        if half.type.name not in TYPES:
            raise ModelUnsupported(
                f"tensor {half.name!r} is {half.type.name}, adapters are {', '.join(TYPES)}",
                path=header.path,
                hint=_AGAIN,
            )
    if target.type.name == "nvfp4":
        raise ModelUnsupported(
            f"the model's {name!r} is nvfp4, which the engine adds no adapter to",
            path=header.path,
            hint="use another quantisation of the model",
        )
    if name == _EMBEDDING and _OUTPUT not in there:
        # The same weight is read as rows and multiplied with, and the pair fits one of the two.
        raise ModelUnsupported(
            "the adapter changes an embedding that the model also uses as its output",
            path=header.path,
            hint="merge it into the checkpoint and convert that",
        )
    _check_shapes(header, name, target, a, b)


def _check_shapes(
    header: GgufHeader, name: str, target: TensorInfo, a: TensorInfo, b: TensorInfo
) -> None:
    """Compare all dimensions; the engine's loader looks at the first two."""
    n_in, n_out, *more = (*target.shape, 1, 1, 1)[:4]
    rank = b.shape[0] if b.shape else 0
    wants = ((n_in, rank), (rank, n_out))
    if name == _EMBEDDING:  # A's columns are looked up by token
        wants = ((rank, n_out), (rank, n_in))
    for half, (width, height) in zip((a, b), wants, strict=True):
        wanted = (width, height, *more)
        if (*half.shape, 1, 1, 1, 1)[:4] != wanted or len(_stripped(target.shape)) < 2:
            raise ModelCorrupt(
                f"tensor {half.name!r} is {list(half.shape)}: for the model's "
                f"{list(target.shape)} and a rank of {rank} it has to be {list(_stripped(wanted))}",
                path=header.path,
                hint=_WRONG_MODEL,
            )


def _stripped(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape without the ones that ggml does not tell from none, two dimensions at least."""
    n = len(shape)
    while n > 2 and shape[n - 1] == 1:
        n -= 1
    return shape[:n]
