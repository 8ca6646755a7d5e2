"""A whole conversion decided before a byte is written: every tensor, its type, the exact file size."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from edgellm.errors import ConvertError, ModelCorrupt
from edgellm.formats.checked_json import read_json_object
from edgellm.kernels.ggml import GgmlType, row_bytes, traits

from . import recipe_for
from .checkpoint import few, open_checkpoint
from .gguf_head import pack_head, padding
from .match import match_tensors
from .recipe import Transform
from .spec import Config, architecture_of, read_spec, refuse_quantized
from .special import read_specials
from .tokenizer import read_vocabulary

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from .checkpoint import TensorSource
    from .recipe import KeyValues, Recipe, TensorRule
    from .spec import ModelSpec
    from .tokenizer import Vocabulary

# type -> (ggml type of the matrices, general.file_type)
TYPES: Final = {
    "f32": (GgmlType.F32, 0),
    "f16": (GgmlType.F16, 1),
    "bf16": (GgmlType.BF16, 32),
    "q8_0": (GgmlType.Q8_0, 7),
    "q4_0": (GgmlType.Q4_0, 2),
}
_LICENCE: Final = re.compile(r"^license:[ \t]*['\"]?([\w.+-]{1,64})['\"]?[ \t]*$", re.MULTILINE)
_MAX_CARD_BYTES: Final = 1 << 16


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
    source: TensorSource | None
    values: NDArray[np.float32] | None
    head_rows: int


@dataclass(frozen=True, slots=True)
class FilePlan:
    """A file to be written: `head` as it will stand there, then `tensors` in order.

    Attributes:
        spec: what the configuration says.
        key_values: the metadata inside `head`.
        tensors: the tensors, in file order.
        head: bytes before the first tensor, padding included.
        n_bytes: exact size of the file.
        n_params: weights, computed tensors left out.
        warnings: what the user should know.
    """

    spec: ModelSpec
    key_values: KeyValues
    tensors: tuple[TensorPlan, ...]
    head: bytes
    n_bytes: int
    n_params: int
    warnings: tuple[str, ...]

    @property
    def bits_per_weight(self) -> float:
        """Bits of tensor data for each weight."""
        return 8 * sum(tensor.n_bytes for tensor in self.tensors) / self.n_params


def make_plan(folder: Path, type_name: str) -> FilePlan:
    """Check a checkpoint whole and decide what its GGUF will be.

    Args:
        folder: the checkpoint; configuration first, then tensor names, then the tokenizer.
        type_name: a key of `TYPES`.

    Raises:
        EdgeLLMError: whatever is wrong with the checkpoint; see `runtime.conversion.plan`.
    """
    try:
        return _make_plan(folder, type_name)
    except RecursionError as err:  # a value shallow enough to be parsed, too deep to be shown
        raise ModelCorrupt("its JSON is nested too deeply", path=folder) from err
    except ConvertError as err:
        err.path = err.path or str(folder)
        raise


def _make_plan(folder: Path, type_name: str) -> FilePlan:
    checkpoint = open_checkpoint(folder)
    path = folder / "config.json"
    config = Config(read_json_object(path), path)
    recipe = recipe_for(architecture_of(config))
    refuse_quantized(config)
    spec = read_spec(config)
    recipe.check(config, spec)
    warnings: list[str] = []
    rules = match_tensors(checkpoint, recipe, spec, warnings)
    vocabulary = read_vocabulary(folder, spec.n_vocab)
    specials = read_specials(folder, config, vocabulary)
    warnings += [*vocabulary.warnings, *specials.warnings]
    tensors = _tensors(recipe, spec, rules, type_name, warnings)
    values = _key_values(folder, recipe, spec, vocabulary, TYPES[type_name][1])
    values |= specials.key_values
    head = pack_head(values, ((t.name, t.shape, int(t.type), t.n_bytes) for t in tensors))
    n_bytes = len(head) + sum(t.n_bytes + padding(t.n_bytes) for t in tensors)
    n_params = sum(math.prod(t.shape) for t in tensors if t.source is not None)
    return FilePlan(spec, values, tuple(tensors), head, n_bytes, n_params, tuple(warnings))


def _tensors(
    recipe: Recipe,
    spec: ModelSpec,
    rules: list[tuple[TensorSource, str, TensorRule]],
    type_name: str,
    warnings: list[str],
) -> list[TensorPlan]:
    wanted = TYPES[type_name][0]
    # The embedding stands in for a missing output matrix, and is kept as fine as one.
    outputs = {target for _, target, rule in rules if rule.is_output}
    outputs = outputs or {t for source, t, _ in rules if source.entry.name == recipe.embedding}
    made = [
        TensorPlan(name, values.shape, GgmlType.F32, values.nbytes, None, values, 0)
        for name, values in recipe.computed(spec)
    ]
    coarse: list[str] = []
    for source, target, rule in rules:
        shape = source.entry.shape
        ggml_type = _type_of(wanted, shape, is_output=target in outputs)
        if ggml_type is GgmlType.F16 and wanted is not GgmlType.F16:
            coarse.append(target)
        n_bytes = row_bytes(ggml_type, shape[-1]) * math.prod(shape[:-1])
        head_rows = 0 if rule.transform is Transform.NONE else spec.head_dim
        made.append(TensorPlan(target, shape, ggml_type, n_bytes, source, None, head_rows))
    if coarse:
        warnings.append(
            f"{len(coarse)} tensors have rows that are no multiple of "
            f"{traits(wanted).block_size} and stay f16: {few(coarse)}"
        )
    return made


def _type_of(wanted: GgmlType, shape: tuple[int, ...], *, is_output: bool) -> GgmlType:
    """Choose a tensor's type.

    As llama.cpp does (`llama_tensor_get_type_impl`, `tensor_type_fallback`, llama-quant.cpp
    0c1e57098), but for one case: a Q4_0 model's output matrix is Q8_0 here for every width, where
    llama.cpp takes Q6_K when rows are a multiple of 256.
    """
    if len(shape) == 1:
        return GgmlType.F32
    if wanted is GgmlType.Q4_0 and is_output:
        wanted = GgmlType.Q8_0
    return wanted if shape[-1] % traits(wanted).block_size == 0 else GgmlType.F16


def _key_values(
    folder: Path, recipe: Recipe, spec: ModelSpec, vocabulary: Vocabulary, file_type: int
) -> KeyValues:
    """Return all metadata but the special tokens. Nothing depends on the folder's name or a clock."""
    values: KeyValues = {
        "general.architecture": recipe.gguf_architecture,
        "general.type": "model",
    }
    licence = _licence(folder / "README.md")
    if licence:
        values["general.license"] = licence
    for key, value in recipe.key_values(spec).items():
        values[f"{recipe.gguf_architecture}.{key}"] = value
    values["general.file_type"] = file_type
    values["general.quantization_version"] = 2
    return values | vocabulary.key_values()


def _licence(card: Path) -> str | None:
    """Return the licence named in the header of a model card."""
    if not card.is_file():
        return None
    with card.open("rb") as file:
        text = file.read(_MAX_CARD_BYTES).decode("utf-8", "replace")
    if not text.startswith("---"):
        return None
    found = _LICENCE.search(text.split("\n---", 1)[0])
    return found.group(1) if found else None
