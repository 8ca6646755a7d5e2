"""A checkpoint's tensors against its family's recipe: names, shapes, and whether the output is tied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from edgellm.errors import TensorMismatch

from .checkpoint import few, require_float
from .shards import Shards

if TYPE_CHECKING:
    from .checkpoint import Checkpoint, TensorSource
    from .recipe import Recipe, TensorRule
    from .spec import ModelSpec

_COMPARE_BYTES: Final = 1 << 20


def match_tensors(
    checkpoint: Checkpoint, recipe: Recipe, spec: ModelSpec, warnings: list[str]
) -> list[tuple[TensorSource, str, TensorRule]]:
    """Pair every tensor of the checkpoint with its rule; names and shapes must agree exactly.

    Args:
        checkpoint: the tensors there are.
        recipe: the family's tensors.
        spec: the model's sizes.
        warnings: doubtful but harmless findings are added here.

    Returns:
        (source, GGUF name, rule) in file order; a tied output is left out.

    Raises:
        TensorMismatch: tensors are missing, unknown or of another shape.
        ModelUnsupported: a tensor is no plain floating point.
    """
    for tensor in checkpoint.tensors.values():
        require_float(tensor)
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
        faults = [f"missing {few(missing)}"] if missing else []
        faults += [f"unknown {few(unknown)}"] if unknown else []
        raise TensorMismatch(f"tensors: {'; '.join(faults)}", path=checkpoint.folder)
    made = []
    for source, target, rule in rules:
        tensor = checkpoint.tensors[source]
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
    with Shards() as shards:
        for done in range(0, a.n_bytes, _COMPARE_BYTES):
            n = min(a.n_bytes - done, _COMPARE_BYTES)
            if shards.read(one.path, a.offset + done, n) != shards.read(
                two.path, b.offset + done, n
            ):
                return False
    return True
