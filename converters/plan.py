"""A whole conversion decided before a byte is written: every tensor, its type, the exact file size."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from edgellm.errors import TensorMismatch
from edgellm.fileio import open_regular
from edgellm.formats.checked_json import read_json_object
from edgellm.kernels.ggml import GgmlType, row_bytes, traits

from . import recipe_for
from .checkpoint import open_checkpoint, require_float
from .gguf_head import pack_head, padding
from .recipe import Transform
from .spec import Config, architecture_of, read_spec, refuse_quantized
from .special import read_specials
from .tokenizer import read_vocabulary

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from .checkpoint import Checkpoint, TensorSource
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
_MAX_LISTED: Final = 6
_COMPARE_BYTES: Final = 1 << 20
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
    checkpoint = open_checkpoint(folder)
    path = folder / "config.json"
    config = Config(read_json_object(path), path)
    recipe = recipe_for(architecture_of(config))
    refuse_quantized(config)
    spec = read_spec(config)
    recipe.check(config, spec)
    warnings: list[str] = []
    rules = _match(checkpoint, recipe, spec, warnings)
    vocabulary = read_vocabulary(folder, spec.n_vocab)
    specials = read_specials(folder, config, vocabulary)
    warnings += [*vocabulary.warnings, *specials.warnings]
    tensors = _tensors(checkpoint, recipe, spec, rules, type_name, warnings)
    values = _key_values(folder, recipe, spec, vocabulary, TYPES[type_name][1])
    values |= specials.key_values
    head = pack_head(values, ((t.name, t.shape, int(t.type), t.n_bytes) for t in tensors))
    n_bytes = len(head) + sum(t.n_bytes + padding(t.n_bytes) for t in tensors)
    n_params = sum(math.prod(t.shape) for t in tensors if t.source is not None)
    return FilePlan(spec, values, tuple(tensors), head, n_bytes, n_params, tuple(warnings))


def _match(
    checkpoint: Checkpoint, recipe: Recipe, spec: ModelSpec, warnings: list[str]
) -> list[tuple[TensorSource, str, TensorRule]]:
    """Pair every tensor of the checkpoint with its rule; names and shapes must agree exactly."""
    tied = _is_tied(checkpoint, recipe, spec, warnings)
    rules = [row for row in recipe.expand(spec) if not (tied and row[2].is_output)]
    known = {source for source, _, _ in rules} | ({recipe.output} if tied else set())
    missing = [source for source, _, _ in rules if source not in checkpoint.tensors]
    unknown = [
        name
        for name in checkpoint.tensors
        if name not in known and not name.endswith(recipe.ignored)
    ]
    if missing or unknown:
        faults = [f"missing {_few(missing)}"] if missing else []
        faults += [f"unknown {_few(unknown)}"] if unknown else []
        raise TensorMismatch(f"tensors: {'; '.join(faults)}", path=checkpoint.folder)
    made = []
    for source, target, rule in rules:
        tensor = checkpoint.tensors[source]
        require_float(tensor)
        if tensor.entry.shape != rule.shape(spec):
            raise TensorMismatch(
                f"tensor {source!r} is {list(tensor.entry.shape)}, "
                f"config.json means {list(rule.shape(spec))}",
                path=tensor.path,
            )
        made.append((tensor, target, rule))
    return made


def _is_tied(checkpoint: Checkpoint, recipe: Recipe, spec: ModelSpec, warnings: list[str]) -> bool:
    """Decide whether the output matrix is the embedding; never on a guess that changes answers."""
    output = checkpoint.tensors.get(recipe.output)
    embedding = checkpoint.tensors.get(recipe.embedding)
    if output is None:
        if spec.tied is False:
            raise TensorMismatch(
                f"{recipe.output} is missing and config.json says tie_word_embeddings is false",
                path=checkpoint.folder,
                hint="a file of the checkpoint is missing, or the flag is wrong",
            )
        if spec.tied is None:
            warnings.append(
                f"no {recipe.output} and no tie_word_embeddings: the embedding is the output too"
            )
        return True
    if not spec.tied or embedding is None:
        return False
    if _same_bytes(output, embedding):
        return True
    warnings.append(
        f"config.json says tie_word_embeddings, but {recipe.output} differs from the embedding: "
        "it is kept"
    )
    return False


def _same_bytes(one: TensorSource, two: TensorSource) -> bool:
    a, b = one.entry, two.entry
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    with (
        open_regular(one.path, follow=True) as (file_a, _),
        open_regular(two.path, follow=True) as (file_b, _),
    ):
        file_a.seek(a.offset)
        file_b.seek(b.offset)
        left = a.n_bytes
        while left:
            n = min(left, _COMPARE_BYTES)
            chunk = file_a.read(n)
            if len(chunk) != n or chunk != file_b.read(n):
                return False
            left -= n
    return True


def _tensors(
    checkpoint: Checkpoint,
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
            f"{traits(wanted).block_size} and stay f16: {_few(coarse)}"
        )
    if not checkpoint.tensors:
        raise TensorMismatch("the checkpoint holds no tensors", path=checkpoint.folder)
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
    values["tokenizer.ggml.model"] = "gpt2"
    values["tokenizer.ggml.pre"] = vocabulary.pre
    values["tokenizer.ggml.tokens"] = vocabulary.texts
    values["tokenizer.ggml.token_type"] = vocabulary.kinds
    values["tokenizer.ggml.merges"] = vocabulary.merges
    return values


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


def _few(names: list[str]) -> str:
    shown = ", ".join(name[:100] for name in names[:_MAX_LISTED])
    return shown if len(names) <= _MAX_LISTED else f"{shown} and {len(names) - _MAX_LISTED} more"
