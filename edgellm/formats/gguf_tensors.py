"""The tensor table against the hyper-parameters: types that compute, names and shapes that fit.

What the engine's own loader refuses it refuses with two numbers; what it does not look at (the
type of a norm, an integer as a weight) ends the process at the first token.
"""

from __future__ import annotations

import importlib.metadata
from typing import TYPE_CHECKING, Final

from edgellm.errors import ModelCorrupt, ModelUnsupported
from edgellm.formats.gguf_families import FAMILIES, FUSED, FUSED_NAME, KNOWN_ENGINE
from edgellm.formats.gguf_keys import same_everywhere

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from edgellm.core import ModelInfo
    from edgellm.formats.gguf import GgufHeader, TensorInfo
    from edgellm.formats.gguf_families import Family
    from edgellm.formats.gguf_keys import Keys

_ENGINE_ALIGNMENT: Final = 32  # TENSOR_ALIGNMENT, ggml-impl.h
_NO_WEIGHTS: Final = ("q8_1", "q8_K", "i8", "i16", "i32", "i64", "f64")
_INTEGER_TABLES: Final = ("tid2eid", "d2t")
_ONE_ROW: Final = ("ffn_gate_inp_shexp.weight",)  # a matrix of one row
_AGAIN: Final = "the file is incomplete: download or convert it again"
_CONVERT: Final = "convert the model again"


def check_types(header: GgufHeader) -> None:
    """Refuse places and types that the engine's operations would abort on.

    Raises:
        ModelUnsupported: a tensor that is not aligned for the engine, a weight of a type that is
            only for tables or intermediate results, or a vector (norm, bias) that is not f32.
    """
    for tensor in header.tensors:
        if (header.data_start + tensor.offset) % _ENGINE_ALIGNMENT:
            raise ModelUnsupported(
                f"tensor {tensor.name!r} starts at byte {header.data_start + tensor.offset}, "
                f"no multiple of {_ENGINE_ALIGNMENT}: it cannot be used where it lies",
                path=header.path,
                hint=_CONVERT,
            )
        kind = tensor.type.name
        if kind == "f32" or any(name in tensor.name for name in _INTEGER_TABLES):
            continue
        is_vector = len(_stripped(tensor.shape)) <= 1
        if kind in _NO_WEIGHTS or (is_vector and not tensor.name.endswith(_ONE_ROW)):
            what = "a vector (norm or bias)" if is_vector else "a weight"
            raise ModelUnsupported(
                f"tensor {tensor.name!r}: {kind} is no type to compute with for {what}",
                path=header.path,
                hint=_CONVERT,
            )


def check_tensors(header: GgufHeader, keys: Keys, model: ModelInfo) -> None:
    """Compare names and shapes with what the engine will ask for, in families that are known.

    Raises:
        ModelCorrupt: a tensor is missing, or is not of the shape that the metadata means.
        ModelUnsupported: tensors are left over, which a newer engine may know.
    """
    family = FAMILIES.get(model.architecture)
    widths = _widths(keys, model) if family else None
    if family is None or widths is None:
        return
    there = {tensor.name: tensor for tensor in header.tensors}
    needed = dict(_needed(family, model.n_layers, there))
    for name, shape in needed.items():
        if name not in there:
            raise ModelCorrupt(
                f"tensor {name!r} is missing: {len(there)} tensors are there, "
                f"{model.architecture} needs {len(needed)}",
                path=header.path,
                hint=_AGAIN,
            )
        _check_shape(header, there[name], shape, widths)
    extra = _extra(family, model.n_layers)
    for name in there.keys() & extra.keys():
        _check_shape(header, there[name], extra[name], widths)
    left = [name for name in there if name not in needed and name not in extra]
    left = [name for name in left if not name.endswith("scale")]  # of per-tensor scaled types
    if left and engine_version() in ("", KNOWN_ENGINE):
        raise ModelUnsupported(
            f"{len(there)} tensors, llama.cpp {KNOWN_ENGINE} uses {len(there) - len(left)}: "
            f"{left[0]!r} is left over",
            path=header.path,
            hint="the file was made for a newer engine, or for another model",
        )


