"""A checkpoint's conversion decided before a byte is written: every tensor, its type, the metadata."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final

from edgellm.errors import ConvertError, ModelCorrupt
from edgellm.formats.checked_json import read_json_object
from edgellm.kernels.ggml import GgmlType, require_quantizers

from . import recipe_for
from .checkpoint import open_checkpoint
from .choice import ModelFacts, choose_types
from .layout import (
    FilePlan,
    Source,
    TensorPlan,
    count_fallbacks,
    head_of,
    require_types,
    stored_bytes,
)
from .match import match_tensors
from .presets import PRESETS
from .recipe import Transform
from .spec import Config, architecture_of, read_spec, refuse_quantized
from .special import read_specials
from .tokenizer import read_vocabulary

if TYPE_CHECKING:
    from pathlib import Path

    from .checkpoint import TensorSource
    from .choice import Choice
    from .recipe import KeyValues, Recipe, TensorRule
    from .spec import ModelSpec
    from .vocabulary import Vocabulary

STORED_AS: Final = {"F32": GgmlType.F32, "F16": GgmlType.F16, "BF16": GgmlType.BF16}
_LICENCE: Final = re.compile(r"^license:[ \t]*['\"]?([\w.+-]{1,64})['\"]?[ \t]*$", re.MULTILINE)
_MAX_CARD_BYTES: Final = 1 << 16


def make_plan(folder: Path, type_name: str, *, origin: str = "") -> FilePlan:
    """Check a checkpoint whole and decide what its GGUF will be.

    Args:
        folder: the checkpoint; configuration first, then tensor names, then the tokenizer.
        type_name: a key of `PRESETS`.
        origin: the address it was fetched from; stands in the metadata unless empty.

    Raises:
        EdgeLLMError: whatever is wrong with the checkpoint; see `runtime.conversion.plan`.
    """
    try:
        return _make_plan(folder, type_name, origin)
    except RecursionError as err:  # a value shallow enough to be parsed, too deep to be shown
        raise ModelCorrupt("its JSON is nested too deeply", path=folder) from err
    except ConvertError as err:
        err.path = err.path or str(folder)
        raise


def _make_plan(folder: Path, type_name: str, origin: str) -> FilePlan:
    preset = PRESETS[type_name]
    require_quantizers({preset.type})
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
    choices = choose_types(
        ((target, source.entry.shape) for source, target, _ in rules), _facts(recipe, spec), preset
    )
    fallbacks = count_fallbacks(choices, warnings)
    tensors = _tensors(recipe, spec, rules, choices)
    require_types(tensors)
    values = _key_values(folder, recipe, spec, vocabulary, preset.file_type)
    values |= specials.key_values
    if origin:
        values["general.source.url"] = origin
    head, n_bytes = head_of(values, tensors)
    return FilePlan(
        architecture=spec.architecture,
        key_values=values,
        tensors=tuple(tensors),
        head=head,
        n_bytes=n_bytes,
        n_params=sum(math.prod(t.shape) for t in tensors if t.source is not None),
        fallbacks=fallbacks,
        warnings=tuple(warnings),
    )


def _facts(recipe: Recipe, spec: ModelSpec) -> ModelFacts:
    return ModelFacts(
        recipe.gguf_architecture, spec.n_layers, n_heads=spec.n_heads, n_kv_heads=spec.n_kv_heads
    )


def _tensors(
    recipe: Recipe,
    spec: ModelSpec,
    rules: list[tuple[TensorSource, str, TensorRule]],
    choices: dict[str, Choice],
) -> list[TensorPlan]:
    made = [
        TensorPlan(name, values.shape, GgmlType.F32, values.nbytes, None, values)
        for name, values in recipe.computed(spec)
    ]
    for found, target, rule in rules:
        entry = found.entry
        source = Source(found.path, entry.name, STORED_AS[entry.dtype], entry.offset)
        ggml_type = choices[target].type if target in choices else GgmlType.F32
        n_bytes = stored_bytes(ggml_type, entry.shape)
        head_rows = 0 if rule.transform is Transform.NONE else spec.head_dim
        made.append(TensorPlan(target, entry.shape, ggml_type, n_bytes, source, None, head_rows))
    return made


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