def engine_version() -> str:
    """Return the version of the installed llama.cpp binding, or ""; nothing is imported."""
    try:
        return importlib.metadata.version("llama-cpp-python")
    except importlib.metadata.PackageNotFoundError:
        return ""


def _widths(keys: Keys, model: ModelInfo) -> Mapping[str, int] | None:
    """Return what the letters of the table stand for, None where layers differ."""
    n = model.n_layers
    heads = keys.each_layer("attention.head_count", n)
    kv_heads = keys.each_layer("attention.head_count_kv", n, default=heads[0])
    feed = keys.each_layer("feed_forward_length", n)
    odd = ("nextn_predict_layers", "expert_count", "attention.key_length_swa")
    if not all(map(same_everywhere, (heads, kv_heads, feed))) or any(
        keys.count(name, low=0, default=0) for name in odd
    ):
        return None
    _check_heads(keys, heads[0], kv_heads[0], model.n_embd)
    head = keys.count("attention.key_length", low=1, default=model.n_embd // heads[0])
    value = keys.count("attention.value_length", low=1, default=model.n_embd // heads[0])
    rotated = keys.count("rope.dimension_count", low=0, default=head)
    if not head == value == rotated or head % 2:
        raise keys.corrupt(
            "attention.key_length", f"keys of {head}, values of {value}, {rotated} of them rotated"
        )
    queries = model.n_embd if model.architecture in ("qwen2", "olmo2") else head * heads[0]
    return {
        "e": model.n_embd,
        "v": model.n_vocab,
        "q": queries,
        "k": head * kv_heads[0],
        "u": value * kv_heads[0],
        "h": head,
        "r": rotated // 2,
        "f": feed[0],
    }


def _check_heads(keys: Keys, n_heads: int, n_kv_heads: int, n_embd: int) -> None:
    if not n_kv_heads or n_heads % n_kv_heads:
        raise keys.corrupt(
            "attention.head_count_kv", f"{n_heads} query heads over {n_kv_heads} key heads"
        )
    if n_heads > n_embd:
        raise keys.corrupt("attention.head_count", f"{n_heads} heads in {n_embd} values")


def _needed(
    family: Family, n_layers: int, there: Mapping[str, TensorInfo]
) -> Iterator[tuple[str, str]]:
    for name, shape in family.head.items():
        yield f"{name}.weight", shape
    for i in range(n_layers):
        fused = f"blk.{i}.{FUSED_NAME}.weight" in there
        if fused:
            yield f"blk.{i}.{FUSED_NAME}.weight", "1"
        for name, shape in family.layer.items():
            if not (fused and name in FUSED):
                yield f"blk.{i}.{name}.weight", shape


def _extra(family: Family, n_layers: int) -> dict[str, str]:
    made = {_full(name): shape for name, shape in family.head_extra.items()}
    for i in range(n_layers):
        for name, shape in family.layer_extra.items():
            made[f"blk.{i}.{_full(name)}"] = shape
    return made


def _full(name: str) -> str:
    return name if name.endswith(".bias") else f"{name}.weight"


def _check_shape(
    header: GgufHeader, tensor: TensorInfo, letters: str, widths: Mapping[str, int]
) -> None:
    if letters == "1":
        return
    meant = tuple(widths[letter] for letter in letters)
    if _stripped(tensor.shape) != _stripped(meant):
        raise ModelCorrupt(
            f"tensor {tensor.name!r} is {list(tensor.shape)}, the metadata means {list(meant)}",
            path=header.path,
            hint=_CONVERT,
        )


def _stripped(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape without the ones at its end, which ggml does not tell apart."""
    n = len(shape)
    while n and shape[n - 1] == 1:
        n -= 1
    return shape[:n]
